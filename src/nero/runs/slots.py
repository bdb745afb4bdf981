"""Runs side by side on one machine: they share the GPUs evenly and count each other.

Every run holds locked files in a common folder. The kernel drops the locks of a process that dies.
"""

import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from nero.atomic import open_regular

# Number of other runs on this GPU now, by what they are bound by: "gpu" or "cpu".
OtherRuns = Callable[[], dict[str, int]]


def default_folder() -> Path:
    """One folder per machine and user id: not every user of a container has a name.

    Others can write to the folder that it is in, so one that somebody else has put there, or may write to, is not used.
    """
    name = f"nero-gpus-{os.getuid()}"
    for place in itertools.count():
        folder = Path(tempfile.gettempdir()) / (f"{name}.{place}" if place else name)
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        try:
            found = folder.lstat()
        except OSError:  # it cannot be made: runs are not counted
            break
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            break
    return folder


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def slot(gpus: int, folder: Path) -> Iterator[int]:
    """Hold a place on the GPU with the fewest runs; yields its index below `gpus`."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in itertools.count():
        for gpu in range(gpus):
            with _open(folder / f"gpu{gpu}-{place}") as file:
                if _try_lock(file):
                    yield gpu
                    return


def no_other_runs() -> dict[str, int]:
    """For runs that do not count others."""
    return {}


@contextmanager
def counted_among(bound_by: str, folder: Path) -> Iterator[OtherRuns]:
    """Be counted as a run bound by "gpu" or "cpu", and count the others; `no_other_runs` if the folder is unusable."""
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            places = (folder / f"run-{bound_by}-{place}" for place in itertools.count())
            own = next(path for path in places if _try_lock(held.enter_context(_open(path))))
        except OSError:
            yield no_other_runs
            return

        def count_others() -> dict[str, int]:
            found = {"gpu": 0, "cpu": 0}
            for path in folder.glob("run-*"):
                with _open(path) as file:
                    if path != own and not _try_lock(file, fcntl.LOCK_SH):
                        found[path.name.split("-")[1]] += 1
            return found

        yield count_others


def _open(path: Path) -> IO[str]:
    return os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "r+")


def _try_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock the file unless another process has."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
