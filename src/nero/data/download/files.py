"""Files of data sets: downloaded over HTTP, read out of archives, and accepted only with the right checksum.

Nothing is extracted to a path that an archive gives, and nothing longer than the caller allows is read, so a hostile
archive can neither write outside the data root nor fill the memory.
"""

import gzip
import hashlib
import http.client
import socket
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from tqdm import tqdm

from nero.atomic import write_atomic

CHUNK = 1 << 18
# One mirror rejects urllib's own user agent.
USER_AGENT = "Mozilla/5.0 (compatible; nero-prepare-data)"
RETRIED_STATUSES = {408, 425, 429}  # besides 5xx; any other 4xx is final


class DamagedData(ValueError):
    """A file's content does not match its checksum."""


class FetchFailed(OSError):
    """A file could not be fetched or read; the message is one line."""


class DataFile(Protocol):
    """A file of a data set. path: relative to the data root; limit: no correct copy has more bytes."""

    @property
    def path(self) -> str: ...

    @property
    def limit(self) -> int: ...

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        """What is wrong with the copy under root, or None; without checksums only existence and length are checked."""
        ...

    def put(self, root: Path, content: bytes) -> None:
        """Write the content atomically; raises DamagedData if it is not the right one."""
        ...


def file_name(file: DataFile) -> str:
    return file.path.rpartition("/")[2]


def write_new(place: Path, content: bytes) -> None:
    """Write atomically, with the folders above."""
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, content)


@dataclass(frozen=True)
class CheckedFile:
    """A file that is recognised by its size and MD5.

    any_line_order:  a copy with the same lines in another order is accepted; md5 is then that of the sorted lines
    """

    path: str
    size: int
    md5: str
    any_line_order: bool = False

    @classmethod
    def of(cls, path: str, content: bytes, any_line_order: bool = False) -> "CheckedFile":
        """The entry that accepts exactly this content."""
        return cls(path, len(content), _md5(content, any_line_order), any_line_order)

    @property
    def limit(self) -> int:
        return self.size

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        place = root / self.path
        if not place.is_file():
            return f"{place} is missing"
        length = place.stat().st_size
        if length != self.size:
            return f"{place} is damaged: {length:,} bytes instead of {self.size:,}"
        if checksums and _md5(place.read_bytes(), self.any_line_order) != self.md5:
            return f"{place} is damaged: its checksum is wrong"
        return None

    def put(self, root: Path, content: bytes) -> None:
        if len(content) != self.size:
            raise DamagedData(f"{file_name(self)} came with {len(content):,} bytes instead of {self.size:,}")
        if _md5(content, self.any_line_order) != self.md5:
            raise DamagedData(f"{file_name(self)} came with a wrong checksum")
        write_new(root / self.path, content)


def _md5(content: bytes, any_line_order: bool) -> str:
    """MD5 protects against damage and mix-ups, not against forgery; it is what the publishers give."""
    if any_line_order:
        content = b"\n".join(sorted(content.split(b"\n")))
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# ---------------------------------------------------------------------------------------------------------- archives


def read_gzip(path: Path, limit: int) -> bytes:
    """The content of a gzip file, at most `limit` bytes unpacked."""
    try:
        with gzip.open(path) as file:
            return _read(file, path.name, limit)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FetchFailed(f"{path.name} is not a complete gzip file: {error}") from error


def read_members(path: Path, limits: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """The members of a tar or zip file named by `limits`, each of at most that many bytes, in the archive's order."""
    missing = dict(limits)
    try:
        for name, content in _zip_members(path, missing) if zipfile.is_zipfile(path) else _tar_members(path, missing):
            del missing[name]
            yield name, content
    except FetchFailed:
        raise
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FetchFailed(f"{path.name} cannot be read: {error}") from error
    if missing:
        raise FetchFailed(f"{path.name} does not contain {', '.join(sorted(missing))}")


def _tar_members(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    # "r|*" streams: one pass over the compressed file, whatever the order of the members.
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            if not wanted:  # the caller removes what it has received
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
        raise FetchFailed(f"{name} has more than the {limit:,} bytes expected")
    return content


# -------------------------------------------------------------------------------------------------------------- HTTP


@dataclass(frozen=True)
class Retries:
    """When to give up a download.

    timeout:   seconds without a byte, and seconds to connect
    attempts:  tries while the server answers
    connects:  tries while it cannot be reached; fewer, so that a machine without a network fails soon
    pause:     seconds before the second try, doubled before each further one
    """

    timeout: float = 10.0
    attempts: int = 5
    connects: int = 2
    pause: float = 1.0


class _Temporary(Exception):
    """A failure worth another try; `connected`: whether the server had answered."""

    def __init__(self, reason: str, connected: bool = True) -> None:
        super().__init__(reason)
        self.connected = connected


def download(url: str, target: Path, retries: Retries | None = None) -> None:
    """Fetch url into target with progress on stderr, retrying and resuming; raises FetchFailed. Checks no content."""
    retries = retries or Retries()
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise FetchFailed(f"{url} is neither http nor https")
    target.unlink(missing_ok=True)
    for attempt in range(1, retries.attempts + 1):
        try:
            return _fetch_rest(url, target, retries.timeout)
        except _Temporary as error:
            if attempt >= (retries.attempts if error.connected else retries.connects):
                raise FetchFailed(f"{target.name}: {error}") from error
        time.sleep(retries.pause * 2 ** (attempt - 1))
    return None


def _fetch_rest(url: str, target: Path, timeout: float) -> None:
    """One try: append to target what is still missing."""
    have = target.stat().st_size if target.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server's file is shorter than our part, so it is another file: start again
            target.unlink(missing_ok=True)
        elif error.code < 500 and error.code not in RETRIED_STATUSES:
            raise FetchFailed(f"{target.name}: HTTP status {error.code}") from error
        raise _Temporary(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(_reason(error), connected=False) from error
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status == 206 and not resumed:
            target.unlink(missing_ok=True)
            raise _Temporary("the server resumed at the wrong place")
        with target.open("ab" if resumed else "wb") as file:
            _copy(response, file, target.name, have if resumed else 0)


def _copy(response: http.client.HTTPResponse, file: BinaryIO, name: str, have: int) -> None:
    """Copy the body, with a progress bar on a terminal and one plain line elsewhere."""
    length = response.headers.get("Content-Length", "")
    total = have + int(length) if length.isdigit() else None
    if not sys.stderr.isatty():
        size = f"{total:,}" if total is not None else "unknown number of"
        print(f"  {name}: {size} bytes", file=sys.stderr, flush=True)
    with tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=f"  {name}", leave=False, disable=None) as bar:
        while True:
            try:
                chunk = response.read(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Temporary(_reason(error)) from error
            if not chunk:
                break
            have += file.write(chunk)
            bar.update(len(chunk))
    # read(n) does not report that a connection was cut, so the length is compared here.
    if total is not None and have < total:
        raise _Temporary(f"the connection ended after {have:,} of {total:,} bytes")


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return str(cause) or type(cause).__name__
