"""Runs as people look for them: what each is, how it stands right now, and which one a few letters mean."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from nero.runs.store import Record, RunDirectory, Status, Store, is_settled

UNFINISHED = "unfinished"
"""A run that was cut off: `running`, and no process has it."""

UNMEASURED = "unmeasured"
"""A run that came to its end without what it is measured by (see `is_settled`)."""

STANDINGS = (*(status.value for status in Status), UNFINISHED, UNMEASURED)


class UnknownRun(ValueError):
    """No run has such a name, or more than one; said in one line."""


@dataclass(frozen=True)
class LoggedRun:
    """A run of a store with its summary."""

    directory: RunDirectory
    summary: Record

    @property
    def run_id(self) -> str:
        return self.directory.run_id

    @cached_property
    def standing(self) -> str:
        """Its status, with a run that a process has right now told from one that was cut off."""
        status = Status(self.summary["status"])
        if status is Status.RUNNING:
            return status.value if self.directory.is_held() else UNFINISHED
        return UNMEASURED if status is Status.DONE and not is_settled(self.summary) else status.value

    @cached_property
    def config(self) -> Record:
        """Empty where config.yaml cannot be read."""
        return self.directory.config_there() or {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys, such as optim.beta."""
        return dotted(self.config)


def logged_runs(store: Store) -> list[LoggedRun]:
    """Every run whose summary can be read, in order of its id."""
    found = ((run, run.read_summary()) for run in store.runs())
    runs = [LoggedRun(run, summary) for run, summary in found if summary is not None]
    return sorted(runs, key=lambda run: run.run_id)


def dotted(settings: Mapping[Any, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one: {"optim": {"lr": 1}} -> {"optim.lr": 1}. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        found |= dotted(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return found


def named(runs: Sequence[LoggedRun], word: str) -> LoggedRun:
    """The run with this id, else the only one whose id begins with it, else the only one whose id contains it."""
    word = word.rstrip("/").rpartition("/")[2]  # a path of a run's directory ends with its id
    for fits in (str.__eq__, str.startswith, str.__contains__):
        found = [run for run in runs if fits(run.run_id, word)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownRun(f"{word!r} may be any of {len(found)} runs: {_in_words([run.run_id for run in found])}")
    raise UnknownRun(f"no run is called {word!r}")


def _in_words(names: Iterable[str], most: int = 12) -> str:
    words = list(names)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


@dataclass(frozen=True)
class Choice:
    """Which runs are meant: of each kind of word any, and all kinds together. What is empty asks for nothing.

    settings:  dotted keys of config.yaml and the value that each must have
    """

    tasks: Sequence[str] = ()  # patterns, as are optimisers
    optims: Sequence[str] = ()
    lrs: Sequence[float] = ()
    seeds: Sequence[int] = ()
    standings: Sequence[str] = ()
    data: Sequence[str] = ()
    settings: Sequence[tuple[str, Any]] = ()

    def of(self, runs: Iterable[LoggedRun]) -> list[LoggedRun]:
        return [run for run in runs if self._summary_fits(run) and self._config_fits(run)]

    def _summary_fits(self, run: LoggedRun) -> bool:
        summary = run.summary
        return (
            _matches(summary.get("task"), self.tasks)
            and _matches(summary.get("optim"), self.optims)
            and (not self.lrs or summary.get("lr") in self.lrs)
            and (not self.seeds or summary.get("seed") in self.seeds)
            and (not self.data or summary.get("data") in self.data)
            and (not self.standings or run.standing in self.standings)
        )

    def _config_fits(self, run: LoggedRun) -> bool:
        # Asked last: reading a config takes longer than all the rest.
        return all(key in run.settings and same_value(run.settings[key], value) for key, value in self.settings)


def _matches(name: Any, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(str(name), pattern) for pattern in patterns)


def same_value(one: Any, other: Any) -> bool:
    """1 and 1.0 are the same, true and 1 are not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as YAML has it; ValueError for a text without both."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"must be KEY=VALUE, not {text!r}")
    try:
        return key, float(value) if _is_number(value) else yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value


def _is_number(text: str) -> bool:
    """YAML takes 1e-3 for a word."""
    try:
        float(text)
    except ValueError:
        return False
    return True
