"""GPUs shared out among runs side by side: each run takes the one with the fewest."""

import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def default_folder() -> Path:
    """Of this machine and user, by number: not every user of a container has a name."""
    return Path(tempfile.gettempdir()) / f"nero-gpus-{os.getuid()}"


@contextmanager
def slot(gpus: int, folder: Path) -> Iterator[int]:
    """The number of a GPU, from 0, that no other of `gpus` has fewer runs than.

    A place is a locked file: the kernel gives it back when its holder dies, however it dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for place in itertools.count():
        for gpu in range(gpus):
            with (folder / f"gpu{gpu}-{place}").open("a") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                yield gpu
                return
