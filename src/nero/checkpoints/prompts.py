"""How a text begins, and how it is shown."""

from collections.abc import Sequence

from nero.checkpoints.loading import Unusable
from nero.data.text.corpus import END_OF_LINE
from nero.data.text.vocabulary import Vocabulary

UNKNOWN = "<unk>"


def known_words(prompt: str, vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """The prompt's words, with <unk> for those not in the vocabulary, and the latter; Unusable if there is no <unk>."""
    words = prompt.split()
    unknown = [word for word in words if word not in vocabulary.ids]
    if unknown and UNKNOWN not in vocabulary.ids:
        raise Unusable(f"{unknown[0]!r} is not in the vocabulary of {len(vocabulary):,} words, which has no {UNKNOWN}")
    return [word if word in vocabulary.ids else UNKNOWN for word in words], unknown


def as_lines(words: Sequence[str]) -> str:
    """Words with spaces between them; <eos> ends a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word == END_OF_LINE:
            lines.append([])
        else:
            lines[-1].append(word)
    return "\n".join(" ".join(line) for line in lines)
