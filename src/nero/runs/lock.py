"""The lock of a run: one writer at a time, among all hosts that share the file system.

Two mechanisms work together. The kernel's lock on the file is dropped when its holder dies, so that nothing is ever
stale among processes of one host. The record in the file, kept fresh by the holder's heartbeat, is all that other hosts
see on shared file systems that keep kernel locks to each host, or have none.
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

from nero.atomic import append_whole, open_regular, open_to_read
from nero.runs.records import MOST_BYTES, parse_line
from nero.runs.validation import printable

HEARTBEAT = 10.0  # seconds between two heartbeats of a holder, which set the file's modification time to now
SILENCE = 60.0  # seconds without a heartbeat after which a holder on another host counts as dead
# Errors of a file system without locks.
NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL})
# A reader (`is_held`) has the kernel's lock for a moment without a record: try again.
ATTEMPTS, RETRY_SECONDS = 10, 0.02
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunBusy(RuntimeError):
    """Another process holds the run."""


def boot_id() -> str | None:
    """Identifies one boot of one machine; None where the kernel has no such id."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None


class Held:
    """A lock that this process holds."""

    def __init__(self, path: Path, record: bytes) -> None:
        self.path, self.record = path, record

    def check(self) -> None:
        """Raise RunBusy if another process took the lock over while this one was suspended."""
        with suppress(OSError):
            found = self._read()
            if found != self.record and (other := _parse(found)):
                raise RunBusy(f"{self.path.parent.name} was taken over by {_describe(other)}")

    def beat(self, released: threading.Event) -> None:
        """Send heartbeats until the lock is released."""
        while not released.wait(HEARTBEAT):
            # A full disk or an unreachable server is no reason to stop: the next heartbeat may succeed. After a
            # takeover there must be none, since the file is then the other process's.
            with suppress(OSError):
                if self._read() == self.record:
                    os.utime(self.path, follow_symlinks=False)

    def _read(self) -> bytes:
        with open_to_read(self.path, MOST_BYTES["lock"]) as file:
            return file.read()


@contextmanager
def exclusive(path: Path) -> Iterator[Held]:
    """Hold the lock file at `path`, or raise RunBusy naming its holder; OSError for anything but a regular file.

    The released file stays, empty, unless nothing came of the run (see `RunDirectory.discard`).
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        if other := _living_holder(descriptor, path, locked=_lock(descriptor, path)):
            wait = f"it is taken over after {SILENCE:.0f} s without a heartbeat of that process"
            raise RunBusy(f"{path.parent.name} is being written by {_describe(other)}; {wait}")
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise RunBusy(f"{path.parent.name} was just given up by another process")
        held = Held(path, json.dumps(own_record()).encode())
        os.ftruncate(descriptor, 0)
        append_whole(descriptor, held.record, path)
        released = threading.Event()
        heart = threading.Thread(target=held.beat, args=(released,), name=f"heartbeat of {path}", daemon=True)
        heart.start()
        try:
            yield held
        finally:
            released.set()
            heart.join()
            # If the file system no longer takes writes, the record stays until it is too old to count.
            with suppress(OSError):
                if _content(descriptor) == held.record:
                    os.ftruncate(descriptor, 0)
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # processes forked meanwhile have the file open too
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file at `path`. Needs no write permission."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    try:
        # Shared: on some file systems an exclusive lock needs a file open for writing.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return bool(_living_holder(descriptor, path, locked=True))
    except BlockingIOError:
        return True
    except OSError:
        return bool(_living_holder(descriptor, path, locked=False))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    """Take the kernel's lock. False where the file system has none; RunBusy where another process has it."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            other = _parse(_content(descriptor))
            if other or attempt == ATTEMPTS:
                raise RunBusy(f"{path.parent.name} is being written by {_describe(other)}") from None
            time.sleep(RETRY_SECONDS)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            break
    return False


def _living_holder(descriptor: int, path: Path, locked: bool) -> dict[str, Any]:
    """The record of the holder if it is alive, else {}. `locked`: whether this process has the kernel's lock.

    A holder on this host would have kept the kernel's lock. Of other hosts there is only the heartbeat. A time far in
    the future is as old as one far in the past: the clock jumped, and there has been no heartbeat since.
    """
    record, own = _parse(_content(descriptor)), own_record()
    # Records of older code have no boot id.
    same_host = all(record.get(key, own[key]) == own[key] for key in ("host", "boot"))
    if not record or (same_host and locked):
        return {}
    try:  # by the clock that sets modification times there, which need not agree with this host's
        os.utime(path.parent)
        now = path.parent.stat().st_mtime
    except OSError:
        now = time.time()
    return record if abs(now - os.fstat(descriptor).st_mtime) < SILENCE else {}


def own_record() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": boot_id(),  # distinguishes hosts of one name, and a host from itself before a reboot
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, MOST_BYTES["lock"], 0)


def _parse(content: bytes) -> dict[str, Any]:
    """The record; empty for a released lock or an invalid record."""
    record = parse_line(content)
    return record if isinstance(record, dict) else {}


def _describe(record: dict[str, Any]) -> str:
    if not all(key in record for key in ("pid", "host", "since")):
        return "another process"
    return printable(f"process {record['pid']} on {record['host']} since {record['since']}")[:200]
