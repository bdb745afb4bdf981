"""Writes that a kill at any moment cannot leave half done."""

import os
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all: written beside it, flushed to disk, then renamed over it."""
    # The process id keeps two writers of one path (a lock held wrongly, a report run twice) out of each other's file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
