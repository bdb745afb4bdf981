"""Runs that were logged without wandb, mirrored there afterwards, from their own lines."""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nero.atomic import write_atomic
from nero.runs.logged import LoggedRun
from nero.runs.store import Status, is_settled
from nero.runs.tracking import WandbMirror

SYNCED = "wandb-synced.json"
"""In a run's directory: which state of it was mirrored where."""


class MirrorFailed(RuntimeError):
    """What wandb said, in one line."""


@dataclass(frozen=True)
class Mirrored:
    """A run and what became of it."""

    run: LoggedRun
    words: str
    is_new: bool = False

    def __str__(self) -> str:
        return f"{self.run.run_id}: {self.words}"


@dataclass(frozen=True)
class Destination:
    """Where runs are mirrored to. Offline, files are written into the run's directory, for `wandb sync` to send."""

    project: str = "nero"
    entity: str | None = None
    mode: str = "offline"

    @property
    def name(self) -> str:
        return f"{self.mode} {self.entity or ''}/{self.project}"


def mirror(
    runs: Iterable[LoggedRun], destination: Destination, every: bool = False, again: bool = False
) -> Iterator[Mirrored]:
    """Each run in turn, as it is done. Only settled ones, but for `every`; `again` also those that have not changed."""
    there = WandbMirror(destination.project, destination.mode, destination.entity, replay=True)
    for run in runs:
        if not every and not is_settled(run.summary):
            yield Mirrored(run, f"{run.standing}: passed over, --all takes it too")
        elif run.directory.is_held():
            yield Mirrored(run, "passed over: a process is writing it")
        else:
            state, before = _state(run), _synced(run)
            if before.get(destination.name, {}).get("sha256") == state and not again:
                yield Mirrored(run, "already there")
                continue
            try:
                lines = _replay(run, there)
            except there.wandb.Error as error:
                raise MirrorFailed(f"wandb: {' '.join(str(error).split())}") from error
            entry = {"sha256": state, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            synced = {**before, destination.name: entry}
            write_atomic(run.directory.path / SYNCED, (json.dumps(synced, indent=2) + "\n").encode())
            yield Mirrored(run, f"{lines} lines", is_new=True)


def _replay(run: LoggedRun, there: WandbMirror) -> int:
    """Tell the mirror what a tracker is told while a run goes on; how many lines that was."""
    summary = run.summary
    metric: Mapping[str, Any] = summary.get("metric") or {}
    there.start(run.run_id, run.directory.path, run.config, summary.get("epochs") or 0, 0, metric.get("key", ""))
    lines = run.directory.read_metrics()
    try:
        for record in lines:
            there.epoch(record)
    except BaseException:
        there.finish({**summary, "status": Status.FAILED})  # which wandb is told by a status of its own
        raise
    there.finish(summary)
    return len(lines)


def _state(run: LoggedRun) -> str:
    """A checksum of all that is mirrored of a run."""
    digest = hashlib.sha256()
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        try:
            data = (run.directory.path / name).read_bytes()
        except FileNotFoundError:
            data = b""
        digest.update(f"{name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _synced(run: LoggedRun) -> dict[str, dict[str, str]]:
    """Destination -> what was mirrored there; nothing where that cannot be read, so that it is mirrored once more."""
    try:
        synced = json.loads((run.directory.path / SYNCED).read_bytes())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in synced.items() if isinstance(value, dict)} if isinstance(synced, dict) else {}
