"""The store: one directory per run, readable after a kill at any moment. The only source of truth for the report.

<root>/<task>/<run id>/
    config.yaml        what the run is: the resolved config that its id is a hash of
    provenance.jsonl   one line per start: commit, versions, device, command
    metrics.jsonl      one line per epoch, append-only
    pictures/          what some tasks show of an epoch: <name>-epoch<number>.<format>
    summary.json       status and final metrics, replaced atomically
    checkpoint*        the newest two states to resume from, and an index with their checksums
    lock               who is writing (see `nero.runs.lock`)
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from nero.atomic import write_atomic
from nero.runs.lock import exclusive, is_held

Record = dict[str, Any]
PICTURES = "pictures"


class Status(StrEnum):
    """How a run stands. `running` without a lock holder is a run that was cut off and will be resumed."""

    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"


SETTLED = frozenset({Status.DONE, Status.DIVERGED})
"""Statuses that are results: such a run is never run again, once it is measured."""


def is_settled(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run has its result.

    One that came to its end without what it is to be measured by, such as the weights of a network that judges it, has
    none yet: its metric is not there at all, where a value that was not finite is there as null.
    """
    if not summary or summary["status"] not in SETTLED:
        return False
    return summary["status"] == Status.DIVERGED or summary["metric"]["key"] in summary["final_metrics"]


class Store:
    """All runs under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def run(self, task: str, run_id: str) -> "RunDirectory":
        return RunDirectory(self.root / task / run_id)

    def runs(self) -> "list[RunDirectory]":
        """Every run directory that has a summary, in order of its path."""
        return [RunDirectory(path.parent) for path in sorted(self.root.glob("*/*/summary.json"))]

    def summaries(self) -> dict[str, Record]:
        """Run id -> summary. A summary that cannot be read counts as absent: the run will be resumed."""
        found = ((run.run_id, run.read_summary()) for run in self.runs())
        return {run_id: summary for run_id, summary in found if summary is not None}


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return self.path.name

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold this run, or raise `RunBusy`."""
        self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path / "lock"):
            yield

    def is_held(self) -> bool:
        return is_held(self.path / "lock")

    # config and provenance

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_atomic(self.path / "config.yaml", yaml.safe_dump(dict(config), sort_keys=True).encode())

    def read_config(self) -> Record:
        config: Record = yaml.safe_load((self.path / "config.yaml").read_text())
        return config

    def add_provenance(self, provenance: Mapping[str, Any]) -> None:
        self._append("provenance.jsonl", provenance)

    def read_provenance(self) -> list[Record]:
        return _read_lines(self.path / "provenance.jsonl")

    # metrics

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one epoch's line. `record` has at least `epoch`, counted from 1."""
        self._append("metrics.jsonl", record)

    def read_metrics(self) -> list[Record]:
        """Every whole line in order; a line that a kill cut off is passed over."""
        return _read_lines(self.path / "metrics.jsonl")

    def keep_metrics(self, epochs: int) -> None:
        """Before resuming after `epochs` whole epochs: drop later lines and damaged ones, which will be made again."""
        self._write_metrics([record for record in self.read_metrics() if record["epoch"] <= epochs])

    def replace_last_metrics(self, record: Mapping[str, Any]) -> None:
        """Put another line in the place of the last, whole or not at all."""
        self._write_metrics([*self.read_metrics()[:-1], record])

    def _write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_atomic(self.path / "metrics.jsonl", b"".join(_line(record) for record in records))

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        # One write of one whole line: another reader sees all of it or, after a kill, a tail that is passed over.
        descriptor = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, _line(record))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # pictures

    def write_picture(self, name: str, epoch: int, data: bytes) -> None:
        """Keep a picture file such as `samples.jpg` of an epoch; one of the same epoch is replaced."""
        stem, _, suffix = name.rpartition(".")
        (self.path / PICTURES).mkdir(exist_ok=True)
        write_atomic(self.path / PICTURES / f"{stem}-epoch{epoch:04}.{suffix}", data)

    def pictures(self, stem: str) -> dict[int, Path]:
        """Epoch -> file of the pictures of one name, in order of epochs."""
        found = sorted((self.path / PICTURES).glob(f"{stem}-epoch[0-9]*.*"))
        numbers = (path.stem.removeprefix(f"{stem}-epoch") for path in found)
        return {int(number): path for number, path in zip(numbers, found, strict=True) if number.isdigit()}

    # summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        text = json.dumps(_strict(dict(summary)), indent=2, sort_keys=True, allow_nan=False)
        write_atomic(self.path / "summary.json", (text + "\n").encode())

    def read_summary(self) -> Record | None:
        try:
            summary = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return None
        return summary if isinstance(summary, dict) else None

    def status(self) -> Status | None:
        """None for a run that never started."""
        summary = self.read_summary()
        return Status(summary["status"]) if summary else None

    # checkpoints

    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None:
        """Keep `data` as the newest state; the one before it stays until the next is whole."""
        name = "checkpoint-" + "-".join(f"{key}{value}" for key, value in position.items()) + ".pt"
        entry = {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "position": dict(position)}
        # The same position may be saved again (a resume that stops at once): its old entry is replaced, not kept twice.
        kept = [entry, *(old for old in self._checkpoint_index() if old["file"] != name)][:2]
        write_atomic(self.path / name, data)
        write_atomic(self.path / "checkpoint.json", json.dumps(kept).encode())
        names = {old["file"] for old in kept}
        for path in self.path.glob("checkpoint-*.pt"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def load_checkpoint(self) -> bytes | None:
        """The newest state whose checksum holds, or None."""
        for entry in self._checkpoint_index():
            path = self.path / str(entry["file"])
            try:
                data = path.read_bytes()
            except OSError:
                continue
            if hashlib.sha256(data).hexdigest() == entry["sha256"]:
                return data
        return None

    def drop_checkpoints(self) -> None:
        """For a settled run that does not keep its final state."""
        (self.path / "checkpoint.json").unlink(missing_ok=True)
        for path in self.path.glob("checkpoint-*.pt"):
            path.unlink(missing_ok=True)

    def _checkpoint_index(self) -> list[Record]:
        try:
            index = json.loads((self.path / "checkpoint.json").read_text())
        except (OSError, ValueError):
            return []
        return [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else []


class UnwrittenRun(RunDirectory):
    """A run that another process writes: what this one would write is left out, and there is nothing to read."""

    def write_config(self, config: Mapping[str, Any]) -> None: ...
    def add_provenance(self, provenance: Mapping[str, Any]) -> None: ...
    def append_metrics(self, record: Mapping[str, Any]) -> None: ...
    def keep_metrics(self, epochs: int) -> None: ...
    def replace_last_metrics(self, record: Mapping[str, Any]) -> None: ...
    def write_picture(self, name: str, epoch: int, data: bytes) -> None: ...
    def write_summary(self, summary: Mapping[str, Any]) -> None: ...
    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None: ...
    def drop_checkpoints(self) -> None: ...

    def read_metrics(self) -> list[Record]:
        return []

    def read_summary(self) -> Record | None:
        return None

    def load_checkpoint(self) -> bytes | None:
        return None


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(_strict(dict(record)), allow_nan=False) + "\n").encode()


def _strict(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, which every reader takes for missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _read_lines(path: Path) -> list[Record]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return [record for record in _parsed(lines) if isinstance(record, dict)]


def _parsed(lines: list[bytes]) -> list[Any]:
    """What is in each whole line. All at once, which takes a third of the time, unless one of them is damaged."""
    try:
        parsed: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        parsed = []
    return parsed if len(parsed) == len(lines) else [value for line in lines for value in _parsed_line(line)]


def _parsed_line(line: bytes) -> list[Any]:
    try:
        return [json.loads(line)]
    except ValueError:
        return []
