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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from nero.atomic import name_file, write_atomic
from nero.runs.lock import Held, exclusive, is_held

Record = dict[str, Any]
Say = Callable[[str], None]
"""Told in a line what was found damaged."""

PICTURES = "pictures"

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of YAML without code in it; where PyYAML was built with it, the one that takes a tenth of the time."""

VERSION = 1
"""Of a summary: what its keys are and mean. One of another version is left to the code that wrote it."""

NEEDED: dict[str, type | tuple[type, ...]] = {
    "run_id": str,
    "task": str,
    "optim": str,
    "lr": (int, float),
    "seed": int,
    "epochs_done": int,
    "seconds": (int, float),
    "final_metrics": dict,
}
"""Keys of a summary that whoever reads it may take for granted, and what they hold."""


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
    if not summary or summary.get("status") not in tuple(SETTLED):
        return False
    metric, finals = summary.get("metric"), summary.get("final_metrics")
    if summary["status"] == Status.DIVERGED:
        return True
    return isinstance(metric, dict) and isinstance(finals, dict) and metric.get("key") in finals


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
        """Run id -> summary. A summary that cannot be read, or is of another version, counts as absent."""
        found = ((run.run_id, run.read_summary()) for run in self.runs())
        return {run_id: summary for run_id, summary in found if summary is not None}


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: Held | None = None

    @property
    def run_id(self) -> str:
        return self.path.name

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold this run, or raise `RunBusy`."""
        self.path.mkdir(parents=True, exist_ok=True)
        with exclusive(self.path / "lock") as held:
            self._clear_parts()
            self._held = held
            try:
                yield
            finally:
                self._held = None

    def is_held(self) -> bool:
        return is_held(self.path / "lock")

    def _clear_parts(self) -> None:
        """Remove what a writer that was killed had not yet put in its place."""
        for folder in (self.path, self.path / PICTURES):
            for part in folder.glob("*.part"):
                with suppress(OSError):
                    part.unlink()

    # config and provenance

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._put("config.yaml", yaml.safe_dump(dict(config), sort_keys=True).encode())

    def read_config(self) -> Record:
        config: Record = yaml.load((self.path / "config.yaml").read_bytes(), Loader=LOADER)
        return config

    def config_there(self) -> Record | None:
        """The config, where one lies there that can be read."""
        try:
            config = self.read_config()
        except (OSError, ValueError, yaml.YAMLError):
            return None
        return config if isinstance(config, dict) else None

    def add_provenance(self, provenance: Mapping[str, Any]) -> None:
        self._append("provenance.jsonl", provenance)

    def read_provenance(self) -> list[Record]:
        return _read_lines(self.path / "provenance.jsonl")

    # metrics

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one epoch's line. `record` has at least `epoch`, counted from 1."""
        self._append("metrics.jsonl", record)

    def read_metrics(self) -> list[Record]:
        """Every whole line in order; a line that a kill cut off, or that is otherwise damaged, is passed over."""
        return [record for record in _read_lines(self.path / "metrics.jsonl") if _is_metrics(record)]

    def keep_metrics(self, epochs: int) -> None:
        """Before resuming after `epochs` whole epochs: drop later lines and damaged ones, which will be made again."""
        lines = self._log().splitlines()
        parsed = ((line, record) for line in lines for record in _parsed_line(line))
        # As they lie there, to the byte: checkpoints have a checksum of them.
        kept = [line + b"\n" for line, record in parsed if _is_metrics(record) and record["epoch"] <= epochs]
        self._put("metrics.jsonl", b"".join(kept))

    def replace_last_metrics(self, record: Mapping[str, Any]) -> None:
        """Put another line in the place of the last, whole or not at all."""
        before, after = self._log(), b"".join(_line(kept) for kept in [*self.read_metrics()[:-1], record])
        # A checkpoint that stands for the log as it is stands for the new one too, before there is one: a kill between
        # the two must not make it look as if the log were damaged.
        index = self._checkpoint_index()
        for entry in index:
            if entry.get("log") == _mark(before):
                entry["log"] = [_mark(before), _mark(after)]
        if index:
            self._put("checkpoint.json", json.dumps(index).encode())
        self._put("metrics.jsonl", after)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one line, whole or not at all."""
        self._check_held()
        line = _line(record)
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            if before and os.pread(descriptor, 1, before - 1) != b"\n":
                line = b"\n" + line  # a kill cut off the last line: this one must not be lost with it
            try:
                # In one write, so that another reader sees all of it or, after a kill, a tail that is passed over. On
                # a disk that is nearly full a part is written without complaint: the next write then says why.
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, before)
                name_file(error, self.path / name)
                raise
        finally:
            os.close(descriptor)

    def _put(self, name: str, data: bytes) -> None:
        """A file of the run, replaced whole or not at all."""
        self._check_held()
        write_atomic(self.path / name, data)

    def _check_held(self) -> None:
        """Before anything is written: a process that was taken for dead, and is not, must not spoil what follows."""
        if self._held is not None:
            self._held.check()

    # pictures

    def write_picture(self, name: str, epoch: int, data: bytes) -> None:
        """Keep a picture file such as `samples.jpg` of an epoch; one of the same epoch is replaced."""
        stem, _, suffix = name.rpartition(".")
        (self.path / PICTURES).mkdir(exist_ok=True)
        self._put(f"{PICTURES}/{stem}-epoch{epoch:04}.{suffix}", data)

    def pictures(self, stem: str) -> dict[int, Path]:
        """Epoch -> file of the pictures of one name, in order of epochs."""
        found = sorted((self.path / PICTURES).glob(f"{stem}-epoch[0-9]*.*"))
        numbers = (path.stem.removeprefix(f"{stem}-epoch") for path in found)
        return {int(number): path for number, path in zip(numbers, found, strict=True) if number.isdigit()}

    # summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        text = json.dumps(_strict(dict(summary)), indent=2, sort_keys=True, allow_nan=False)
        self._put("summary.json", (text + "\n").encode())

    def read_summary(self) -> Record | None:
        """None where there is none that this code can read."""
        summary = self._any_summary()
        return summary if summary is not None and _is_readable(summary) else None

    def other_version(self) -> str | None:
        """Which version the summary is of, if it is one of another version than this code's."""
        summary = self._any_summary()
        if summary is None or summary.get("version") == VERSION:
            return None
        return repr(summary.get("version"))

    def _any_summary(self) -> Record | None:
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
        entry = {
            "file": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "position": dict(position),
            # The log as it was then, so that a run never goes on with a hole in it.
            "log": _mark(self._log()),
        }
        # The same position may be saved again (a resume that stops at once): its old entry is replaced, not kept twice.
        kept = [entry, *(old for old in self._checkpoint_index() if old.get("file") != name)][:2]
        self._put(name, data)
        self._put("checkpoint.json", json.dumps(kept).encode())
        names = {old.get("file") for old in kept}
        for path in self.path.glob("checkpoint-*.pt"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def load_checkpoint(self) -> bytes | None:
        """The newest state whose checksum holds, or None."""
        return next((data for _, data in self._whole_checkpoints()), None)

    def checkpoint_to_go_on_from(self, say: Say) -> tuple[Path, bytes] | None:
        """The newest state whose checksum holds and up to which the log is whole, with its file; None to start anew."""
        problems: list[str] = []
        found = None
        for entry, data in self._whole_checkpoints(problems.append):
            if self.is_log_whole(entry.get("log")):
                found = self.path / entry["file"], data
                break
            problems.append(f"metrics.jsonl is damaged before {entry['file']}")
        for problem in problems:
            say(f"{problem}; {f'going on from {found[0].name}' if found else 'starting anew'}")
        return found

    def _whole_checkpoints(self, say: Say = lambda problem: None) -> Iterator[tuple[Record, bytes]]:
        """Those of the index whose checksum holds, the newest first."""
        for entry in self._checkpoint_index(say):
            name, checksum = entry.get("file"), entry.get("sha256")
            if not isinstance(name, str):
                say("checkpoint.json is damaged")
                continue
            try:
                data = (self.path / name).read_bytes()
            except OSError as error:
                say(f"{name} cannot be read ({error.strerror})")
                continue
            if hashlib.sha256(data).hexdigest() == checksum:
                yield entry, data
            else:
                say(f"{name} is damaged")

    def _log(self) -> bytes:
        try:
            return (self.path / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            return b""

    def is_log_whole(self, then: Any) -> bool:
        """Whether the log still begins with all that it had when a checkpoint was written; `then` may have several."""
        if then is None:  # by code that did not record it
            return True
        if isinstance(then, list):
            return any(self.is_log_whole(one) for one in then if one is not None)
        if not isinstance(then, dict) or not isinstance(then.get("bytes"), int):
            return False
        begin = self._log()[: then["bytes"]]
        return _mark(begin) == then

    def drop_checkpoints(self) -> None:
        """For a settled run that does not keep its final state."""
        self._check_held()
        (self.path / "checkpoint.json").unlink(missing_ok=True)
        for path in self.path.glob("checkpoint-*.pt"):
            path.unlink(missing_ok=True)

    def _checkpoint_index(self, say: Say = lambda problem: None) -> list[Record]:
        try:
            index = json.loads((self.path / "checkpoint.json").read_text())
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            index = None
        if not isinstance(index, list):
            say("checkpoint.json is damaged")
            return []
        return [entry for entry in index if isinstance(entry, dict)]


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

    def checkpoint_to_go_on_from(self, say: Say) -> tuple[Path, bytes] | None:
        return None


def _is_readable(summary: Record) -> bool:
    """Whether a summary is one that this code could have written, as far as anybody reads it."""
    status, metric, final = summary.get("status"), summary.get("metric"), summary.get("final")
    if summary.get("version") != VERSION or status not in tuple(Status):
        return False
    if not all(_holds(summary.get(key), kinds) for key, kinds in NEEDED.items()):
        return False
    if final is not None and not _holds(final, (int, float)):
        return False
    if status == Status.DONE and not summary["epochs_done"]:
        return False
    if metric is None:
        return bool(status != Status.DONE)  # a run is done by the measure of its metric
    return isinstance(metric, dict) and all(isinstance(metric.get(key), str) for key in ("key", "goal", "label"))


def _holds(value: Any, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _mark(log: bytes) -> Record:
    """What a log is known by."""
    return {"bytes": len(log), "sha256": hashlib.sha256(log).hexdigest()}


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


def _is_metrics(record: Any) -> bool:
    return isinstance(record, dict) and _holds(record.get("epoch"), int)


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
