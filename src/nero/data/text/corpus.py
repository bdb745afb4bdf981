"""Text for language models, Wikitext-2 or synthetic sentences, as one sequence of token ids cut into blocks.

The paper's language model reads the word-level corpus in parallel streams, in blocks of 35 words (its Figure 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nero.data.sources import require
from nero.data.synthetic.translation import english_sentences
from nero.data.text.vocabulary import Vocabulary, split_lines

END_OF_LINE = "<eos>"
Block = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Corpus:
    """A text in three parts: int64 [tokens], ids of words that are all in the vocabulary."""

    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor


def corpus_from_lines(*lines: Sequence[str]) -> Corpus:
    """The words of each line of train, valid and test, each line followed by <eos>; ids in order of appearance."""
    parts = [_words(part) for part in lines]
    vocabulary = Vocabulary(tuple(dict.fromkeys(chain.from_iterable(parts))))
    ids = vocabulary.ids.__getitem__
    tokens = (torch.from_numpy(np.fromiter(map(ids, words), np.int64, len(words))) for words in parts)
    return Corpus(vocabulary, *tokens)


def _words(lines: Sequence[str]) -> list[str]:
    # One split of the whole text is several times faster than one of each line.
    return f" {END_OF_LINE} ".join([*lines, ""]).split()


def load_wikitext2(root: Path | str, train_lines: int | None = None) -> Corpus:
    """Wikitext-2, word level: 33,278 types with <eos>, 2,088,628 training tokens; MissingData if absent.

    train_lines:  train on the first lines only; the vocabulary, and so the network, remains that of the whole
    """
    require("wikitext2", root)
    texts = (Path(root, "wikitext-2", f"wiki.{part}.tokens").read_bytes() for part in ("train", "valid", "test"))
    train, valid, test = (split_lines(text.decode()) for text in texts)
    corpus = corpus_from_lines(train, valid, test)
    if train_lines is None:
        return corpus
    return replace(corpus, train=corpus.train[: len(_words(train[:train_lines]))].clone())


def grammar_corpus(train: int, valid: int) -> Corpus:
    """The embedded default: this many synthetic sentences, one per line; as many in test as in valid."""
    lines = english_sentences(0, train + 2 * valid)
    return corpus_from_lines(lines[:train], lines[train : train + valid], lines[train + valid :])


def streams(tokens: Tensor, count: int) -> Tensor:
    """[count, len(tokens) // count]: row i continues row i - 1; tokens that do not fill a column are dropped."""
    length = len(tokens) // count
    if length < 2:
        raise ValueError(f"{len(tokens)} tokens are too few for {count} streams of at least 2")
    return tokens[: count * length].view(count, length)


def blocks(streams: Tensor, length: int) -> tuple[Block, Block | None]:
    """Cut streams into inputs of `length` tokens and targets, which are one token further along.

    Returns the n full blocks, [n, count, length] each, and the shorter last one, [count, rest] each, or None. Together
    they predict every token of a stream but the first once.
    """
    count, predicted = len(streams), streams.shape[1] - 1
    full = predicted // length * length

    def stacked(start: int) -> Tensor:
        cut = streams[:, start : start + full].reshape(count, full // length, length)
        return cut.transpose(0, 1).contiguous()

    rest = (streams[:, full:-1].contiguous(), streams[:, full + 1 :].contiguous()) if full < predicted else None
    return (stacked(0), stacked(1)), rest
