"""Who writes a run: one process at a time."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RunBusy(RuntimeError):
    """Another process has this run."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, or raise RunBusy naming its holder.

    The kernel drops the lock when its holder dies, however it dies, so there are no stale locks to clean up. The file
    itself stays: removing it would let two processes lock two different files of the same name.
    """
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunBusy(f"{path.parent.name} is being written by {_holder(path)}") from None
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        file.truncate(0)
        file.write(json.dumps(owner).encode())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            fcntl.flock(file, fcntl.LOCK_UN)


def is_held(path: Path) -> bool:
    """Whether some process has the lock file at `path` right now."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _holder(path: Path) -> str:
    try:
        owner = json.loads(path.read_text())
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"
