"""German sentences to translate: a part of the data that a run trained on, or anybody's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nero.checkpoints.loading import Unusable
from nero.data.text.tokenised import tokeniser
from nero.tasks.base import Context
from nero.tasks.translation import load_text

PARTS = {"test": "test_2016_flickr", "val": "val"}
"""Parts of the data, and Multi30k's names for them."""


@dataclass(frozen=True)
class Part:
    """Sentences with their translations.

    ids:      of the source's words, BEGIN in front and END behind
    sources, references:  the lines as they were written
    """

    name: str
    ids: list[list[int]]
    sources: list[str]
    references: list[str]


def load_part(context: Context, settings: Mapping[str, Any], part: str) -> Part:
    """`test` or `val` of the text that a task with these settings has."""
    text = load_text(context, settings["minimum_count"], settings.get("train_examples"))
    pairs, lines = (text.test, text.test_lines) if part == "test" else (text.valid, text.valid_lines)
    name = PARTS[part] if context.data == "real" else f"embedded {part}"
    return Part(name, pairs.source, lines.source, lines.target)


def split_words(lines: Sequence[str], data: str) -> list[list[str]]:
    """Words of one's own lines, made as those of the `real` or `embedded` data were; Unusable without spaCy."""
    if data == "embedded":
        return [line.split() for line in lines]
    try:
        tokenise = tokeniser("de")
    except ImportError as error:
        raise Unusable(
            "sentences of your own are split by spaCy, which is not installed; get it with: pip install 'nero[text]'"
        ) from error
    return [tokenise(line) for line in lines]
