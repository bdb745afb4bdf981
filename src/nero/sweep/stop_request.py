"""Ctrl-C or SIGTERM for a sweep: every run of it checkpoints and ends, wherever it is, and then the sweep."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def stop_request(folder: Path) -> Iterator[Path]:
    """The file that the sweep's runs look for. It is there once this process was asked to stop.

    A second Ctrl-C ends the sweep at once and leaves the file, for jobs that wait in a queue or are still at it.
    """
    path = folder.absolute() / f"stop-{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of an earlier process of this number
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield path
        return

    def ask(number: int, frame: FrameType | None) -> None:
        path.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"{signal.Signals(number).name}: runs checkpoint and end; Ctrl-C ends this at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield path
        path.unlink(missing_ok=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
