"""One stream of files cut into parcels of a given size, with checksums: the same files give the same bytes."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from nero.bundle.refusal import Refusal

NAME = "nero-bundle"
SUMS = "SHA256SUMS"
LEAST = 64 << 10
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Nobody's clock: 2000-01-01. Unpacked files have the time at which they were unpacked.
MTIME = 946_684_800


@dataclass(frozen=True)
class Entry:
    """A file of a bundle. path: where it will lie, with forward slashes; content: a file to read, or the bytes."""

    path: str
    content: Path | bytes
    executable: bool = False

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb")


@dataclass(frozen=True)
class Packed:
    """A file as it went in."""

    path: str
    size: int
    sha256: str
    executable: bool


def parse_size(text: str) -> int:
    """Bytes, of a number with or without K, M, G or T, which are powers of 1024; ValueError, one line, for nonsense."""
    match = re.fullmatch(r"(\d+|\d*\.\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is no size such as 64M, 1.5G or 1000000")
    size = int(float(match[1]) * UNITS[match[2].upper()])
    if size < LEAST:
        raise ValueError(f"a parcel of {text} is too small: {LEAST >> 10}K is the least")
    return size


class Parcels(io.RawIOBase):
    """What is written to it lies in files `<folder>/nero-bundle.000`, .001, ... of at most `size` bytes each."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.sums: list[tuple[str, str]] = []
        """(sha256, file name) of the parcels that are finished."""
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._left = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # tarfile writes nothing but bytes
        view = memoryview(data)
        while len(view):
            if self._file is None:
                self._file = (self.folder / f"{NAME}.{len(self.sums):03d}").open("xb")
                self._digest, self._left = hashlib.sha256(), self.size
            part = view[: self._left]
            self._file.write(part)
            self._digest.update(part)
            self._left -= len(part)
            view = view[len(part) :]
            if not self._left:
                self._finish()
        return len(data)

    def close(self) -> None:
        if self._file is not None:
            self._finish()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self) -> None:
        assert self._file is not None
        self.sums.append((self._digest.hexdigest(), Path(self._file.name).name))
        self._file.close()
        self._file = None


class _Hashing:
    """Reads a file and sums up what went through."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self.file.read(count)
        self.digest.update(data)
        return data


def pack(entries: Iterable[Entry], parcels: Parcels) -> list[Packed]:
    """Write the files as one tar, in the order of their paths."""
    packed = []
    with tarfile.open(fileobj=parcels, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in in_order(entries):
            member = tarfile.TarInfo(entry.path)
            member.size, member.mtime, member.mode = entry.size, MTIME, 0o755 if entry.executable else 0o644
            with entry.open() as file:
                through = _Hashing(file)
                try:
                    archive.addfile(member, through)  # type: ignore[arg-type]  # it only reads
                except OSError as error:
                    if "unexpected end of data" not in str(error):
                        raise
                    raise Refusal(f"{entry.path} became shorter while it was packed") from error
            packed.append(Packed(entry.path, member.size, through.digest.hexdigest(), entry.executable))
    return packed


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """By path; Refusal if two have the same, or if one leads out of the folder that it is unpacked to."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    for before, entry in zip([None, *ordered], ordered, strict=False):
        path = PurePosixPath(entry.path)
        if before is not None and before.path == entry.path:
            raise Refusal(f"{entry.path} would be in the bundle twice")
        if path.is_absolute() or ".." in path.parts or "\\" in entry.path or path.as_posix() != entry.path:
            raise Refusal(f"{entry.path!r} is no path that a bundle can carry")
    return ordered


def sum_of(path: Path) -> tuple[str, str]:
    """(sha256, file name)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.name


def sums_text(sums: Iterable[tuple[str, str]]) -> str:
    """As sha256sum writes and checks it; the two spaces are its."""
    return "".join(f"{digest}  {name}\n" for digest, name in sums)
