"""Lines, words and their ids."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows, in the order of their ids. unknown: the id of any other word, if allowed."""

    words: tuple[str, ...]
    unknown: int | None = None

    def __post_init__(self) -> None:
        if len(self.ids) < len(self.words):
            duplicate = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"{duplicate!r} is more than once in the vocabulary")
        if self.unknown is not None and not 0 <= self.unknown < len(self.words):
            raise ValueError(f"the id of unknown words, {self.unknown}, is none of the {len(self.words)} in use")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words; KeyError for a word that is not in the vocabulary if `unknown` is None."""
        ids, unknown = self.ids, self.unknown
        return [ids[word] for word in words] if unknown is None else [ids.get(word, unknown) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ids; IndexError for an id that is not in use."""
        found = list(ids)
        if found and min(found) < 0:
            raise IndexError(f"an id is not negative: {min(found)}")
        return [self.words[number] for number in found]


def frequent(sentences: Iterable[Iterable[str]], minimum: int) -> list[str]:
    """Words that occur at least `minimum` times, by falling frequency, ties in alphabetical order."""
    counts = Counter(chain.from_iterable(sentences))
    return sorted((word for word, count in counts.items() if count >= minimum), key=lambda word: (-counts[word], word))


def split_lines(text: str) -> list[str]:
    """Only \\n ends a line, unlike in str.splitlines."""
    return text.removesuffix("\n").split("\n") if text else []
