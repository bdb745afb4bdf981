"""Trackers of a run: a progress line, and a mirror in wandb. Nothing reads either of them back."""

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from nero.atomic import write_atomic
from nero.runs.formatting import clock, final_text, metric_text, seconds_per_epoch
from nero.runs.logged import LoggedRun
from nero.runs.records import parse_line
from nero.runs.store import Status, is_settled

WITHIN_EPOCH = 60.0  # seconds between two plain lines within a long epoch
SYNCED = "wandb-synced.json"  # in a run's directory: checksum of the mirrored state for each destination


class Tracker(Protocol):
    """Receives the progress of a run. `done` is the number of epochs done before this start."""

    def start(
        self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str
    ) -> None: ...
    def step(self, epoch: int, step: int, steps: int) -> None: ...
    def epoch(self, record: Mapping[str, Any]) -> None: ...
    def finish(self, summary: Mapping[str, Any]) -> None: ...


class Progress:
    """One line per run: epoch, metric, seconds per epoch, time left.

    On a terminal the line is rewritten in place. Elsewhere, and with `plain` (several runs share a terminal), a new
    line is printed now and then.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 10.0, plain: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty() and not plain
        self.every = every if not self.interactive else 0.2
        self.shown = 0.0
        self.text = self.run_id = self.metric = ""

    def start(self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str) -> None:
        self.run_id, self.epochs, self.metric = run_id, epochs, metric
        self.started, self.first = time.monotonic(), done
        self.seconds: float | None = None  # per epoch
        self.value: float | None = None
        self._show(f"epoch {round(done, 2):g}/{epochs}" + ("  resuming" if done else ""))

    def step(self, epoch: int, step: int, steps: int) -> None:
        every, progress = self.every if self.interactive else max(self.every, WITHIN_EPOCH), epoch + step / steps
        if time.monotonic() - self.shown > every:
            self._show_progress(progress, f"{progress:.2f}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        epoch, is_first = int(record["epoch"]), self.seconds is None
        self.value, self.seconds = record.get(self.metric), seconds_per_epoch(record)
        if is_first or epoch == self.epochs or time.monotonic() - self.shown > self.every:
            self._show_progress(epoch, str(epoch))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.run_id = self.run_id or str(summary["run_id"])  # a run that failed before it started
        words = [summary["status"], f"epoch {summary['epochs_done']}/{summary['epochs']}"]
        if final := final_text(summary):
            words.append(f"{self.metric} {final}")
        if summary.get("diverged_at"):
            words.append(f"at step {summary['diverged_at']['step']}")
        self._show("  ".join([*words, f"{clock(summary['seconds'])} in all"]))
        if self.interactive:
            print(file=self.stream, flush=True)

    def _show_progress(self, progress: float, epoch: str) -> None:
        words = [f"epoch {epoch}/{self.epochs}"]
        if self.value is not None:
            words.append(f"{self.metric} {metric_text(self.value)}")
        if self.seconds is not None:
            words.append(f"{self.seconds:.2f} s/epoch")
        if progress > self.first:
            left = (time.monotonic() - self.started) / (progress - self.first) * (self.epochs - progress)
            words.append(f"{clock(left)} left")
        self._show("  ".join(words))

    def _show(self, text: str) -> None:
        self.shown = time.monotonic()
        text = f"{self.run_id}  {text}"
        if self.interactive:
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be rewritten
            print("\r" + text.ljust(len(self.text)), end="", file=self.stream, flush=True)
            self.text = text
        else:
            print(text, file=self.stream, flush=True)


class WandbMirror:
    """A copy of the run for wandb, offline by default: no login and no network.

    replay:  for runs that were logged before: each replaces the run of its id, and wandb neither prints nor records
             anything about this machine
    """

    def __init__(
        self, project: str = "nero", mode: str = "offline", entity: str | None = None, replay: bool = False
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise RuntimeError("tracking=wandb needs the package wandb: pip install -e '.[suite]'") from None
        self.wandb = wandb
        self.run: Any = None
        self.settings: dict[str, Any] = {"project": project, "mode": mode, "entity": entity, "resume": "allow"}
        if replay:
            quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
            self.settings |= {"resume": None, "settings": quiet}

    def start(self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str) -> None:
        words: dict[str, Any] = {"id": run_id, "name": run_id, "dir": str(path), "config": dict(config)}
        self.run = self.wandb.init(**words, reinit="finish_previous", **self.settings)

    def step(self, epoch: int, step: int, steps: int) -> None:
        pass

    def epoch(self, record: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
        self.run.log(numbers, step=int(record["epoch"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        if self.run is None:
            return
        self.run.summary.update({"status": summary["status"], "final": summary["final"]})
        self.run.finish(exit_code=1 if summary["status"] == Status.FAILED else 0)


def mirror(
    runs: Iterable[LoggedRun],
    project: str = "nero",
    entity: str | None = None,
    mode: str = "offline",
    every: bool = False,
    again: bool = False,
) -> Iterator[tuple[str, bool]]:
    """Mirror logged runs one by one; yields a line for each, and whether it was mirrored now.

    mode:   "online", or "offline": files are written into the run's directory, for `wandb sync` to upload
    every:  also unsettled runs
    again:  also those that have not changed
    """
    wandb_mirror = WandbMirror(project, mode, entity, replay=True)
    destination = f"{mode} {entity or ''}/{project}"
    for run in runs:
        if not every and not is_settled(run.summary):
            yield f"{run.run_id}: {run.status}: skipped, use --all to include it", False
            continue
        if (run.directory.path / "wandb").is_symlink():
            yield f"{run.run_id}: skipped: its folder wandb is a link", False
            continue
        if run.directory.is_held():
            yield f"{run.run_id}: skipped: a process is writing it", False
            continue
        state, synced = _checksum(run), _synced(run)
        if synced.get(destination, {}).get("sha256") == state and not again:
            yield f"{run.run_id}: already there", False
            continue
        try:
            lines = _replay(run, wandb_mirror)
        except wandb_mirror.wandb.Error as error:
            raise RuntimeError(f"wandb: {' '.join(str(error).split())}") from error
        synced[destination] = {"sha256": state, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        write_atomic(run.directory.path / SYNCED, f"{json.dumps(synced, indent=2)}\n".encode())
        yield f"{run.run_id}: {lines} lines", True


def _replay(run: LoggedRun, tracker: Tracker) -> int:
    """Send a logged run to a tracker as if it were running; returns the number of lines."""
    summary, lines = run.summary, run.directory.read_metrics()
    metric = (summary.get("metric") or {}).get("key", "")
    tracker.start(run.run_id, run.directory.path, run.config, summary.get("epochs") or 0, 0, metric)
    try:
        for record in lines:
            tracker.epoch(record)
    except BaseException:
        tracker.finish({**summary, "status": Status.FAILED})  # marks the upload itself as failed
        raise
    tracker.finish(summary)
    return len(lines)


def _checksum(run: LoggedRun) -> str:
    digest = hashlib.sha256()
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        data = run.directory.content(name)
        digest.update(f"{name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _synced(run: LoggedRun) -> dict[str, dict[str, str]]:
    """Destination -> its entry in SYNCED; empty if the file is unreadable, so that the run is mirrored again."""
    synced = parse_line(run.directory.content(SYNCED))
    return {key: value for key, value in synced.items() if isinstance(value, dict)} if isinstance(synced, dict) else {}
