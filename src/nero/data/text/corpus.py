"""Running text for language models: Wikitext-2 or made-up sentences as one long row of token ids, cut for training.

The paper's language model reads the word-level corpus in parallel streams, in blocks of 35 words (its Figure 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nero.data.sources import require
from nero.data.synthetic.seeds import grammar_text
from nero.data.text.vocabulary import Vocabulary

END_OF_LINE = "<eos>"
Block = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Corpus:
    """A text in three parts: int64 [tokens], ids of words that are all in the vocabulary."""

    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor


def corpus_from_lines(train: Sequence[str], valid: Sequence[str], test: Sequence[str]) -> Corpus:
    """The words of every line and then <eos>, which is all there is of a blank line.

    Ids are given in order of first appearance: in train, then valid, then test.
    """
    parts = [_words(lines) for lines in (train, valid, test)]
    seen: dict[str, None] = {}
    for words in parts:
        seen.update(dict.fromkeys(words))
    vocabulary = Vocabulary(tuple(seen))
    return Corpus(vocabulary, *(_tokens(vocabulary, words) for words in parts))


def load_wikitext2(root: Path | str, train_lines: int | None = None) -> Corpus:
    """Wikitext-2, word level: 33,278 types with <eos>, 2,088,628 tokens to train on; MissingData if absent.

    train_lines:  train on the first so many lines only; the vocabulary, and so the network, remains that of the whole
    """
    require("wikitext2", root)
    train, valid, test = (
        _lines((Path(root) / "wikitext-2" / f"wiki.{part}.tokens").read_bytes().decode())
        for part in ("train", "valid", "test")
    )
    corpus = corpus_from_lines(train, valid, test)
    if train_lines is None:
        return corpus
    return replace(corpus, train=corpus.train[: len(_words(train[:train_lines]))].clone())


def grammar_corpus(train: int, valid: int) -> Corpus:
    """The embedded default: so many made-up sentences each, one a line; as many in test as in valid."""
    lines = grammar_text(0, train + 2 * valid)
    return corpus_from_lines(lines[:train], lines[train : train + valid], lines[train + valid :])


def streams(tokens: Tensor, count: int) -> Tensor:
    """[count, len(tokens) // count]: row i goes on where row i - 1 ends; what does not fill a column is left out."""
    if count < 1:
        raise ValueError(f"a number of streams is at least 1, not {count}")
    length = len(tokens) // count
    if length < 2:
        raise ValueError(f"{len(tokens)} tokens are too few for {count} streams of at least 2")
    return tokens[: count * length].view(count, length)


def blocks(streams: Tensor, length: int) -> tuple[Block, Block | None]:
    """Streams cut into stretches of `length` tokens to read, each with the tokens to predict: one further along.

    First the n whole blocks, in order: inputs and targets [n, count, length]; then the shorter last one: inputs and
    targets [count, rest], or None. Together they predict all tokens of a stream but the first, each once.
    """
    if length < 1:
        raise ValueError(f"a block's length is at least 1, not {length}")
    count, predicted = len(streams), streams.shape[1] - 1
    whole = predicted // length * length

    def stacked(start: int) -> Tensor:
        cut = streams[:, start : start + whole].reshape(count, whole // length, length)
        return cut.transpose(0, 1).contiguous()

    rest = None
    if whole < predicted:
        rest = (streams[:, whole:-1].contiguous(), streams[:, whole + 1 :].contiguous())
    return (stacked(0), stacked(1)), rest


def _lines(text: str) -> list[str]:
    """Only \\n ends a line, not the other signs that str.splitlines goes by."""
    return text.removesuffix("\n").split("\n") if text else []


def _words(lines: Sequence[str]) -> list[str]:
    # One split of the whole is several times quicker than one of each line.
    return f" {END_OF_LINE} ".join([*lines, ""]).split()


def _tokens(vocabulary: Vocabulary, words: list[str]) -> Tensor:
    return torch.from_numpy(np.fromiter(map(vocabulary.ids.__getitem__, words), np.int64, len(words)))
