"""Who writes a run: one process at a time, on any of the hosts that share its file system.

Two things say who that is. The kernel's lock on the file, which it drops when its holder dies, however it dies: between
processes of one host nothing is ever stale. And a record in the file, kept fresh by its holder's heartbeat: some shared
file systems keep the kernel's locks to each host, or have none, and there the record is all that another host can see.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nero.atomic import name_file
from nero.runs.boot import boot_id

HEARTBEAT = 10.0
"""Seconds between two signs of life of a holder: the file's modification time is set to now."""

SILENCE = 60.0
"""Seconds without a sign of life after which a holder on another host is taken for dead."""

NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
"""What a file system without locks answers."""

ATTEMPTS, BETWEEN_ATTEMPTS = 10, 0.02
"""Someone who only looks has the file for a moment, and writes no record: seconds until asking again, and how often."""


class RunBusy(RuntimeError):
    """Another process has this run."""


class Held:
    """A lock that this process has, as whoever writes under it may ask about it."""

    def __init__(self, path: Path, record: bytes) -> None:
        self.path, self.record = path, record

    def check(self) -> None:
        """RunBusy if another process has taken over: one that was suspended for long was taken for dead meanwhile."""
        with suppress(OSError):
            found = self.path.read_bytes()
            if found != self.record and _parsed(found):
                raise RunBusy(f"{self.path.parent.name} was taken over by {_in_words(_parsed(found))}")


@contextmanager
def exclusive(path: Path) -> Iterator[Held]:
    """Hold the lock file at `path`, or raise RunBusy naming its holder.

    The file stays when it is released, empty: removing it would let two processes lock two different files of the same
    name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        locked = _lock(descriptor, path)
        other = _parsed(_content(descriptor))
        if _is_alive(other, descriptor, path, locked):
            wait = f"it is taken over once that process has given no sign of life for {SILENCE:.0f} s"
            raise RunBusy(f"{path.parent.name} is being written by {_in_words(other)}; {wait}")
        held = Held(path, json.dumps(_own_record()).encode())
        _write(descriptor, held)
        released = threading.Event()
        heart = threading.Thread(target=_beat, args=(held, released), name=f"heartbeat of {path}", daemon=True)
        heart.start()
        try:
            yield held
        finally:
            released.set()
            heart.join()
            # On a file system that takes no writes any more, the record stays until it is too old to count.
            with suppress(OSError):
                if _content(descriptor) == held.record:
                    os.ftruncate(descriptor, 0)
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # of processes forked meanwhile as well, which have it open too
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process has the lock file at `path` right now. Asks for no right to write there."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared: an exclusive lock needs a file open for writing on some file systems.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            return True
        except OSError:
            locked = False
        return _is_alive(_parsed(_content(descriptor)), descriptor, path, locked)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    """Whether the kernel's lock is there to be had, and is ours then; RunBusy where another process has it."""
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if (other := _parsed(_content(descriptor))) or attempt == ATTEMPTS - 1:
                raise RunBusy(f"{path.parent.name} is being written by {_in_words(other)}") from None
            time.sleep(BETWEEN_ATTEMPTS)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
    raise AssertionError("the last attempt returns or raises")


def _is_alive(record: dict[str, Any], descriptor: int, path: Path, locked: bool) -> bool:
    """Whether the process of a record still has the lock, asked by one that could lock the file (or cannot at all).

    One of this host would have kept us out, if it lived. Of others there is their heartbeat alone. A time far ahead is
    as old as one far behind: a clock that jumped, and a heart that has not beaten since.
    """
    own = _own_record()
    # Records from before there was a heartbeat lack the boot.
    same_host = all(record.get(key, own[key]) == own[key] for key in ("host", "boot"))
    if not record or (same_host and locked):
        return False
    return abs(_now(path.parent) - os.fstat(descriptor).st_mtime) < SILENCE


def _now(folder: Path) -> float:
    """By the clock that sets modification times there, so that those of hosts do not matter; else by ours."""
    try:
        os.utime(folder)
        return folder.stat().st_mtime
    except OSError:
        return time.time()


def _beat(held: Held, released: threading.Event) -> None:
    while not released.wait(HEARTBEAT):
        # A full disk or a server that is away is no reason to stop: the next beat may come through. But once another
        # process has taken over, the sign of life would be in its name.
        with suppress(OSError):
            if held.path.read_bytes() == held.record:
                os.utime(held.path)


def _own_record() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": boot_id(),  # tells apart hosts of one name, and a host from what it was before it was started again
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, 4096, 0)


def _write(descriptor: int, held: Held) -> None:
    """The whole record or none of it."""
    os.ftruncate(descriptor, 0)
    try:
        done = 0
        while done < len(held.record):
            done += os.pwrite(descriptor, held.record[done:], done)
    except OSError as error:
        os.ftruncate(descriptor, 0)
        name_file(error, held.path)
        raise


def _parsed(content: bytes) -> dict[str, Any]:
    """Empty for a lock that was released, and for what is no record."""
    try:
        record = json.loads(content)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _in_words(record: dict[str, Any]) -> str:
    if not all(key in record for key in ("pid", "host", "since")):
        return "another process"
    return f"process {record['pid']} on {record['host']} since {record['since']}"
