"""Make a bundle: the tracked code, wheels and checked data in archives of at most a given size, with checksums."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from nero.atomic import write_atomic
from nero.bundle import unpack, wheels
from nero.bundle.unpack import CONTENTS, NAME, SUMS, UNPACK, sha256
from nero.bundle.wheels import BundleError
from nero.data.sources import MissingData, dataset, fetch_command, problems
from nero.data.text.parallel_text import tokenised_multi30k
from nero.runs.provenance import COMMIT, ROOT, code_version

SCRATCH = ".collecting"
OWN = re.compile(rf"{NAME}\.\d{{3,}}|{re.escape(CONTENTS)}|{SUMS}|{re.escape(UNPACK)}|{re.escape(SCRATCH)}|.*\.part")
MTIME = 946_684_800  # of every packed file, so that the same files give the same bytes
# Files that runs make of a data set and reuse, as patterns under the data root.
DERIVED = {"multi30k": "multi30k/tokens.json", "inception": "*-statistics-*.pt"}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
Log = Callable[[str], None]
Files = dict[str, Path]  # path in the bundle -> the file to pack


@dataclass(frozen=True)
class Spec:
    """What a bundle contains. python: version that the wheels are for, None without wheels; platform: its wheel tag."""

    python: str | None = None
    platform: str = ""
    archive_size: int = 1 << 30
    extras: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    data_root: Path = Path("data")
    runs: bool = False
    root: Path = ROOT


def parse_size(text: str) -> int:
    """Bytes from "64M", "1.5G" or a plain number; ValueError for anything else."""
    match = re.fullmatch(r"(\d+|\d*\.\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size such as 64M, 1.5G or 1000000")
    size = int(float(match[1]) * UNITS[match[2].upper()])
    if size < 64 << 10:
        raise ValueError(f"an archive size of {text} is too small: the minimum is 64K")
    return size


def make_bundle(spec: Spec, out: Path, force: bool = False, log: Log = lambda line: None) -> dict[str, Any]:
    """Write a bundle into the folder `out` and return its contents. `force`: replace a bundle that is there."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name} if out.exists() else set()
    if foreign := sorted(name for name in names if not OWN.fullmatch(name)):
        raise BundleError(f"{out} is not empty and not a bundle, it has {foreign[0]}: choose another --out")
    if SUMS in names and not force:
        raise BundleError(f"{out} already has a bundle; --force replaces it")
    scratch = out / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # left by an interrupted run
    scratch.mkdir(parents=True)
    try:
        # Whatever can fail comes before the old bundle is removed.
        files, contents = collect(spec, scratch, log)
        (out / SUMS).unlink(missing_ok=True)
        for old in sorted(out.iterdir()):
            if old != scratch:
                old.unlink()
        contents["files"] = pack(files, out, spec.archive_size)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    contents["archives"] = len(list(out.glob(f"{NAME}.*")))
    write_atomic(out / CONTENTS, json.dumps(contents, indent=1, ensure_ascii=False).encode())
    write_atomic(out / UNPACK, Path(unpack.__file__).read_bytes())
    write_sums(out)  # last: a bundle without it is incomplete
    return contents


def write_sums(out: Path) -> None:
    """In the format of sha256sum, which separates with two spaces."""
    sums = [f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir()) if path.name != SUMS]
    write_atomic(out / SUMS, "".join(sums).encode())


def collect(spec: Spec, scratch: Path, log: Log) -> tuple[Files, dict[str, Any]]:
    """The files to pack, and what contents.json says about them. Wheels come last, since they take longest."""
    commit, dirty = code_version()
    if commit is None:
        raise BundleError("the commit of the code is unknown: git describe failed")
    (scratch / COMMIT).write_text(f"{commit}{'-dirty' if dirty else ''}\n")
    if untracked := git_files(spec.root, "--others", "--exclude-standard"):
        log(f"left out, since git does not track it: {', '.join(untracked[:3])}{' ...' if untracked[3:] else ''}")
    files = {**tracked_files(spec.root, spec.runs), COMMIT: scratch / COMMIT}
    files |= data_files(spec.data, spec.data_root, log)
    project = tomllib.loads((spec.root / "pyproject.toml").read_text())["project"]
    contents = {"format": 2, "name": project["name"], "version": project["version"], "python": spec.python,
                "commit": (scratch / COMMIT).read_text().strip(), "data": spec.data, "runs": spec.runs,
                "archive_size": spec.archive_size, "left_out": [], "install_bytes": 0}  # fmt: skip
    if spec.python is not None:
        lock, left_out = wheels.resolve(spec.root, spec.python, spec.platform, spec.extras, spec.without, scratch, log)
        log(f"pip downloads {len(lock)} wheels")
        found = wheels.download(lock, spec.python, spec.platform, scratch)
        files |= {f"wheels/{wheel.name}": wheel for wheel in found}
        size = sum(member.file_size for wheel in found for member in zipfile.ZipFile(wheel).infolist())
        contents |= {"platform": spec.platform, "extras": spec.extras, "without": spec.without,
                     "left_out": left_out, "install_bytes": size}  # fmt: skip
    return files, contents


def listing(spec: Spec, scratch: Path, log: Log = lambda line: None) -> list[str]:
    """What a bundle would contain, one line for the code and one for each package and data file."""
    code = tracked_files(spec.root, spec.runs)
    lines = [f"code: {len(code):,} files, {sum(path.stat().st_size for path in code.values()):,} bytes"]
    if spec.python is not None:
        lock, left_out = wheels.resolve(spec.root, spec.python, spec.platform, spec.extras, spec.without, scratch, log)
        lines += [f"wheel: {entry.split()[0]}" for entry in lock.values()]
        lines += [f"left out, must already be installed there: {requirement}" for requirement in left_out]
    data = data_files(spec.data, spec.data_root, log)
    return lines + [f"{name}: {path.stat().st_size:,} bytes" for name, path in data.items()]


def tracked_files(root: Path = ROOT, runs: bool = False) -> Files:
    """Every file that git tracks, with uncommitted changes; those of logged runs only with `runs`."""
    files = {name: root / name for name in git_files(root) if runs or not name.startswith("results/runs/")}
    if links := [name for name, path in files.items() if path.is_symlink()]:
        raise BundleError(f"{links[0]} is a symbolic link, which a bundle cannot contain")
    return {name: path for name, path in files.items() if path.is_file()}  # without deleted ones


def git_files(root: Path, *options: str) -> list[str]:
    command = ["git", "ls-files", "-z", *options]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BundleError(f"{root} is not a git work tree") from error
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})


def data_files(names: Sequence[str], root: Path, log: Log = lambda line: None) -> Files:
    """The files of data sets, after checking every checksum, and what runs have derived from them."""
    files: Files = {}
    for name in names:
        try:
            paths = [root / file.path for file in dataset(name).files]
        except ValueError as error:
            raise BundleError(str(error)) from error
        if found := problems(name, root, checksums=True):
            raise BundleError(f"{name}: {found[0]}; get it with: {fetch_command(name, root)}")
        if name == "multi30k":
            try:
                tokenised_multi30k(root)  # the target machine may not have spaCy
            except MissingData as error:
                log(f"multi30k is bundled without its tokens: {error}")
        derived = sorted(root.glob(DERIVED[name])) if name in DERIVED else []
        files |= {f"data/{path.relative_to(root).as_posix()}": path for path in (*paths, *derived)}
    return files


class Archives:
    """A writable file that is split into <folder>/nero-bundle.000, .001, ... of at most `size` bytes each."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.count, self.free = folder, size, 0, 0
        self.file: BinaryIO = BytesIO()

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            if not self.free:
                self.file.close()
                self.file = (self.folder / f"{NAME}.{self.count:03d}").open("xb")
                self.count, self.free = self.count + 1, self.size
            written = self.file.write(rest[: self.free])
            self.free, rest = self.free - written, rest[written:]
        return len(data)


def pack(files: Mapping[str, Path], out: Path, archive_size: int) -> list[dict[str, Any]]:
    """Write the files as one tar, split into archives, in the order of their paths. Returns the list of files."""
    packed: list[dict[str, Any]] = []
    archives = Archives(out, archive_size)
    with tarfile.open(fileobj=archives, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for name, path in sorted(files.items()):
            if unpack.leaves_folder(name):
                raise BundleError(f"{name!r} is not a path that a bundle can contain")
            executable = bool(path.stat().st_mode & 0o100)
            packed.append({"path": name, "size": path.stat().st_size, "sha256": sha256(path), "executable": executable})
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = packed[-1]["size"], MTIME, 0o755 if executable else 0o644
            with path.open("rb") as file:
                tar.addfile(member, file)
    archives.file.close()
    return packed
