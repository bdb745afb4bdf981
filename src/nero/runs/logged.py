"""Logged runs: their state, and how to select them by name or by settings."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from nero.runs.store import Record, RunDirectory, Status, Store, is_settled

UNFINISHED = "unfinished"
"""`running` without a process: the run was interrupted."""

UNMEASURED = "unmeasured"
"""Done without its metric (see `is_settled`)."""

STANDINGS = (*(status.value for status in Status), UNFINISHED, UNMEASURED)


class UnknownRun(ValueError):
    """No run has this name, or more than one; the message is one line."""


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
        """One of `STANDINGS`: the status, with `unfinished` for `running` without a process."""
        status = Status(self.summary["status"])
        if status is Status.RUNNING:
            return status.value if self.directory.is_held() else UNFINISHED
        return UNMEASURED if status is Status.DONE and not is_settled(self.summary) else status.value

    @cached_property
    def config(self) -> Record:
        """Empty if config.yaml is unreadable."""
        return self.directory.find_config() or {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config with dotted keys, such as optim.beta."""
        return dotted(self.config)


def logged_runs(store: Store) -> list[LoggedRun]:
    """Every run with a readable summary, sorted by id."""
    found = ((run, run.read_summary()) for run in store.runs())
    runs = [LoggedRun(run, summary) for run, summary in found if summary is not None]
    return sorted(runs, key=lambda run: run.run_id)


def dotted(settings: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: {"optim": {"lr": 1}} -> {"optim.lr": 1}. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        found |= dotted(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return found


def named(runs: Sequence[LoggedRun], word: str) -> LoggedRun:
    """The run with this id, else the only one whose id begins with `word`, else the only one whose id contains it."""
    word = word.rstrip("/").rpartition("/")[2]  # the path of a run's directory ends with its id
    for fits in (str.__eq__, str.startswith, str.__contains__):
        found = [run.run_id for run in runs if fits(run.run_id, word)]
        if len(found) == 1:
            return next(run for run in runs if run.run_id == found[0])
        if found:
            more = f" and {len(found) - 12} more" if len(found) > 12 else ""
            raise UnknownRun(f"{word!r} may be any of {len(found)} runs: {', '.join(found[:12])}{more}")
    raise UnknownRun(f"no run is called {word!r}")


@dataclass(frozen=True)
class Choice:
    """A selection of runs: those that match all filters. An empty filter matches everything.

    tasks, optims:  shell patterns
    settings:       dotted keys of config.yaml, each with its required value
    """

    tasks: Sequence[str] = ()
    optims: Sequence[str] = ()
    lrs: Sequence[float] = ()
    seeds: Sequence[int] = ()
    standings: Sequence[str] = ()
    data: Sequence[str] = ()
    settings: Sequence[tuple[str, Any]] = ()

    def of(self, runs: Iterable[LoggedRun]) -> list[LoggedRun]:
        return [run for run in runs if self._matches(run)]

    def _matches(self, run: LoggedRun) -> bool:
        exact = {"lr": self.lrs, "seed": self.seeds, "data": self.data}
        patterns = {"task": self.tasks, "optim": self.optims}
        summary = run.summary
        return (
            all(not values or summary.get(key) in values for key, values in exact.items())
            and all(not names or _fits(str(summary.get(key)), names) for key, names in patterns.items())
            and (not self.standings or run.standing in self.standings)
            # Last: reading a config takes longer than all the rest.
            and all(key in run.settings and same_value(run.settings[key], value) for key, value in self.settings)
        )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def same_value(one: Any, other: Any) -> bool:
    """1 equals 1.0; true does not equal 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def setting(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE, with a YAML value. ValueError if either is missing."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"must be KEY=VALUE, not {text!r}")
    try:
        return key, float(value)  # first, because YAML reads 1e-3 as a string
    except ValueError:
        pass
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value
