"""Logged runs: their status, and how to select them by name or by settings."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import yaml

from nero.runs.store import Record, RunDirectory, Status, Store, is_settled
from nero.runs.validation import printable

MOST_NAMED = 20  # runs that were left out
UNFINISHED = "unfinished"  # `running` without a process: the run was interrupted
UNMEASURED = "unmeasured"  # ended without its metric (see `is_settled`)
STATUSES = (*(status.value for status in Status), UNFINISHED, UNMEASURED)


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
    def status(self) -> str:
        """One of `STATUSES`: the summary's, with `unfinished` for `running` without a process.

        A run that ended with a metric that is not finite is `diverged`, as in tables.
        """
        status = str(self.summary["status"])
        if status == Status.RUNNING and not self.directory.is_held():
            return UNFINISHED
        if status != Status.DONE or self.summary.get("final") is not None:
            return status
        return str(Status.DIVERGED) if is_settled(self.summary) else UNMEASURED

    @cached_property
    def config(self) -> Record:
        """Empty if config.yaml is unreadable."""
        return self.directory.find_config() or {}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config with dotted keys, such as optim.beta."""
        return dotted(self.config)


def logged_runs(store: Store, *files: str, only: Collection[str] | None = None) -> list[LoggedRun]:
    """The runs of `store.read`, sorted by id."""
    runs = (LoggedRun(run, summary) for run, summary in store.read(*files, only=only))
    return sorted(runs, key=lambda run: run.run_id)


def name_left_out(*stores: Store) -> int:
    """Name the runs that were left out of what was read, and why, on stderr. The exit status: 1 if there are any."""
    found = {path: why for store in stores for path, why in store.left_out.items()}
    for path, why in list(found.items())[:MOST_NAMED]:
        print(printable(f"left out: {path}: {why}"), file=sys.stderr)
    if len(found) > MOST_NAMED:
        print(f"left out: {len(found) - MOST_NAMED} more runs, which `nero runs check` names", file=sys.stderr)
    return int(bool(found))


def dotted(settings: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: {"optim": {"lr": 1}} -> {"optim.lr": 1}. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        found |= dotted(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return found


def named(runs: Sequence[LoggedRun], word: str) -> LoggedRun:
    """The run that `matching_id` finds."""
    by_id = {run.run_id: run for run in runs}
    return by_id[matching_id(by_id, word)]


def matching_id(ids: Iterable[str], word: str) -> str:
    """This id, else the only one that begins with `word`, else the only one that contains it, such as its hash."""
    word = word.rstrip("/").rpartition("/")[2]  # the path of a run's directory ends with its id
    known = sorted(ids)
    for fits in (str.__eq__, str.startswith, str.__contains__):
        found = [run_id for run_id in known if fits(run_id, word)]
        if len(found) == 1:
            return found[0]
        if found:
            more = f" and {len(found) - 12} more" if len(found) > 12 else ""
            raise UnknownRun(f"{word!r} may be any of {len(found)} runs: {', '.join(found[:12])}{more}")
    raise UnknownRun(f"no run is called {word!r}")


def select(
    runs: Iterable[LoggedRun], settings: Sequence[tuple[str, Any]] = (), **allowed: Sequence[Any]
) -> list[LoggedRun]:
    """The runs that match every filter.

    settings:  dotted keys of config.yaml, each with its required value
    allowed:   values of `status` or of a key of the summary, any if empty; strings are shell patterns
    """

    def matches(run: LoggedRun) -> bool:
        values = {**run.summary, "status": run.status} if allowed.get("status") else run.summary
        return all(
            not wanted or any(_fits(values.get(key), value) for value in wanted) for key, wanted in allowed.items()
        ) and all(key in run.settings and same_value(run.settings[key], value) for key, value in settings)

    return [run for run in runs if matches(run)]


def _fits(value: Any, wanted: Any) -> bool:
    return fnmatchcase(str(value), wanted) if isinstance(wanted, str) else bool(value == wanted)


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
    for parse in (float, yaml.safe_load):  # float first, because YAML reads 1e-3 as a string
        try:
            return key, parse(value)
        except (ValueError, yaml.YAMLError):
            pass
    return key, value
