"""Words and their numbers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows.

    words:    each once, in order of their ids: 0, 1, 2, ...
    unknown:  the id that any other word gets; None if there must be no other
    """

    words: tuple[str, ...]
    unknown: int | None = None

    def __post_init__(self) -> None:
        if len(self.ids) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"{twice!r} is more than once in the vocabulary")
        if self.unknown is not None and not 0 <= self.unknown < len(self.words):
            raise ValueError(f"the id of unknown words, {self.unknown}, is none of the {len(self.words)} in use")

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """From word to id."""
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of words; KeyError with the word if it is not there and `unknown` is None."""
        ids, unknown = self.ids, self.unknown
        if unknown is None:
            return [ids[word] for word in words]
        return [ids.get(word, unknown) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ids; IndexError if one is not in use."""
        found = list(ids)
        if found and min(found) < 0:
            raise IndexError(f"an id is not negative: {min(found)}")
        return [self.words[number] for number in found]


def frequent(sentences: Iterable[Iterable[str]], minimum: int) -> list[str]:
    """Words seen at least `minimum` times, most frequent first; those seen equally often in alphabetical order."""
    counts = Counter(chain.from_iterable(sentences))
    return sorted((word for word, count in counts.items() if count >= minimum), key=lambda word: (-counts[word], word))
