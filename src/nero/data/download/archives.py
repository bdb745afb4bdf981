"""Named members out of gzip, tar and zip files, read into memory.

Nothing is ever extracted by the path that an archive gives, and nothing longer than the caller allows is read, so a
hostile archive can neither write outside the data root nor fill the memory.
"""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO


class BadArchive(ValueError):
    """An archive cannot be read, or lacks a member; the message is one line."""


def read_gzip(path: Path, limit: int) -> bytes:
    """The content of a gzip file of at most `limit` bytes unpacked."""
    try:
        with gzip.open(path) as file:
            return _read(file, path.name, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise BadArchive(f"{path.name} is not a whole gzip file: {error}") from error


def read_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The members named by `limits`, each of at most that many bytes, in the order of the archive.

    A tar or a zip, told apart by content. Raises BadArchive once the end is reached and a member was not there.
    """
    missing = dict(limits)
    try:
        members = _zip_members(path, missing) if zipfile.is_zipfile(path) else _tar_members(path, missing)
        for name, content in members:
            del missing[name]
            yield name, content
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise BadArchive(f"{path.name} cannot be read: {error}") from error
    if missing:
        raise BadArchive(f"{path.name} does not hold {', '.join(sorted(missing))}")


def _tar_members(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    # "r|*" streams: one pass over the compressed file, whatever the order of the members.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if not wanted:  # the caller strikes off what it has received
                return
            if member.name in wanted and member.isreg():
                file = archive.extractfile(member)
                assert file is not None  # it is a regular file
                yield member.name, _read(file, member.name, wanted[member.name])


def _zip_members(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in [name for name in dict.fromkeys(archive.namelist()) if name in wanted]:
            with archive.open(name) as file:
                yield name, _read(file, name, wanted[name])


def _read(file: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise BadArchive(f"{name} holds more than the {limit:,} bytes expected")
    return content
