"""Asking a run to stop: SIGTERM (a scheduler's warning), Ctrl-C, or a deadline. It then checkpoints and ends."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_requested: str | None = None


def stop_reason(deadline: float = math.inf) -> str | None:
    """Why this process should stop now, or None. `deadline` is in Unix seconds.

    A signal stays in force for the runs that would follow in the same process.
    """
    if _requested:
        return _requested
    return "the time budget is used up" if time.time() >= deadline else None


def forget() -> None:
    """Take no earlier signal for one that concerns what comes next."""
    global _requested
    _requested = None


@contextmanager
def listening() -> Iterator[None]:
    """Turn SIGTERM and the first Ctrl-C into a request; a second Ctrl-C interrupts at once."""

    def request(number: int, frame: FrameType | None) -> None:
        global _requested
        _requested = signal.Signals(number).name
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
