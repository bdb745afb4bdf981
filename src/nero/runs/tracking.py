"""What people watch while runs go on: a progress line, and a mirror in wandb. Nothing reads either of them back."""

import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from nero.runs.store import Status


class Tracker(Protocol):
    """Told what a run does; never asked."""

    def start(
        self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str
    ) -> None: ...
    def step(self, epoch: int, step: int, steps: int) -> None: ...
    def epoch(self, record: Mapping[str, Any]) -> None: ...
    def finish(self, summary: Mapping[str, Any]) -> None: ...


WITHIN_EPOCH = 60.0
"""Seconds between two plain lines within an epoch, for epochs that take long."""


class Progress:
    """One line per run: epoch, metric, seconds per epoch, time left.

    On a terminal the line is rewritten in place; elsewhere, and with `plain` (several runs at a time share a terminal),
    it is printed now and then, so that logs stay short.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 10.0, plain: bool = False) -> None:
        self.stream = stream or sys.stderr
        self.interactive = self.stream.isatty() and not plain
        self.every = every if not self.interactive else 0.2
        self.shown = 0.0
        self.text = ""
        self.run_id = self.metric = ""

    def start(self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str) -> None:
        self.run_id, self.epochs, self.metric = run_id, epochs, metric
        self.begun, self.first = time.monotonic(), done
        self.seconds: float | None = None
        self.value: float | None = None
        self._show(f"epoch {round(done, 2):g}/{epochs}" + ("  resuming" if done else ""))

    def step(self, epoch: int, step: int, steps: int) -> None:
        every = self.every if self.interactive else max(self.every, WITHIN_EPOCH)
        if time.monotonic() - self.shown > every:
            self._show(self._line(epoch + step / steps, f"{epoch + step / steps:.2f}"))

    def epoch(self, record: Mapping[str, Any]) -> None:
        epoch, is_first = int(record["epoch"]), self.seconds is None
        self.value, self.seconds = record.get(self.metric), seconds_per_epoch(record)
        if is_first or epoch == self.epochs or time.monotonic() - self.shown > self.every:
            self._show(self._line(epoch, str(epoch)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.run_id = self.run_id or str(summary["run_id"])  # a run that failed before it started
        words = [summary["status"], f"epoch {summary['epochs_done']}/{summary['epochs']}"]
        if final := final_text(summary):
            words.append(f"{self.metric} {final}")
        if summary.get("diverged_at"):
            words.append(f"at step {summary['diverged_at']['step']}")
        self._show("  ".join([*words, f"{clock(summary['seconds'])} in all"]))
        if self.interactive:
            self.stream.write("\n")
            self.stream.flush()

    def _line(self, progress: float, epoch: str) -> str:
        words = [f"epoch {epoch}/{self.epochs}"]
        if self.value is not None:
            words.append(f"{self.metric} {metric_text(self.value)}")
        if self.seconds is not None:
            words.append(f"{self.seconds:.2f} s/epoch")
        if progress > self.first:
            left = (time.monotonic() - self.begun) / (progress - self.first) * (self.epochs - progress)
            words.append(f"{clock(left)} left")
        return "  ".join(words)

    def _show(self, text: str) -> None:
        self.shown = time.monotonic()
        text = f"{self.run_id}  {text}"
        if self.interactive:
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be rewritten
            self.stream.write("\r" + text + " " * max(0, len(self.text) - len(text)))
            self.text = text
        else:
            self.stream.write(text + "\n")
        self.stream.flush()


class WandbMirror:
    """A copy of the run for wandb's pages, offline unless asked otherwise: no login and no network.

    replay:  of runs that were logged before: each takes the place of what its id had there, and wandb neither prints
             nor records anything of this machine
    """

    def __init__(
        self, project: str = "nero", mode: str = "offline", entity: str | None = None, replay: bool = False
    ) -> None:
        try:
            import wandb
        except ImportError:
            raise RuntimeError("tracking=wandb needs the package wandb: pip install -e '.[tracking]'") from None
        self.wandb = wandb
        self.run: Any = None
        self.settings: dict[str, Any] = {"project": project, "mode": mode, "entity": entity, "resume": "allow"}
        if replay:
            quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
            self.settings |= {"resume": None, "settings": quiet}

    def start(self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str) -> None:
        self.run = self.wandb.init(
            id=run_id,
            name=run_id,
            dir=str(path),
            config=dict(config),
            reinit="finish_previous",
            **self.settings,
        )

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


def seconds_per_epoch(record: Mapping[str, Any]) -> float:
    """Of a line of the log, which may stand for several epochs."""
    return float(record["seconds"]) / int(record.get("epochs", 1))


def final_text(summary: Mapping[str, Any]) -> str | None:
    """The final value of a run's metric; None where the run did not get there."""
    if (final := summary.get("final")) is not None:
        return metric_text(final)
    return "not finite" if summary["status"] == Status.DONE else None


def metric_text(value: float) -> str:
    """Four decimals; what exploded as a power of ten."""
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def clock(seconds: float) -> str:
    """90 -> '1:30', 4000 -> '1:06:40'."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
