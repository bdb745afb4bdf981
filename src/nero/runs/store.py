"""The store: one directory per run, readable after a kill at any moment. The single source of truth for the report.

<root>/<task>/<run id>/
    config.yaml        the resolved config whose hash is part of the run id
    provenance.jsonl   one line per start: commit, versions, device, command
    metrics.jsonl      one line per epoch, append-only
    pictures/          images of some tasks: <name>-epoch<number>.<format>
    summary.json       status and final metrics, replaced atomically
    checkpoint*        the newest two checkpoints, and an index with their checksums
    lock               which process is writing (see `nero.runs.lock`)
"""

import errno
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any

from nero.atomic import write_atomic
from nero.runs.lock import Held, exclusive
from nero.runs.reading import ALL as ALL
from nero.runs.reading import CONFIG, METRICS, PROVENANCE, SUMMARY, RunFiles, log_mark, sha256
from nero.runs.records import append_line, encode, encode_yaml, parse_line
from nero.runs.validation import SETTLED as SETTLED
from nero.runs.validation import VERSION as VERSION
from nero.runs.validation import Damaged, line_problem, new_line_problem
from nero.runs.validation import Record as Record
from nero.runs.validation import Status as Status


class Outcome(StrEnum):
    """How one attempt to train a run ended. The first three are also the run's status."""

    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # asked to stop; the same command resumes it
    BUSY = "busy"  # another process is writing the run
    REFUSED = "refused"  # the config cannot be run here


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
    """All runs under one root.

    left_out:  the directories of runs that readers left out so far, and why, in one line
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.left_out: dict[Path, str] = {}
        self._whole: list[tuple[RunDirectory, Record]] | None = None

    def __repr__(self) -> str:
        return f"Store({min(str(self.root), os.path.relpath(self.root), key=len)}, {len(self.runs())} runs)"

    def run(self, task: str, run_id: str) -> "RunDirectory":
        return RunDirectory(self.root / task / run_id)

    def runs(self) -> "list[RunDirectory]":
        """Every run directory with a summary, sorted by path."""
        if self._whole is not None:
            return [run for run, _ in self._whole]
        return [run for run in self._folders() if os.path.lexists(run.path / SUMMARY)]

    def _folders(self) -> "list[RunDirectory]":
        return [RunDirectory(path) for path in sorted(self.root.glob("[!.]*/[!.]*"))]

    def read(self, *files: str, only: Collection[str] | None = None) -> "Iterator[tuple[RunDirectory, Record]]":
        """Runs with their summaries, sorted by path. A run whose summary or one of `files` is damaged is left out.

        `only`: the ids of the runs to be read.
        """
        if self._whole is not None:
            yield from (each for each in self._whole if only is None or each[0].run_id in only)
            return
        for run in self._folders():
            if (only is not None and run.run_id not in only) or run.is_new():
                continue
            try:
                yield run, run.check(*files)
            except Damaged as error:
                self.left_out[run.path] = str(error)

    def summaries(self) -> dict[str, Record]:
        """Run id -> summary. Unreadable summaries and those of other versions are left out."""
        return {run.run_id: summary for run, summary in self.read()}

    def without_damaged(self) -> "Store":
        """This store without runs of which any file is damaged, as it is now: no summary is read again."""
        found = Store(self.root)
        found._whole = list(found.read(*ALL))
        return found


class RunDirectory(RunFiles):
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._held: Held | None = None

    def __repr__(self) -> str:
        return f"RunDirectory({self.run_id}, {(self.read_summary() or {}).get('status', 'no summary')})"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the run's lock, or raise `RunBusy`. Clears partial files of a writer that was killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / "pictures"):
            if folder.is_symlink():  # nothing is written to other places
                raise OSError(errno.ELOOP, "it is a link", str(folder))
        with exclusive(self.path / "lock") as held:
            for part in [*self.path.glob("*.part"), *self.path.glob("pictures/*.part")]:
                with suppress(OSError):
                    part.unlink()
            self._held = held
            try:
                yield
            finally:
                self._held = None

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
        self._put(CONFIG, encode_yaml(config))

    def add_provenance(self, provenance: Mapping[str, Any]) -> None:
        self._append(PROVENANCE, provenance)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one epoch's line. `record` has at least `epoch`, counted from 1."""
        if problem := new_line_problem(parse_line(encode(record))):  # no reader would take it
            raise ValueError(f"{METRICS}: {problem}")
        self._append(METRICS, record)

    def truncate_metrics(self, epochs: int) -> None:
        """Before resuming after `epochs` epochs: drop later and damaged lines, which will be written again."""
        parsed = [(line, parse_line(line)) for line in self.log().splitlines()]
        # Bytes are kept as they are: checkpoints have a checksum of them.
        kept = [line + b"\n" for line, record in parsed if not line_problem(record) and record["epoch"] <= epochs]
        self._put(METRICS, b"".join(kept))

    def replace_last_metrics(self, record: Mapping[str, Any]) -> None:
        """Replace the last line atomically."""
        before, after = self.log(), b"".join(encode(kept) for kept in [*self.read_metrics()[:-1], record])
        # Checkpoints of the old log are marked valid for the new one first: a kill between the two writes must not
        # make the log look damaged.
        index = self._checkpoint_index()
        marked = [entry for entry in index if entry.get("log") == log_mark(before)]
        for entry in marked:
            entry["log"] = [log_mark(before), log_mark(after)]
        if marked:
            self._put("checkpoint.json", json.dumps(index).encode())
        self._put(METRICS, after)

    def write_picture(self, name: str, epoch: int, data: bytes) -> None:
        """Write an image such as `samples.jpg` of an epoch."""
        stem, _, suffix = name.rpartition(".")
        (self.path / "pictures").mkdir(exist_ok=True)
        self._put(f"pictures/{stem}-epoch{epoch:04}.{suffix}", data)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._put(SUMMARY, encode(summary, indent=2, sort_keys=True))

    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None:
        """Save `data` as the newest checkpoint; the previous one is kept until the next is written."""
        name = "checkpoint-" + "-".join(f"{key}{value}" for key, value in position.items()) + ".pt"
        mark = {"sha256": sha256(data), "position": dict(position), "log": log_mark(self.log())}
        # The same position may be saved again (a resume that stops at once): its old entry is replaced.
        others = (old for old in self._checkpoint_index() if old.get("file") not in (name, None))
        kept = [{"file": name, **mark}, *others][:2]
        self._put(name, data)
        self._put("checkpoint.json", json.dumps(kept).encode())
        self._delete_checkpoints(keep=["checkpoint.json", *(entry.get("file") for entry in kept)])

    def drop_checkpoints(self) -> None:
        """Delete all checkpoints, for a settled run that does not keep them."""
        self._check_held()
        self._delete_checkpoints(keep=[])

    def discard(self) -> None:
        """While it is held: remove the directory of a run of which nothing was written, since it was refused."""
        with suppress(OSError):
            if os.listdir(self.path) == ["lock"]:
                (self.path / "lock").unlink()  # other processes that have it open find that it is gone
                self.path.rmdir()
                self.path.parent.rmdir()  # only if it is empty

    def _delete_checkpoints(self, keep: Sequence[Any]) -> None:
        for path in [self.path / "checkpoint.json", *self.path.glob("checkpoint-*.pt")]:  # the index first
            if path.name not in keep:
                path.unlink(missing_ok=True)


class NullRunDirectory(RunDirectory):
    """The run directory of ranks other than 0: nothing is written, and nothing is found there."""

    def _open(self, name: str) -> BufferedReader:
        raise FileNotFoundError(name)

    def _put(self, name: str, data: bytes) -> None: ...
    def _append(self, name: str, record: Mapping[str, Any]) -> None: ...
    def write_picture(self, name: str, epoch: int, data: bytes) -> None: ...
    def save_checkpoint(self, data: bytes, position: Mapping[str, int]) -> None: ...
    def drop_checkpoints(self) -> None: ...
    def discard(self) -> None: ...
