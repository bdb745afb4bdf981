"""Which experiments a sweep runs, and which part of them: `experiment=NAMES only.task=NAMES only.optim=NAMES`.

NAMES is one name, several with commas between them, or a list in brackets; null is the same as nothing at all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nero.plans.config import ConfigError

ONLY = ("only.task", "only.optim")
"""Words that choose a part of an experiment: cells of these tasks, cells of these optimisers."""

NOTHING_TO_CHOOSE_FROM = "only.task and only.optim choose a part of an experiment: add --multirun experiment=NAME"

Names = dict[str, list[str]]
CellT = TypeVar("CellT")


def take_names(words: Iterable[str], keys: Sequence[str]) -> tuple[Names, list[str]]:
    """Split a command line into the names given under `keys` and the other words; of a repeated key the last counts."""
    names: Names = {}
    others = []
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if key in keys:
            names[key] = names_in(value)
        elif key.lstrip("~").partition(".")[0] == "only" and key not in ONLY:
            raise ConfigError(f"{word}: say {ONLY[0]}=NAMES or {ONLY[1]}=NAMES for a part of an experiment")
        else:
            others.append(word)
    return {key: given for key, given in names.items() if given}, others


def names_in(value: str) -> list[str]:
    """The names that a word lists."""
    bare = re.sub(r"[\[\]'\"]", "", value)
    return [] if bare == "null" else [name.strip() for name in bare.split(",")]


def select(experiment: str, cells: Sequence[CellT], only: Mapping[str, Sequence[str]]) -> list[CellT]:
    """The cells that have one of the names under every key; ConfigError for an unknown name and where none is left."""

    def name_of(cell: CellT, key: str) -> Any:
        return getattr(cell, key.removeprefix("only."))

    for key, wanted in only.items():
        known = sorted({name_of(cell, key) for cell in cells})
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(f"{key}: {experiment} has no {unknown[0]!r}; it has: {', '.join(known)}")
    selected = [cell for cell in cells if all(name_of(cell, key) in wanted for key, wanted in only.items())]
    if not selected:
        raise ConfigError(f"{experiment} has no run with {in_words(only)}")
    return selected


def in_words(only: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{key}={','.join(names)}" for key, names in only.items())
