"""Writes that a kill at any moment cannot leave half done, and opening files that others may have put in place.

Such a file may be a link to another file, or one that never ends: only regular files are opened, and no links.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

# Of files that are not regular.
KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` to write to, which is then flushed to disk and renamed over `path`.

    If anything is raised, that file is removed and `path` is as before.
    """
    # The process id separates two writers of one path, such as two runs that prepare the same data.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # of an earlier process with this id, or a link to another file
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
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


def open_regular(path: Path, flags: int = os.O_RDONLY, folder: int | None = None) -> int:
    """A descriptor of a regular file; OSError for anything else, a link to one included. Never waits, as a FIFO would.

    Args:
        flags: of `os.open`, such as O_RDWR | O_CREAT
        folder: the descriptor of a folder that a relative path starts from
    """
    with suppress(FileNotFoundError):  # first: opening a device may do something
        _check_regular(os.stat(path, dir_fd=folder, follow_symlinks=False), path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder)
    try:
        _check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_to_read(path: Path, most: int) -> BufferedReader:
    """Open a regular file of at most `most` bytes; OSError for anything else."""
    file = open(open_regular(path), "rb")  # noqa: SIM115 - the caller closes it
    if (size := os.fstat(file.fileno()).st_size) > most:
        file.close()
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read", str(path))
    return file


def _check_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind} and not a regular file", str(path))


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
