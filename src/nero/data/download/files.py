"""Files of data sets: downloaded over HTTP, read out of archives, and accepted only with the right checksum.

Nothing is extracted to a path that an archive gives, and nothing longer than the caller allows is read, so a hostile
archive can neither write outside the data root nor fill the memory.
"""

import errno
import gzip
import hashlib
import http.client
import itertools
import shutil
import socket
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from nero.atomic import write_atomic

# One mirror rejects urllib's own user agent.
USER_AGENT = "Mozilla/5.0 (compatible; nero-prepare-data)"
INCEPTION_FILE = "inception-fid.pth"
INCEPTION_DIGEST = "d4e3e118bd273aef6848ce850542e317970b81f34dea99dd90463be77cbac59e"
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}  # while reading; they have no class of their own
RETRIED_STATUSES = {408, 416, 425, 429}  # besides 5xx; any other 4xx is final


class DamagedData(ValueError):
    """A file's content does not match its checksum."""


class FetchFailed(OSError):
    """A file could not be fetched or read; the message is one line."""


class DataFile(ABC):
    """A file of a data set."""

    path: str  # relative to the data root
    limit: int  # no correct copy has more bytes

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @abstractmethod
    def fault(self, size: int, content: bytes | None) -> str | None:
        """What is wrong with a copy of this size and, unless None, this content; None if nothing is."""

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        """What is wrong with the copy under root, or None; without checksums only existence and length are checked."""
        place = root / self.path
        if not place.is_file():
            return f"{place} is missing"
        fault = self.fault(place.stat().st_size, place.read_bytes() if checksums else None)
        return fault and f"{place} is damaged: {fault}"

    def put(self, root: Path, content: bytes) -> None:
        """Write the content atomically; raises DamagedData if it is not the right one."""
        if fault := self.fault(len(content), content):
            raise DamagedData(f"{self.name} came damaged: {fault}")
        place = root / self.path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, content)


@dataclass(frozen=True)
class CheckedFile(DataFile):
    """A file that is recognised by its size and SHA-256."""

    path: str
    limit: int
    sha256: str  # of the sorted lines if they may be in any order
    any_line_order: bool = False

    @classmethod
    def of(cls, path: str, content: bytes, any_line_order: bool = False) -> "CheckedFile":
        """The entry that accepts exactly this content."""
        return cls(path, len(content), _sha256(content, any_line_order), any_line_order)

    def fault(self, size: int, content: bytes | None) -> str | None:
        if size != self.limit:
            return f"{size:,} bytes instead of {self.limit:,}"
        if content is not None and _sha256(content, self.any_line_order) != self.sha256:
            return "its checksum is wrong"
        return None


@dataclass(frozen=True)
class InceptionFile(DataFile):
    """A file of Inception's weights, recognised by the digest of its tensors."""

    path: str = INCEPTION_FILE
    digest: str = INCEPTION_DIGEST  # see `inception.digest`
    least: int = 87_280_000  # bytes that the tensors alone take
    limit: int = 128 << 20

    def fault(self, size: int, content: bytes | None) -> str | None:
        if not self.least <= size <= self.limit:
            return f"{size:,} bytes, but the weights take {self.least:,}"
        if content is None:
            return None
        from nero.data.download.inception import check_weights  # imports torch, which takes seconds

        try:
            check_weights(content, self.digest)
        except DamagedData as error:
            return str(error)
        return None


def _sha256(content: bytes, any_line_order: bool) -> str:
    if any_line_order:
        content = b"\n".join(sorted(content.split(b"\n")))
    return hashlib.sha256(content).hexdigest()


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
        for name, file in _members(path, missing):
            yield name, _read(file, name, missing.pop(name))
            if not missing:
                return
    except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        raise FetchFailed(f"{path.name} cannot be read: {error}") from error
    raise FetchFailed(f"{path.name} does not contain {', '.join(sorted(missing))}")


def _members(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name in wanted:
                    yield name, archive.open(name)
        return
    # "r|*" streams: one pass over the compressed file, whatever the order of the members.
    with tarfile.open(path, "r|*") as tar:
        for member in tar:
            if member.name in wanted and member.isreg() and (file := tar.extractfile(member)):
                yield member.name, file


def _read(file: IO[bytes] | gzip.GzipFile, name: str, limit: int) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise FetchFailed(f"{name} has more than the {limit:,} bytes expected")
    return content


# -------------------------------------------------------------------------------------------------------------- HTTP


@dataclass(frozen=True)
class Retries:
    """When to give up a download."""

    timeout: float = 10.0  # seconds without a byte, and seconds to connect
    attempts: int = 5  # tries while the server answers
    connects: int = 2  # tries while it cannot be reached; fewer, so that a machine without a network fails soon
    pause: float = 1.0  # seconds before the second try, doubled before each further one


DEFAULT_RETRIES = Retries()


def download(url: str, target: Path, retries: Retries = DEFAULT_RETRIES) -> None:
    """Fetch url into target with progress on stderr, retrying and resuming; raises FetchFailed. Checks no content."""
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise FetchFailed(f"{url} is neither http nor https")
    target.unlink(missing_ok=True)
    for attempt in itertools.count(1):
        reason, connected = _fetch_rest(url, target, retries.timeout)
        if reason is None:
            return
        if attempt >= (retries.attempts if connected else retries.connects):
            raise FetchFailed(f"{target.name}: {reason}")
        time.sleep(retries.pause * 2 ** (attempt - 1))


def _fetch_rest(url: str, target: Path, timeout: float) -> tuple[str | None, bool]:
    """Append to target what is still missing; why another try is needed, or None; and whether the server answered."""
    have = target.stat().st_size if target.exists() else 0
    headers = {"User-Agent": USER_AGENT, **({"Range": f"bytes={have}-"} if have else {})}
    connected = False
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            connected = True
            have = have if response.status == 206 else 0  # else the server sends the whole file again
            length = response.headers.get("Content-Length", "")
            total = have + int(length) if length.isdigit() else None
            if not sys.stderr.isatty():  # one line instead of the bar
                size = f"{total:,}" if total is not None else "unknown number of"
                print(f"  {target.name}: {size} bytes", file=sys.stderr, flush=True)
            bar: dict[str, Any] = {"initial": have, "desc": f"  {target.name}", "leave": False, "disable": None}
            with target.open("ab" if have else "wb") as file, tqdm.wrapattr(response, "read", total, **bar) as body:
                shutil.copyfileobj(body, file)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server's file is shorter than our part, so it is another file: start again
            target.unlink(missing_ok=True)
        if error.code < 500 and error.code not in RETRIED_STATUSES:
            raise FetchFailed(f"{target.name}: HTTP status {error.code}") from error
        return f"HTTP status {error.code}", True
    except NETWORK_ERRORS as error:
        return _reason(error), connected
    except OSError as error:
        if error.errno not in UNREACHABLE:
            raise  # of the disk
        return _reason(error), connected
    # Reading in parts does not report that a connection was cut, so the length is compared here.
    have = target.stat().st_size
    cut = total is not None and have < total
    return (f"the connection ended after {have:,} of {total:,} bytes" if cut else None), True


def _reason(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return str(cause) or type(cause).__name__
