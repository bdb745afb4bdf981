"""Requests to stop a run: a signal (Ctrl-C, a scheduler's warning), a deadline, or a sweep's stop file."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nero.runs.stopping import Limits

NO_LIMITS = Limits()
# Sent by SLURM and submitit some time before the end. Handlers set before ours are called once all is written.
WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
_requested: str | None = None
_to_forward: signal.Signals | None = None
_previous: dict[signal.Signals, Any] = {}  # the handlers that ours replace, while signals are handled


def stop_reason(limits: Limits = NO_LIMITS) -> str | None:
    """Why this process should stop now, or None. A signal also stops the runs that would follow in this process."""
    return _requested or limits.reason()


def clear_request() -> None:
    """Forget earlier signals."""
    global _requested, _to_forward
    _requested = _to_forward = None


def forward_signal() -> None:
    """Raise a scheduler's warning again for the handler that was set before ours, now that all is written.

    Submitit's handler then requeues the job and ends this process, or raises.
    """
    global _to_forward
    number, _to_forward = _to_forward, None
    if number is not None:
        signal.raise_signal(number)


@contextmanager
def signals_as_requests() -> Iterator[None]:
    """Turn SIGTERM, a scheduler's warning and the first Ctrl-C into a request; a second Ctrl-C interrupts at once."""
    # Only the main thread may set handlers. Nested uses change nothing.
    if threading.current_thread() is not threading.main_thread() or _previous:
        yield
        return
    for number in (signal.SIGTERM, signal.SIGINT, *WARNINGS):
        _previous[number] = signal.signal(number, _request)
    try:
        yield
    finally:
        for number, handler in _previous.items():
            signal.signal(number, handler)
        _previous.clear()


def _request(number: int, frame: FrameType | None) -> None:
    global _requested, _to_forward
    received = signal.Signals(number)
    _requested = received.name
    if received in WARNINGS and callable(_previous[received]):
        _to_forward = received
    signal.signal(signal.SIGINT, signal.default_int_handler)
