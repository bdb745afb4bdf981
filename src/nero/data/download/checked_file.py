"""One file of a data set: where it lies, how long it is, what its checksum must be."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nero.atomic import write_atomic


class DamagedData(ValueError):
    """A file's content is not what its checksum says."""


class DataFile(Protocol):
    """A file of a data set, however its content is recognised; `path` is relative to the data root."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str:
        """The last part of the path."""
        ...

    @property
    def limit(self) -> int:
        """Bytes that no right copy exceeds."""
        ...

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        """What is wrong with the copy under root, or None; quick without checksums."""
        ...

    def put(self, root: Path, content: bytes) -> None:
        """Write the content in place, whole or not at all; DamagedData if it is not the right one."""
        ...


@dataclass(frozen=True)
class CheckedFile:
    """A file that is accepted only with the right content.

    path:     relative to the data root, with forward slashes
    size:     bytes
    md5:      of the content; with any_line_order, of the content with its lines sorted
    any_line_order:  a copy with the same lines in another order is as good
    """

    path: str
    size: int
    md5: str
    any_line_order: bool = False

    @classmethod
    def of(cls, path: str, content: bytes, any_line_order: bool = False) -> "CheckedFile":
        """The entry that accepts exactly this content: how the tables in sources.py were made."""
        return cls(path, len(content), _md5(content, any_line_order), any_line_order)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def limit(self) -> int:
        """A right copy has exactly its size."""
        return self.size

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        """What is wrong with the copy under root, or None; without checksums only its existence and length count."""
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
        """Write the content in place, whole or not at all, once it has passed its checks.

        Raises DamagedData, and leaves the place untouched, if it does not pass.
        """
        if len(content) != self.size:
            raise DamagedData(f"{self.name} came with {len(content):,} bytes instead of {self.size:,}")
        if _md5(content, self.any_line_order) != self.md5:
            raise DamagedData(f"{self.name} came with a wrong checksum")
        place = root / self.path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, content)


def _md5(content: bytes, any_line_order: bool) -> str:
    """md5 guards against damage and mix-ups, not against forgery; it is what the data sets' publishers give."""
    if any_line_order:
        content = b"\n".join(sorted(content.split(b"\n")))
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
