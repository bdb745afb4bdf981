"""Writes that a kill at any moment cannot leave half done."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` to write to, which is then flushed to disk and renamed over `path`.

    If anything is raised, that file is removed and `path` is as before.
    """
    # The process id separates two writers of one path, such as two runs that prepare the same data.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error says why
            part.unlink(missing_ok=True)
        _name_file(error, path)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all."""
    with replacing(path) as part:
        part.write_bytes(data)


def append_whole(descriptor: int, data: bytes, path: Path) -> None:
    """Write `data` at the end of an open file and flush it to disk, whole or not at all. `path` is for errors."""
    before = os.fstat(descriptor).st_size
    try:
        # One write, so that readers see all of it or, after a kill, a tail that they skip. A nearly full disk may take
        # only a part: the next write then raises.
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, before)
        _name_file(error, path)
        raise


def _name_file(error: BaseException, path: Path) -> None:
    """Errors of writing to a descriptor do not name the file."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)
