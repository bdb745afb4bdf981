"""Ctrl-C or SIGTERM for a sweep: all of its runs checkpoint and end, wherever they are, and then the sweep."""

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
    """The file that the sweep's runs look for. It exists once this process was asked to stop.

    A second Ctrl-C ends the sweep at once and leaves the file, for jobs that are queued or still running.
    """
    path = folder.absolute() / f"stop-{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of an earlier process with this id
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield path
        return

    def request(number: int, frame: FrameType | None) -> None:
        path.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"{signal.Signals(number).name}: runs checkpoint and end; Ctrl-C ends this at once", file=sys.stderr)

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield path
        path.unlink(missing_ok=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
