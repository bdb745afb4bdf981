"""The store: one directory per run, readable after a kill at any moment. The only source of truth for the report.

<root>/<task>/<run id>/
    config.yaml        the resolved config whose hash is part of the run id
    provenance.jsonl   one line per start: commit, versions, device, command
    metrics.jsonl      one line per epoch, append-only
    pictures/          images of some tasks: <name>-epoch<number>.<format>
    summary.json       status and final metrics, replaced atomically
    checkpoint*        the newest two checkpoints, and an index with their checksums
    lock               which process is writing (see `nero.runs.lock`)
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from nero.atomic import write_atomic
from nero.runs.lock import Held, exclusive, is_held
from nero.runs.records import append_line, encode, is_metrics, parse_line, parse_lines

Record = dict[str, Any]
# Safe YAML; the C version, where PyYAML has it, is ten times faster.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VERSION = 1  # version of the keys of summary.json. Summaries of other versions are never read nor overwritten.
# Types of the keys that every readable summary has.
REQUIRED: dict[tuple[type, ...], tuple[str, ...]] = {
    (str,): ("run_id", "task", "optim"),
    (int,): ("seed", "epochs_done"),
    (int, float): ("lr", "seconds"),
    (dict,): ("final_metrics",),
}


class Status(StrEnum):
    """State of a run. `running` without a lock holder means interrupted: the next call resumes it."""

    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"


class Outcome(StrEnum):
    """How one attempt to train a run ended. The first three are also the run's status."""

    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # asked to stop; the same command resumes it
    BUSY = "busy"  # another process is writing the run
    REFUSED = "refused"  # the config cannot be run here


# Statuses that are results: a settled run is never run again, once it is measured.
SETTLED = frozenset({Status.DONE, Status.DIVERGED})


def is_settled(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run has its result.

    A run that ended without its metric (such as FID without Inception weights) is not settled: the metric's key is
    missing from `final_metrics`. A metric that is not finite is there as null.
    """
    if not summary or summary.get("status") not in tuple(SETTLED):
        return False
    metric, finals = summary.get("metric"), summary.get("final_metrics")
    is_measured = isinstance(metric, dict) and isinstance(finals, dict) and metric.get("key") in finals
    return is_measured or summary["status"] == Status.DIVERGED


class Store:
    """All runs under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def __repr__(self) -> str:
        return f"Store({min(str(self.root), os.path.relpath(self.root), key=len)}, {len(self.runs())} runs)"

    def run(self, task: str, run_id: str) -> "RunDirectory":
        return RunDirectory(self.root / task / run_id)

    def runs(self) -> "list[RunDirectory]":
        """Every run directory with a summary, sorted by path."""
        return [RunDirectory(path.parent) for path in sorted(self.root.glob("*/*/summary.json"))]

    def summaries(self) -> dict[str, Record]:
        """Run id -> summary. Unreadable summaries and those of other versions are left out."""
        return {run.run_id: summary for run in self.runs() if (summary := run.read_summary()) is not None}


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: Held | None = None

    def __repr__(self) -> str:
        return f"RunDirectory({self.run_id}, {(self.read_summary() or {}).get('status', 'no summary')})"

    @property
    def run_id(self) -> str:
        return self.path.name

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the run's lock, or raise `RunBusy`. Clears partial files of a writer that was killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path / "lock") as held:
            for part in [*self.path.glob("*.part"), *self.path.glob("pictures/*.part")]:
                with suppress(OSError):
                    part.unlink()
            self._held = held
            try:
                yield
            finally:
                self._held = None

    def is_held(self) -> bool:
        return is_held(self.path / "lock")

    def _read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def _put(self, name: str, data: bytes) -> None:
        """Replace a file atomically."""
        self._check_held()
        write_atomic(self.path / name, data)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one line, whole or not at all."""
        self._check_held()
        append_line(self.path / name, encode(record))

    def _check_held(self) -> None:
        """Raise RunBusy if another process took this run over while this one was suspended."""
        if self._held is not None:
            self._held.check()

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._put("config.yaml", yaml.safe_dump(dict(config), sort_keys=True).encode())

    def read_config(self) -> Record:
        config = yaml.load(self._read("config.yaml"), Loader=LOADER)
        if not isinstance(config, dict):
            raise ValueError(f"{self.path / 'config.yaml'} is not a mapping")
        return config

    def find_config(self) -> Record | None:
        """The config, or None if it is missing or unreadable."""
        with suppress(OSError, ValueError, yaml.YAMLError):
            return self.read_config()
        return None

    def add_provenance(self, provenance: Mapping[str, Any]) -> None:
        self._append("provenance.jsonl", provenance)

    def read_provenance(self) -> list[Record]:
        return [record for record in self._read_lines("provenance.jsonl") if isinstance(record, dict)]

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one epoch's line. `record` has at least `epoch`, counted from 1."""
        self._append("metrics.jsonl", record)

    def read_metrics(self) -> list[Record]:
        """Every intact line in order. Damaged lines, such as one cut off by a kill, are skipped."""
        return [record for record in self._read_lines("metrics.jsonl") if is_metrics(record)]

    def truncate_metrics(self, epochs: int) -> None:
        """Before resuming after `epochs` epochs: drop later and damaged lines, which will be written again."""
        parsed = [(line, parse_line(line)) for line in self._log().splitlines()]
        # Bytes are kept as they are: checkpoints have a checksum of them.
        kept = [line + b"\n" for line, record in parsed if is_metrics(record) and record["epoch"] <= epochs]
        self._put("metrics.jsonl", b"".join(kept))

    def replace_last_metrics(self, record: Mapping[str, Any]) -> None:
        """Replace the last line atomically."""
        before, after = self._log(), b"".join(encode(kept) for kept in [*self.read_metrics()[:-1], record])
        # Checkpoints of the old log are marked valid for the new one first: a kill between the two writes must not
        # make the log look damaged.
        index = self._checkpoint_index()
        marked = [entry for entry in index if entry.get("log") == _log_mark(before)]
        for entry in marked:
            entry["log"] = [_log_mark(before), _log_mark(after)]
        if marked:
            self._put("checkpoint.json", json.dumps(index).encode())
        self._put("metrics.jsonl", after)

    def _read_lines(self, name: str) -> list[Any]:
        with suppress(OSError):
            return parse_lines(self._read(name))
        return []

    def _log(self) -> bytes:
        with suppress(FileNotFoundError):
            return self._read("metrics.jsonl")
        return b""

    def write_picture(self, name: str, epoch: int, data: bytes) -> None:
        """Write an image such as `samples.jpg` of an epoch."""
        stem, _, suffix = name.rpartition(".")
        (self.path / "pictures").mkdir(exist_ok=True)
        self._put(f"pictures/{stem}-epoch{epoch:04}.{suffix}", data)

    def pictures(self, stem: str) -> dict[int, Path]:
        """Epoch -> file of the images of one name, sorted by epoch."""
        found = sorted(self.path.glob(f"pictures/{stem}-epoch[0-9]*.*"))
        numbered = ((path.stem.removeprefix(f"{stem}-epoch"), path) for path in found)
        return {int(number): path for number, path in numbered if number.isdigit()}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._put("summary.json", encode(summary, indent=2, sort_keys=True))

    def read_summary(self) -> Record | None:
        """None if it is missing, unreadable or of another version."""
        summary = self._any_summary()
        return summary if summary is not None and _is_readable(summary) else None

    def other_version(self) -> str | None:
        """The summary's version, if it is not this code's."""
        summary = self._any_summary()
        return None if summary is None or summary.get("version") == VERSION else repr(summary.get("version"))

    def _any_summary(self) -> Record | None:
        with suppress(OSError):
            summary = parse_line(self._read("summary.json"))
            return summary if isinstance(summary, dict) else None
        return None

    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None:
        """Save `data` as the newest checkpoint; the previous one is kept until the next is written."""
        name = "checkpoint-" + "-".join(f"{key}{value}" for key, value in position.items()) + ".pt"
        mark = {"sha256": _sha256(data), "position": dict(position), "log": _log_mark(self._log())}
        # The same position may be saved again (a resume that stops at once): its old entry is replaced.
        others = (old for old in self._checkpoint_index() if old.get("file") not in (name, None))
        kept = [{"file": name, **mark}, *others][:2]
        self._put(name, data)
        self._put("checkpoint.json", json.dumps(kept).encode())
        self._delete_checkpoints(keep=["checkpoint.json", *(entry.get("file") for entry in kept)])

    def load_checkpoint(self) -> bytes | None:
        """The newest checkpoint with a valid checksum, or None."""
        return next((data for _, data, _ in self.checkpoints() if data is not None), None)

    def resumable_checkpoint(self, report: Callable[[str], None]) -> tuple[Path, bytes] | None:
        """The newest checkpoint with a valid checksum and an intact log up to it, with its file; None to start over.

        Args:
            report: called with one line for each problem
        """
        problems: list[str] = []
        found = None
        for name, data, problem in self.checkpoints():
            if data is not None and problem is None:
                found = self.path / name, data
                break
            problems.append(str(problem))
        for problem in problems:
            report(f"{problem}; {f'resuming from {found[0].name}' if found else 'starting over'}")
        return found

    def checkpoints(self) -> Iterator[tuple[str, bytes | None, str | None]]:
        """File, data and problem of each checkpoint, newest first.

        A damaged checkpoint has no data. One with data and a problem is intact, but the log up to it is not.
        """
        for entry in self._checkpoint_index():
            name = entry.get("file")
            if not isinstance(name, str) or Path(name).name != name:  # a file elsewhere is never read
                yield "checkpoint.json", None, "checkpoint.json is damaged"
                continue
            try:
                data = self._read(name)
            except OSError as error:
                yield name, None, f"{name} cannot be read ({error.strerror})"
                continue
            if _sha256(data) != entry.get("sha256"):
                yield name, None, f"{name} is damaged"
            else:
                yield name, data, None if self._has_log(entry.get("log")) else f"metrics.jsonl is damaged before {name}"

    def drop_checkpoints(self) -> None:
        """Delete all checkpoints, for a settled run that does not keep them."""
        self._check_held()
        self._delete_checkpoints(keep=[])

    def _delete_checkpoints(self, keep: Sequence[Any]) -> None:
        for path in [self.path / "checkpoint.json", *self.path.glob("checkpoint-*.pt")]:  # the index first
            if path.name not in keep:
                path.unlink(missing_ok=True)

    def _checkpoint_index(self) -> list[Record]:
        """The entries, newest first; a damaged index is one entry without a file."""
        try:
            index = parse_line(self._read("checkpoint.json"))
        except FileNotFoundError:
            return []
        except OSError:
            index = None
        return [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else [{}]

    def _has_log(self, mark: Any) -> bool:
        """Whether metrics.jsonl still begins with what it had at a checkpoint. `mark` may be a list of alternatives."""
        if mark is None:  # checkpoints of older code
            return True
        marks = [one for one in (mark if isinstance(mark, list) else [mark]) if isinstance(one, dict)]
        return any(type(one.get("bytes")) is int and _log_mark(self._log()[: one["bytes"]]) == one for one in marks)


class NullRunDirectory(RunDirectory):
    """The run directory of ranks other than 0: nothing is written, and nothing is found there."""

    def _read(self, name: str) -> bytes:
        raise FileNotFoundError(name)

    def _put(self, name: str, data: bytes) -> None: ...
    def _append(self, name: str, record: Mapping[str, Any]) -> None: ...
    def write_picture(self, name: str, epoch: int, data: bytes) -> None: ...
    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None: ...
    def drop_checkpoints(self) -> None: ...


def _is_readable(summary: Record) -> bool:
    """Whether a summary is of this version, with the keys that readers rely on. Only a done run must have a metric."""
    status, metric = summary.get("status"), summary.get("metric")
    has_metric = isinstance(metric, dict) and all(isinstance(metric.get(key), str) for key in ("key", "goal", "label"))
    return (
        summary.get("version") == VERSION
        and status in tuple(Status)
        and all(type(summary.get(key)) in types for types, keys in REQUIRED.items() for key in keys)
        and type(summary.get("final")) in (int, float, type(None))
        and (has_metric or (metric is None and status != Status.DONE))
        and (summary["epochs_done"] > 0 or status != Status.DONE)
    )


def _log_mark(log: bytes) -> Record:
    return {"bytes": len(log), "sha256": _sha256(log)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
