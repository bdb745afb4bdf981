"""Runs side by side on one machine: GPUs are shared out among them, and each can count the others."""

import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


def default_folder() -> Path:
    """Of this machine and user, by number: not every user of a container has a name."""
    return Path(tempfile.gettempdir()) / f"nero-gpus-{os.getuid()}"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def slot(gpus: int, folder: Path) -> Iterator[int]:
    """The number of a GPU, from 0, that no other of `gpus` has fewer runs than.

    A place is a locked file: the kernel gives it back when its holder dies, however it dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for place in itertools.count():
        for gpu in range(gpus):
            with (folder / f"gpu{gpu}-{place}").open("a") as file:
                if not _locked(file):
                    continue
                yield gpu
                return


Neighbours = Callable[[], dict[str, int]]
"""How many other runs are on this machine now, by what they are bound by."""


PRESENT = "run-"


def nobody() -> dict[str, int]:
    """Where others are not counted."""
    return {}


@contextmanager
def neighbours(bound_by: str, folder: Path) -> Iterator[Neighbours]:
    """Be counted as a run that is bound by this, "gpu" or "cpu", and count the others; `nobody` if it cannot be."""
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            places = (folder / f"{PRESENT}{bound_by}-{place}" for place in itertools.count())
            own = next(path for path in places if _locked(held.enter_context(path.open("a"))))
        except OSError:
            yield nobody
            return
        yield lambda: _count_others(own)


def _count_others(own: Path) -> dict[str, int]:
    found = {"gpu": 0, "cpu": 0}
    for path in own.parent.glob(f"{PRESENT}*"):
        with path.open("a") as file:
            if path != own and not _locked(file, fcntl.LOCK_SH):
                found[path.name.split("-")[1]] += 1
    return found


def _locked(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock the file unless someone else has."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
