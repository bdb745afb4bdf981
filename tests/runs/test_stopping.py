"""Deadlines, stop files and signals that stop runs."""

import math
import os
import re
import signal
import time
from pathlib import Path

import pytest

from nero.engine import interrupt
from nero.plans.config import compose, limits_of
from nero.runs import lock, stopping
from nero.runs.stopping import Limits, moment_after, monotonic_at


def test_deadline_round_trips_through_text() -> None:
    for seconds in (0.0, 5.0, 540.0, 1e6):
        assert monotonic_at(moment_after(seconds)) == pytest.approx(time.monotonic() + seconds, abs=0.5)


def test_wall_clock_change_does_not_move_deadline_on_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = moment_after(100)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 7200)
    assert monotonic_at(moment) == pytest.approx(time.monotonic() + 100, abs=0.5)


def test_deadline_uses_wall_clock_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moment = moment_after(100)
    other = tmp_path / "boot_id"
    other.write_text("another-start\n")
    monkeypatch.setattr(lock, "BOOT_ID", other)
    assert monotonic_at(moment) == pytest.approx(time.monotonic() + 100, abs=1.5)
    monkeypatch.setattr(lock, "BOOT_ID", tmp_path / "none")
    assert re.fullmatch(r"\d+", moment_after(100)), "where a machine's starts have no names"
    assert monotonic_at(moment_after(100)) == pytest.approx(time.monotonic() + 100, abs=1.5)


@pytest.mark.parametrize("kind", [float, int, str])
def test_unix_timestamp_is_accepted_as_deadline(kind: type) -> None:
    assert monotonic_at(kind(time.time() + 50)) == pytest.approx(time.monotonic() + 50, abs=1.5)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], math.inf),
        (["machine.budget_seconds=60"], 60),
        (["machine.deadline={moment}"], 30),
        (["machine.budget_seconds=60", "machine.deadline={moment}"], 30),
        (["machine.budget_seconds=10", "machine.deadline={moment}"], 10),
    ],
)
def test_deadline_is_earlier_of_sweep_deadline_and_run_budget(words: list[str], seconds: float) -> None:
    moment = moment_after(30)
    limits = limits_of(compose([word.format(moment=moment) for word in words]).cfg.machine)
    assert limits.deadline - time.monotonic() == pytest.approx(seconds, abs=5)


def test_stop_file_is_polled_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("nero.runs.stopping.time.monotonic", lambda: now[0])
    limits = Limits(stop_file=tmp_path / "stop")
    assert limits.reason() is None
    (tmp_path / "stop").touch()
    now[0] += 0.5 * stopping.CHECK_SECONDS
    assert limits.reason() is None, "not at every step"
    now[0] += stopping.CHECK_SECONDS
    assert limits.reason() == "the sweep was asked to stop"


def test_signal_is_forwarded_to_launcher_once_after_handling() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with interrupt.signals_as_requests():
            os.kill(os.getpid(), signal.SIGUSR2)
            assert interrupt.stop_reason() == "SIGUSR2"
        assert heard == []
        interrupt.forward_signal()
        assert heard == [signal.SIGUSR2]
        interrupt.forward_signal()
        assert heard == [signal.SIGUSR2], "once"
    finally:
        signal.signal(signal.SIGUSR2, before)
        interrupt.clear_request()


def test_signal_without_previous_handler_is_not_forwarded() -> None:
    """The signal's default action would end the process. Handlers are nested, as in runs of several ranks."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        with interrupt.signals_as_requests(), interrupt.signals_as_requests():
            os.kill(os.getpid(), signal.SIGUSR1)
        interrupt.forward_signal()
    finally:
        signal.signal(signal.SIGUSR1, before)
        interrupt.clear_request()
