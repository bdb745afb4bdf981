"""The progress line and the wandb mirror."""

import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nero.runs.formatting import clock, seconds_per_epoch
from nero.runs.store import Store
from nero.runs.tracking import WITHIN_EPOCH, Progress

RUN = "task-optim-0.1-s0-00000000"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "seconds": 2.0, "val/error": 1 / epoch}


def play(progress: Progress, epochs: int, final: float | None = 0.25) -> None:
    progress.start(RUN, Path(), {}, epochs, 0, "val/error")
    for epoch in range(1, epochs + 1):
        progress.step(epoch - 1, 1, 2)
        progress.epoch(record(epoch))
    summary = {"status": "done", "epochs_done": epochs, "epochs": epochs, "final": final, "seconds": 70.0}
    progress.finish({**summary, "run_id": RUN})


def test_progress_prints_few_plain_lines_without_terminal() -> None:
    stream = io.StringIO()
    play(Progress(stream), 50)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4, "start, first epoch, last epoch, end"
    assert all(line.startswith(RUN) for line in lines)
    assert "\r" not in stream.getvalue()
    for text in ("epoch 1/50", "val/error 1.0000", "2.00 s/epoch", "left"):
        assert text in lines[1]
    assert lines[-1] == f"{RUN}  done  epoch 50/50  val/error 0.2500  1:10 in all"


@pytest.mark.parametrize("begun", [0, 10, 13])
def test_progress_always_shows_first_logged_epoch(begun: int) -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.start(RUN, Path(), {}, 50, begun, "val/error")
    for epoch in (20, 30, 40, 50):
        progress.epoch({**record(epoch), "epochs": 10})
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == [f"epoch {begun}/50", "epoch 20/50", "epoch 50/50"]
    assert "0.20 s/epoch" in lines[1], "of the 2 seconds that ten of them took"


def test_progress_shows_first_epoch_of_each_run_in_process() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for _ in range(2):
        play(progress, 5)
    assert stream.getvalue().count("epoch 1/5 ") == 2


@pytest.mark.parametrize(
    ("more", "seconds"), [({}, 6.0), ({"epochs": 1}, 6.0), ({"epochs": 4}, 1.5), ({"seconds": 0}, 0.0)]
)
def test_seconds_per_epoch(more: dict[str, float], seconds: float) -> None:
    assert seconds_per_epoch({"epoch": 8, "seconds": 6, **more}) == seconds


@pytest.mark.parametrize(("final", "text"), [(6.494e269, "6.494e+269"), (None, "not finite")])
def test_huge_or_non_finite_metric_is_formatted_compactly(final: float | None, text: str) -> None:
    stream = io.StringIO()
    play(Progress(stream), 2, final)
    assert stream.getvalue().splitlines()[-1] == f"{RUN}  done  epoch 2/2  val/error {text}  1:10 in all"


def test_slow_run_prints_progress_at_intervals_without_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 11))
    monkeypatch.setattr("nero.runs.tracking.time.monotonic", lambda: next(now))
    stream = io.StringIO()
    play(Progress(stream, every=10), 6)
    assert len(stream.getvalue().splitlines()) == 8


class Clock:
    """A fake clock, which advances only when `now` is changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("nero.runs.tracking.time.monotonic", lambda: self.now)


def test_progress_is_printed_within_long_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a terminal, because an epoch of ImageNet may take half an hour."""
    clock_, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(stream, every=10)
    progress.start(RUN, Path(), {}, 90, 0, "val/error")
    for step in range(1, 36):  # a call every 20 seconds; an epoch takes 12 minutes
        clock_.now += 20
        progress.step(0, 100 * step, 3600)
    lines = stream.getvalue().splitlines()[1:]
    assert len(lines) == 8, "one in 80 seconds, the first look after the minute"
    assert all(line.startswith(f"{RUN}  epoch 0.") for line in lines)
    # 400 of 3600 steps took 80 seconds; 90 epochs less these steps remain.
    assert lines[0] == f"{RUN}  epoch 0.11/90  {clock(720 * (90 - 1 / 9))} left"
    progress.epoch({"epoch": 1, "seconds": 720, "val/error": 0.9})
    clock_.now += WITHIN_EPOCH
    progress.step(1, 300, 3600)
    assert len(stream.getvalue().splitlines()) == 10, "not yet"
    clock_.now += 1
    progress.step(1, 301, 3600)
    assert stream.getvalue().splitlines()[-1].startswith(f"{RUN}  epoch 1.08/90  val/error 0.9000  720.00 s/epoch")


def test_remaining_time_is_correct_after_mid_epoch_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_, stream = Clock(monkeypatch), io.StringIO()
    progress = Progress(stream)
    progress.start(RUN, Path(), {}, 10, 4.75, "val/error")
    clock_.now += 100
    progress.step(4, 80, 100)  # 0.05 epochs in 100 seconds
    clock_.now += 400
    progress.epoch({"epoch": 5, "seconds": 2000, "val/error": 0.5})
    lines = stream.getvalue().splitlines()
    assert lines[0] == f"{RUN}  epoch 4.75/10  resuming"
    assert lines[1] == f"{RUN}  epoch 4.80/10  {clock(5.2 * 2000)} left"
    assert lines[2] == f"{RUN}  epoch 5/10  val/error 0.5000  2000.00 s/epoch  {clock(5 * 2000)} left"


def test_progress_rewrites_one_line_on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    play(Progress(stream), 5)
    assert stream.getvalue().count("\n") == 1
    shown = stream.getvalue().rstrip("\n").split("\r")
    assert shown[-1].rstrip().endswith("1:10 in all")
    for before, after in itertools.pairwise(shown):
        assert len(after) >= len(before.rstrip()), "a shorter line must wipe out the longer one before it"


def test_progress_is_plain_on_shared_terminal_and_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    play(Progress(stream, plain=True), 5)
    assert "\r" not in stream.getvalue()
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    play(Progress(stream), 5)
    assert all(len(line) < 40 for line in stream.getvalue().rstrip("\n").split("\r"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (90, "1:30"), (4000, "1:06:40"), (-3, "0:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.slow
def test_wandb_mirrors_offline_without_login_and_keeps_run_id(
    nero_command: Callable[..., "subprocess.CompletedProcess[str]"], small: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    home = {"HOME": str(tmp_path / "home"), "WANDB_API_KEY": ""}
    os.makedirs(home["HOME"])
    result = nero_command("train", *small, "tracking=wandb", **home)
    assert result.returncode == 0, result.stderr
    (run,) = Store(tmp_path / "runs").runs()
    files = list(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 1
    assert files[0].stat().st_size > 0
    plain = nero_command("train", *small, NERO_RUNS=str(tmp_path / "plain"), **home)
    assert plain.returncode == 0
    (other,) = Store(tmp_path / "plain").runs()
    assert other.run_id == run.run_id, "where a run is mirrored does not change what it is"
    assert not list(other.path.glob("wandb*"))


def test_missing_wandb_error_includes_install_hint() -> None:
    code = (
        "import sys; sys.modules['wandb'] = None\n"
        "from nero.runs.tracking import WandbMirror\n"
        "try: WandbMirror()\n"
        "except RuntimeError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install -e '.[suite]'" in result.stdout, json.dumps(result.stderr)
