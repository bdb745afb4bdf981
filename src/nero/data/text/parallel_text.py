"""Sentence pairs for translation from German to English, as token ids: Multi30k, or synthetic pairs.

The paper calls this task WMT16 En-De (its Figure 7): words that occur at least three times in the training text of
their language, and one vocabulary for both. Multi30k is tokenised once by spaCy and cached in multi30k/tokens.json
under the data root, so that most runs need no spaCy; the cache is valid for the same raw text and tokeniser.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nero.atomic import write_atomic
from nero.data.sources import MissingData, require
from nero.data.synthetic.translation import translation_pairs
from nero.data.text.vocabulary import Vocabulary, frequent, split_lines

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
MARKS = ("<blank>", "<unk>", "<s>", "</s>")

Sentences = list[list[str]]
Parts = dict[str, dict[str, Sentences]]

FORMAT = 1
# What the cached sentences depend on besides the raw text. As in torchtext's Field, words are lower-cased after
# tokenising, and spaces that spaCy makes tokens (such as the second of two) remain tokens.
TOKENISER = {"de": "spacy.blank('de').tokenizer", "en": "spacy.blank('en').tokenizer", "then": "lower case"}
LANGUAGES = ("de", "en")
PAIRS = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, as ids between BEGIN and END."""

    source: list[list[int]]
    target: list[list[int]]

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(f"{len(self.source)} sentences but {len(self.target)} translations")

    def __len__(self) -> int:
        return len(self.source)

    def first(self, pairs: int | None) -> "Pairs":
        """The first pairs; None for all."""
        return Pairs(self.source[:pairs], self.target[:pairs])


class Lines(NamedTuple):
    """Sentences and their translations as text, to read and to measure BLEU with."""

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
    """The four marks, the words that occur at least `minimum` times in the source, then the target's remaining ones."""
    words = dict.fromkeys((*MARKS, *frequent(source, minimum), *frequent(target, minimum)))
    return Vocabulary(tuple(words), UNKNOWN)


def load_multi30k(root: Path | str, minimum: int = 3, train_pairs: int | None = None) -> ParallelText:
    """Multi30k: 29,000 pairs to train on, 1,014 for validation, 1,000 for test (flickr 2016); MissingData if absent.

    minimum:      how often a word must occur in the training text of its language
    train_pairs:  train on the first pairs only; the vocabulary, and so the network, remains that of the whole
    """
    parts = tokenised_multi30k(root)
    vocabulary = merged_vocabulary(parts["train"]["de"], parts["train"]["en"], minimum)
    train, valid, test = (_pairs(vocabulary, *(parts[part][language] for language in LANGUAGES)) for part in PAIRS)
    valid_lines, test_lines = (
        Lines(*(raw_lines(root, part, language) for language in LANGUAGES)) for part in ("val", "test_2016_flickr")
    )
    return ParallelText(vocabulary, train.first(train_pairs), valid, test, valid_lines, test_lines)


def toy_pairs(train: int, valid: int, minimum: int = 1) -> ParallelText:
    """The embedded default: this many synthetic pairs, no source twice; as many in test as in valid."""
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


# --------------------------------------------------------------------------------------------------------- tokenising


def tokenised_multi30k(root: Path | str) -> Parts:
    """Part ("train", "val", "test_2016_flickr") -> language ("de", "en") -> sentences as lists of lower-case words.

    Read from the cache if that is valid, whichever version of spaCy made it; otherwise made by spaCy. MissingData if
    the raw text is missing, or if spaCy is needed and not installed.
    """
    require("multi30k", root)
    folder = Path(root) / "multi30k"
    cache, inputs = folder / "tokens.json", _inputs(folder)
    cached = _read(cache, inputs)
    if cached is not None:
        return cached
    raw = {part: {language: raw_lines(root, part, language) for language in LANGUAGES} for part in PAIRS}
    for part, texts in raw.items():
        found = {language: len(lines) for language, lines in texts.items()}
        if set(found.values()) != {PAIRS[part]}:
            raise ValueError(f"{folder}: {part} has not {PAIRS[part]:,} lines in each language but {found}")
    try:
        import spacy

        tokenisers = {language: tokeniser(language) for language in LANGUAGES}
    except ImportError as error:
        raise MissingData(
            f"multi30k: {cache} is missing or does not fit the raw text, and spaCy, which makes it, is"
            " not installed; get it with: pip install 'nero[text]', or copy that file from a machine that has it"
        ) from error
    parts = {
        part: {language: [*map(tokenisers[language], lines)] for language, lines in texts.items()}
        for part, texts in raw.items()
    }
    _write(cache, {"format": FORMAT, "inputs": inputs, "spacy": spacy.__version__, "parts": parts})
    return parts


def tokeniser(language: str) -> Callable[[str], list[str]]:
    """A function from a line to its lower-case words; ImportError without spaCy."""
    import spacy

    split = spacy.blank(language).tokenizer
    return lambda line: [token.text.lower() for token in split(line)]


def raw_lines(root: Path | str, part: str, language: str) -> list[str]:
    """The lines of one raw file of Multi30k."""
    return split_lines((Path(root) / "multi30k" / f"{part}.{language}").read_bytes().decode())


def _inputs(folder: Path) -> str:
    """A checksum of everything that the sentences are made from."""
    digest = hashlib.sha256(json.dumps(TOKENISER, sort_keys=True).encode())
    for name in (f"{part}.{language}" for part in PAIRS for language in LANGUAGES):
        content = (folder / name).read_bytes()
        digest.update(f"\n{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read(place: Path, inputs: str) -> Parts | None:
    """The sentences in an undamaged file that was made from these inputs, or None."""
    try:
        first, _, rest = place.read_bytes().partition(b"\n")
    except OSError:
        return None
    if first != _first_line(rest):
        return None
    cached = json.loads(first + rest)
    return cached["parts"] if (cached.get("format"), cached.get("inputs")) == (FORMAT, inputs) else None


def _write(place: Path, content: dict[str, object]) -> None:
    """Write atomically; only warn if that is impossible."""
    rest = json.dumps(content, ensure_ascii=False, separators=(",", ":"))[1:].encode()
    try:
        write_atomic(place, _first_line(rest) + b"\n" + rest)
    except OSError as error:
        warnings.warn(f"multi30k was tokenised but could not be cached for the next run: {error}", stacklevel=3)


def _first_line(rest: bytes) -> bytes:
    """The file's first line: a checksum of everything after it."""
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",'.encode()
