"""Multi30k in words: tokenised once by spaCy, then kept in a file, so that most runs need no spaCy.

The file, multi30k/tokens.json under the data root, fits as long as the raw text and the way of tokenising are the same.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path

from nero.atomic import write_atomic
from nero.data.sources import MissingData, require

Sentences = list[list[str]]
Parts = dict[str, dict[str, Sentences]]

FORMAT = 1
# What the sentences depend on beside the raw text. As torchtext's Field does it, words are lower-cased after
# tokenising, and spaces that spaCy makes tokens of (the second of two, say) remain tokens.
TOKENISER = {"de": "spacy.blank('de').tokenizer", "en": "spacy.blank('en').tokenizer", "then": "lower case"}
LANGUAGES = ("de", "en")
PAIRS = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


def tokenised_multi30k(root: Path | str) -> Parts:
    """Part ("train", "val", "test_2016_flickr") -> language ("de", "en") -> sentences as lists of lower-case words.

    Read from the kept file if it fits, whichever version of spaCy made it, and made by spaCy if it is missing, stale or
    damaged. MissingData if the raw text is not there, or if spaCy is needed and not installed.
    """
    require("multi30k", root)
    folder = Path(root) / "multi30k"
    inputs = _inputs(folder)
    kept = _read(folder / "tokens.json", inputs)
    if kept is not None:
        return kept
    raw = {part: {language: raw_lines(root, part, language) for language in LANGUAGES} for part in PAIRS}
    for part, texts in raw.items():
        found = {language: len(lines) for language, lines in texts.items()}
        if set(found.values()) != {PAIRS[part]}:
            raise ValueError(f"{folder}: {part} has not {PAIRS[part]:,} lines in each language but {found}")
    parts, version = _tokenise(raw, folder)
    _write(folder / "tokens.json", inputs, version, parts)
    return parts


def tokeniser(language: str) -> Callable[[str], list[str]]:
    """What makes lower-case words of a line; ImportError without spaCy."""
    import spacy

    split = spacy.blank(language).tokenizer
    return lambda line: [token.text.lower() for token in split(line)]


def raw_lines(root: Path | str, part: str, language: str) -> list[str]:
    """The lines of one raw file of Multi30k. Only \\n ends a line, not the other signs that str.splitlines goes by."""
    text = (Path(root) / "multi30k" / f"{part}.{language}").read_bytes().decode()
    return text.removesuffix("\n").split("\n") if text else []


def _inputs(folder: Path) -> str:
    """A checksum over all that the sentences are made from."""
    digest = hashlib.sha256(json.dumps(TOKENISER, sort_keys=True).encode())
    for name in (f"{part}.{language}" for part in PAIRS for language in LANGUAGES):
        content = (folder / name).read_bytes()
        digest.update(f"\n{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _tokenise(raw: dict[str, dict[str, list[str]]], folder: Path) -> tuple[Parts, str]:
    """Sentences, and the version of spaCy that made them."""
    try:
        import spacy

        tokenisers = {language: tokeniser(language) for language in LANGUAGES}
    except ImportError as error:
        raise MissingData(
            f"multi30k: {folder / 'tokens.json'} is missing or does not fit the raw text, and spaCy, which makes it, is"
            " not installed; get it with: pip install 'nero[text]', or copy that file from a machine that has it"
        ) from error
    parts = {
        part: {language: [*map(tokenisers[language], lines)] for language, lines in texts.items()}
        for part, texts in raw.items()
    }
    return parts, spacy.__version__


def _read(place: Path, inputs: str) -> Parts | None:
    """The sentences in a file that is whole and was made from these inputs, or None."""
    try:
        first, _, rest = place.read_bytes().partition(b"\n")
    except OSError:
        return None
    if first != _first_line(rest):
        return None
    kept = json.loads(first + rest)
    return kept["parts"] if (kept.get("format"), kept.get("inputs")) == (FORMAT, inputs) else None


def _write(place: Path, inputs: str, version: str, parts: Parts) -> None:
    """Keep the sentences, whole or not at all; where that is impossible, a warning."""
    kept = {"format": FORMAT, "inputs": inputs, "spacy": version, "parts": parts}
    rest = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))[1:].encode()
    try:
        write_atomic(place, _first_line(rest) + b"\n" + rest)
    except OSError as error:
        warnings.warn(f"multi30k was tokenised but could not be kept for the next run: {error}", stacklevel=3)


def _first_line(rest: bytes) -> bytes:
    """How the file begins: the checksum of all that follows the first line, so that damage anywhere shows."""
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",'.encode()
