"""Sentence pairs for translation, as token ids: Multi30k, or made-up pairs. The source is German, the target English.

This is the task that the paper calls WMT16 En-De (its Figure 7): words seen at least three times in their language's
training text, and one vocabulary for both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nero.data.synthetic.seeds import translation_pairs
from nero.data.text.tokenised import LANGUAGES, PAIRS, raw_lines, tokenised_multi30k
from nero.data.text.vocabulary import Vocabulary, frequent

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
MARKS = ("<blank>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, as ids with BEGIN in front and END behind."""

    source: list[list[int]]
    target: list[list[int]]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(f"{len(self.source)} sentences but {len(self.target)} translations")

    def __len__(self) -> int:
        return len(self.source)

    def first(self, pairs: int | None) -> "Pairs":
        """The first so many; None for all."""
        return Pairs(self.source[:pairs], self.target[:pairs])


class Lines(NamedTuple):
    """Sentences and their translations as they were written, to read and to measure BLEU with."""

    source: list[str]
    target: list[str]


@dataclass(frozen=True)
class ParallelText:
    """A translation data set."""

    vocabulary: Vocabulary
    train: Pairs
    valid: Pairs
    test: Pairs
    valid_lines: Lines
    test_lines: Lines

    def __post_init__(self) -> None:
        for pairs, lines in ((self.valid, self.valid_lines), (self.test, self.test_lines)):
            if {len(side) for side in lines} != {len(pairs)}:
                raise ValueError(f"{len(pairs)} pairs but {' and '.join(str(len(side)) for side in lines)} lines")


def merged_vocabulary(source: Iterable[Iterable[str]], target: Iterable[Iterable[str]], minimum: int) -> Vocabulary:
    """The four marks, then the words seen at least `minimum` times in the source, then the target's that are left."""
    words = dict.fromkeys((*MARKS, *frequent(source, minimum), *frequent(target, minimum)))
    return Vocabulary(tuple(words), UNKNOWN)


def load_multi30k(root: Path | str, minimum: int = 3, train_pairs: int | None = None) -> ParallelText:
    """Multi30k: 29,000 pairs to train on, 1,014 for validation, 1,000 for test (flickr 2016); MissingData if absent.

    minimum:      a word must be seen so often in the training text of its language
    train_pairs:  train on the first so many only; the vocabulary, and so the network, remains that of the whole
    """
    parts = tokenised_multi30k(root)
    vocabulary = merged_vocabulary(parts["train"]["de"], parts["train"]["en"], minimum)
    train, valid, test = (_pairs(vocabulary, *(parts[part][language] for language in LANGUAGES)) for part in PAIRS)
    valid_lines, test_lines = (
        Lines(*(raw_lines(root, part, language) for language in LANGUAGES)) for part in ("val", "test_2016_flickr")
    )
    return ParallelText(vocabulary, train.first(train_pairs), valid, test, valid_lines, test_lines)


def toy_pairs(train: int, valid: int, minimum: int = 1) -> ParallelText:
    """The embedded default: so many made-up pairs each, no source twice; as many in test as in valid."""
    drawn = translation_pairs(0, train + 2 * valid)
    source, target = ([pair[side].split() for pair in drawn] for side in (0, 1))
    vocabulary = merged_vocabulary(source[:train], target[:train], minimum)
    cuts = (slice(train), slice(train, train + valid), slice(train + valid, None))
    training, validation, test = (_pairs(vocabulary, source[cut], target[cut]) for cut in cuts)
    valid_lines, test_lines = (Lines(*([pair[side] for pair in drawn[cut]] for side in (0, 1))) for cut in cuts[1:])
    return ParallelText(vocabulary, training, validation, test, valid_lines, test_lines)


def _pairs(vocabulary: Vocabulary, source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]) -> Pairs:
    sides = ([[BEGIN, *vocabulary.encode(words), END] for words in sentences] for sentences in (source, target))
    return Pairs(*sides)
