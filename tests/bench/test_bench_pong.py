"""Tests of the PPO benchmark with small runs on the CPU, and with a stand-in for MPS, which lets runs share a GPU."""

import os
import re
import time
from pathlib import Path

import pytest

from conftest import SMALL_PONG, bench_module, exit_status
from nero.plans.config import ROOT

MPS = "nvidia-cuda-mps-control"
SMALL = [*SMALL_PONG, "task.epochs=4", "task.log_every=1"]
ENOUGH = ["--seconds", "100", "--warm-up", "0"]  # long enough for runs to finish
NUMBER = r"[\d,]+"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the MPS control program that logs its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / MPS
    program.write_text(
        f"#!/bin/sh\n"
        f'if [ "$1" = -d ]; then said=started; else read said; fi\n'
        f'[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || said="$said without folders"\n'
        f'echo "$said $# $CUDA_MPS_PIPE_DIRECTORY" >> {folder}/calls\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return folder


def calls(control: Path) -> list[list[str]]:
    path = control / "calls"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def record(steps: int, seconds: float) -> dict[str, float]:
    return {"train/environment_steps": steps, "seconds": seconds}


@pytest.mark.slow
def test_single_run_of_embedded_game_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    words = ["data=embedded", *SMALL]
    assert bench_module("pong").main(["--runs", "1", *ENOUGH, "--out", str(out), *words]) == 0
    text = out.read_text()
    title, _, told, _, head, rule, line = text.splitlines()
    assert title == "# Environment steps per second"
    assert re.fullmatch(rf"pong; CPU, \d+ threads, {os.cpu_count()} CPU cores, torch .*, code .*\.", told)
    assert told.endswith(f", {', '.join(words)}.")
    assert head == "| what | steps per second, each | in all |"
    assert rule == "| --- | ---: | ---: |"
    row = re.fullmatch(rf"\| 1 run \| ({NUMBER}) \| ({NUMBER}) \|", line)
    assert row is not None
    assert row[1] == row[2] != "0"
    assert capsys.readouterr().out == text


@pytest.mark.slow
def test_environment_only_and_concurrent_runs_have_rows(
    capsys: pytest.CaptureFixture[str], control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    bench = bench_module("pong")
    monkeypatch.setattr(bench, "GAME_SECONDS", 0.1)
    monkeypatch.setattr(bench, "GAMES_ALONE", (2, 3))  # each game takes a third of a second to start
    assert bench.main(["--runs", "2", *ENOUGH, *SMALL, "task.game=breakout"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[2].startswith("breakout; ")
    for line, what in zip(said[6:8], ("2 games alone", "3 games alone"), strict=True):
        assert re.fullmatch(rf"\| {what} \|  \| {NUMBER} \|", line)
    row = re.fullmatch(rf"\| 2 runs at once \| ({NUMBER}) - ({NUMBER}) \| ({NUMBER}) \|", said[8])
    assert row is not None
    low, high, together = (int(number.replace(",", "")) for number in row.groups())
    assert 0 < low <= high
    assert together == pytest.approx(low + high, abs=1), "rounded each"
    assert calls(control) == [], "on a CPU there is no GPU to share"


@pytest.mark.slow
def test_existing_output_file_is_kept_if_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))  # of the optimiser
    out = tmp_path / "table.md"
    out.write_text("earlier")
    words = ["data=embedded", *SMALL, "optim=sgd", "optim._target_=support.deadly.Raising", "--out", str(out)]
    assert bench_module("pong").main(["--runs", "1", *ENOUGH, *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: a run failed: ")
    assert "ArithmeticError" in said
    assert out.read_text() == "earlier"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--seconds", "0.01", "--warm-up", "0"],  # stopped before the first record
        ["--seconds", "100", "--warm-up", "99"],  # finished before the warm-up ends
    ],
)
def test_run_without_timed_records_gives_one_line_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert bench_module("pong").main(["--runs", "1", *words, "data=embedded", *SMALL]) == 2
    assert time.monotonic() - begun < 90, "a run that is done is not waited for"
    span = " and ".join(f"{float(word):g}" for word in (words[3], words[1]))
    assert capsys.readouterr().err == f"error: a run logged nothing between {span} s; give it more --seconds\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quick"], "unknown argument quick"),
        (["--games=8"], "unknown argument --games=8"),
        (["--seconds", "20"], "--warm-up less than --seconds"),
        (["--warm-up", "60"], "--warm-up less than --seconds"),
        (["--warm-up", "-1"], "--warm-up less than --seconds"),
        (["--runs", "1", "0"], "--runs must be positive"),
        (["--out", "/nowhere/at/all.md"], "there is no folder /nowhere/at"),
        (["task.game=pingpong", *SMALL], "ale-py has no game 'pingpong'"),
        (["optim=nerro", *SMALL], "there is no optim=nerro (did you mean nero?); there are: adam, "),
        (["optim.lr=0", *SMALL], "optim.lr must be a positive number"),
    ],
)
def test_invalid_arguments_give_one_line_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "task.game=pingpong" in words:
        pytest.importorskip("ale_py")
    assert exit_status("benchmarks.pong", words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("warm_up", "rate"),
    [
        (0, 1000 / 20),
        (1, 900 / 10),  # the first record starts before the warm-up ends
        (10, 900 / 10),
        (11, 600 / 2),
        (19, 0),  # the last record starts after 18 seconds
    ],
)
def test_rate_covers_only_records_starting_after_warm_up(warm_up: float, rate: float) -> None:
    records = [record(100, 10), record(400, 8), record(1000, 2)]
    assert bench_module("pong")._rate(records, warm_up) == pytest.approx(rate)


def test_rate_of_empty_log_is_zero() -> None:
    assert bench_module("pong")._rate([], 0) == 0


@pytest.mark.parametrize(("device", "what"), [("cuda", "3 runs at once, by MPS"), ("cpu", "3 runs at once")])
def test_concurrent_runs_on_gpu_use_mps(
    control: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, what: str
) -> None:
    """The device is faked, so no GPU is needed."""
    bench = bench_module("pong")
    given = []

    def rates(count: int, seconds: float, warm_up: float, overrides: list[str]) -> list[float]:
        given.append("CUDA_MPS_PIPE_DIRECTORY" in os.environ)
        return [1000.0 * (i + 1) for i in range(count)]

    class Device:
        type = device

    monkeypatch.setattr(bench, "_concurrent_rates", rates)
    monkeypatch.setattr("nero.train.build.choose_device", lambda name: Device)
    monkeypatch.setattr("nero.train.build.device_name", lambda device: "a device")
    assert bench.main(["--runs", "1", "3", *ENOUGH, "data=embedded"]) == 0
    alone, together = capsys.readouterr().out.splitlines()[6:]
    assert alone == "| 1 run | 1,000 | 1,000 |"
    assert together == f"| {what} | 1,000 - 3,000 | 6,000 |"
    assert given == [False, device == "cuda"]
    assert [call[0] for call in calls(control)] == (["started", "quit"] if device == "cuda" else [])
