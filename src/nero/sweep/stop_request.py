"""Ctrl-C or SIGTERM for a sweep: all of its runs checkpoint and end, wherever they are, and then the sweep."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT. Only the main thread may: elsewhere this does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT) if is_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_request(folder: Path) -> Iterator[Path]:
    """The file that the sweep's runs look for. It exists once this process was asked to stop.

    A second Ctrl-C ends the sweep at once and leaves the file, for jobs that are queued or still running.
    """
    path = folder.absolute() / f"stop-{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of an earlier process with this id

    def request(number: int, frame: FrameType | None) -> None:
        path.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"{signal.Signals(number).name}: runs checkpoint and end; Ctrl-C ends this at once", file=sys.stderr)

    with signal_handler(request):
        yield path
        path.unlink(missing_ok=True)
