"""Asking a run to stop: a signal (a scheduler's warning, Ctrl-C), a deadline, a sweep. It then checkpoints and ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nero.runs.stopping import Limits

NO_LIMITS = Limits()
WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""What SLURM and submitit send some time before the end. Whoever else listens to them is told once all is written."""

_requested: str | None = None
_to_hand_on: signal.Signals | None = None
_before: dict[signal.Signals, Any] = {}
"""The handlers that ours stand for, while someone is listening."""


def stop_reason(limits: Limits = NO_LIMITS) -> str | None:
    """Why this process should stop now, or None. A signal stays in force for the runs that would follow in it."""
    return _requested or limits.reason()


def forget() -> None:
    """Take no earlier signal for one that concerns what comes next."""
    global _requested, _to_hand_on
    _requested = _to_hand_on = None


def hand_on() -> None:
    """Tell whoever had set a handler for a scheduler's warning of it, now that all is written.

    Submitit's then has the job queued again and ends this process, or raises.
    """
    global _to_hand_on
    number, _to_hand_on = _to_hand_on, None
    if number is not None:
        signal.raise_signal(number)


@contextmanager
def listening() -> Iterator[None]:
    """Turn SIGTERM, a scheduler's warning and the first Ctrl-C into a request; a second Ctrl-C interrupts at once."""
    # Only the main thread may set handlers; one that listens already goes on.
    if threading.current_thread() is not threading.main_thread() or _before:
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT, *WARNINGS):
        _before[number] = signal.signal(number, _request)
    try:
        yield
    finally:
        for number, handler in _before.items():
            signal.signal(number, handler)
        _before.clear()


def _request(number: int, frame: FrameType | None) -> None:
    global _requested, _to_hand_on
    received = signal.Signals(number)
    _requested = received.name
    if received in WARNINGS and callable(_before[received]):
        _to_hand_on = received
    signal.signal(signal.SIGINT, signal.default_int_handler)
