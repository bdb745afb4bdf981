"""German sentences to translate: a part of the data that a run trained on, or anybody's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nero.data.synthetic import translation_pairs
from nero.data.tokenised import raw_lines
from nero.decoding.trained import Unusable
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
    pairs, name = (text.test if part == "test" else text.valid), PARTS[part]
    if context.data == "real":
        sources, references = (raw_lines(context.data_root, name, language) for language in ("de", "en"))
        return Part(name, pairs.source, sources, references)
    # Embedded pairs are one list, of which training has the first, then come validation and test.
    first = len(text.train) + (len(text.valid) if part == "test" else 0)
    drawn = translation_pairs(0, first + len(pairs))[first:]
    return Part(f"embedded {part}", pairs.source, [german for german, _ in drawn], [english for _, english in drawn])


def split_words(lines: Sequence[str], data: str) -> list[list[str]]:
    """Words of one's own lines, made as those of the `real` or `embedded` data were; Unusable without spaCy."""
    if data == "embedded":
        return [line.split() for line in lines]
    try:
        import spacy
    except ImportError as error:
        raise Unusable(
            "sentences of your own are split by spaCy, which is not installed; get it with: pip install 'nero[text]'"
        ) from error
    tokenise = spacy.blank("de").tokenizer
    return [[token.text.lower() for token in tokenise(line)] for line in lines]
