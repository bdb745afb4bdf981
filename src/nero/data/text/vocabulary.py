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
        return [self.words[number] for number in ids]


def frequent(sentences: Iterable[Iterable[str]], minimum: int) -> list[str]:
    """Words that occur at least `minimum` times, by falling frequency, ties in alphabetical order."""
    counts = Counter(chain.from_iterable(sentences))
    return sorted((word for word, count in counts.items() if count >= minimum), key=lambda word: (-counts[word], word))


def split_lines(text: str) -> list[str]:
    """Only \\n ends a line, unlike in str.splitlines."""
    return text.removesuffix("\n").split("\n") if text else []
