"""Writes that a kill at any moment cannot leave half done."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to: what is there in the end is flushed to disk, then renamed over `path`.

    If anything is raised, it is gone, and `path` is as it was.
    """
    # The process id keeps two writers of one path (a lock held wrongly, a report run twice, data prepared by two runs
    # that begin together) out of each other's file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):  # what was raised before says why there is nothing to be done here
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            name_file(error, path)
        raise


def name_file(error: OSError, path: Path) -> None:
    """Have an error say which file it met, which one that comes of writing to a descriptor does not."""
    if error.errno is not None and error.filename is None:
        error.filename = str(path)


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)
