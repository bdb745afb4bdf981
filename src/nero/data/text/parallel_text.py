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
from typing import Generic, TypeVar

from nero.atomic import write_atomic
from nero.data.sources import MissingData, require
from nero.data.synthetic.translation import translation_pairs
from nero.data.text.vocabulary import Vocabulary, frequent, split_lines

T = TypeVar("T")

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
class Pairs(Generic[T]):
    """Sentences and their translations, as ids between BEGIN and END or as text."""

    source: list[T]
    target: list[T]

    def __len__(self) -> int:
        return len(self.source)

    def first(self, pairs: int | None) -> "Pairs[T]":
        """The first pairs; None for all."""
        return Pairs(self.source[:pairs], self.target[:pairs])


@dataclass(frozen=True)
class ParallelText:
    """A translation data set; lines are the text as written, to read and to measure BLEU with."""

    vocabulary: Vocabulary
    train: Pairs[list[int]]
    valid: Pairs[list[int]]
    test: Pairs[list[int]]
    valid_lines: Pairs[str]
    test_lines: Pairs[str]


def load_multi30k(root: Path | str, minimum: int = 3, train_pairs: int | None = None) -> ParallelText:
    """Multi30k: 29,000 pairs to train on, 1,014 for validation, 1,000 for test (flickr 2016); MissingData if absent.

    minimum:      how often a word must occur in the training text of its language
    train_pairs:  train on the first pairs only; the vocabulary, and so the network, remains that of the whole
    """
    parts = tokenised_multi30k(root)
    words = [Pairs(*(parts[part][language] for language in LANGUAGES)) for part in PAIRS]
    _, *lines = (Pairs(*(raw_lines(root, part, language) for language in LANGUAGES)) for part in PAIRS)
    return _parallel_text(words, lines, minimum, train_pairs)


def toy_pairs(train: int, valid: int, minimum: int = 1) -> ParallelText:
    """The embedded default: this many synthetic pairs, no source twice; as many in test as in valid."""
    drawn = translation_pairs(0, train + 2 * valid)
    parts = drawn[:train], drawn[train : train + valid], drawn[train + valid :]
    lines = [Pairs(*([pair[side] for pair in part] for side in (0, 1))) for part in parts]
    words = [Pairs(*([line.split() for line in side] for side in (part.source, part.target))) for part in lines]
    return _parallel_text(words, lines[1:], minimum)


def _parallel_text(
    words: Sequence[Pairs[list[str]]], lines: Sequence[Pairs[str]], minimum: int, train_pairs: int | None = None
) -> ParallelText:
    vocabulary = merged_vocabulary(words[0].source, words[0].target, minimum)

    def encoded(sentences: Sentences) -> list[list[int]]:
        return [[BEGIN, *vocabulary.encode(sentence), END] for sentence in sentences]

    train, valid, test = (Pairs(encoded(part.source), encoded(part.target)) for part in words)
    return ParallelText(vocabulary, train.first(train_pairs), valid, test, *lines)


def merged_vocabulary(source: Iterable[Iterable[str]], target: Iterable[Iterable[str]], minimum: int) -> Vocabulary:
    """The four marks, the words that occur at least `minimum` times in the source, then the target's remaining ones."""
    words = dict.fromkeys((*MARKS, *frequent(source, minimum), *frequent(target, minimum)))
    return Vocabulary(tuple(words), UNKNOWN)


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
    except ImportError as error:
        raise MissingData(
            f"multi30k: {cache} is missing or does not fit the raw text, and spaCy, which makes it, is"
            " not installed; get it with: pip install -e '.[suite]', or copy that file from a machine that has it"
        ) from error
    tokenisers = {language: tokeniser(language) for language in LANGUAGES}
    parts = {
        part: {language: [*map(tokenisers[language], lines)] for language, lines in texts.items()}
        for part, texts in raw.items()
    }
    content = {"format": FORMAT, "inputs": inputs, "spacy": spacy.__version__, "parts": parts}
    rest = json.dumps(content, ensure_ascii=False, separators=(",", ":"))[1:].encode()
    try:
        write_atomic(cache, _first_line(rest) + b"\n" + rest)
    except OSError as error:
        warnings.warn(f"multi30k was tokenised but could not be cached for the next run: {error}", stacklevel=2)
    return parts


def tokeniser(language: str) -> Callable[[str], list[str]]:
    """A function from a line to its lower-case words; ImportError without spaCy."""
    import spacy

    split = spacy.blank(language).tokenizer
    return lambda line: [token.text.lower() for token in split(line)]


def raw_lines(root: Path | str, part: str, language: str) -> list[str]:
    """The lines of one raw file of Multi30k."""
    return split_lines(Path(root, "multi30k", f"{part}.{language}").read_bytes().decode())


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


def _first_line(rest: bytes) -> bytes:
    """The file's first line: a checksum of everything after it."""
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",'.encode()
