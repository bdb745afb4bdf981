#!/usr/bin/env python3
"""Check the archives of a bundle, unpack them and install the project. Needs no network and nothing but Python.

    python3 unpack.py --check                  check that all archives are present and undamaged
    python3 unpack.py --to DIR                 check, then unpack code, wheels and data
    python3 unpack.py --to DIR --install       also create DIR/.venv from the wheels, with the Python that runs this

It can be run again: files that are already correct are left alone, so an interrupted run continues. Nothing in DIR is
deleted except an outdated .venv, and a run that DIR already has is not changed. The exit status is 1 if something is
missing, damaged or does not fit this machine.
"""

# This file is copied into bundles: only the standard library of Python 3.9 can be used.
from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

SUMS, CONTENTS, UNPACK, NAME = "SHA256SUMS", "contents.json", "unpack.py", "nero-bundle"
MOST_BYTES = {SUMS: 1 << 20, CONTENTS: 1 << 28}  # that are read
RECORD = ".bundle.json"  # in the target folder: the contents of the bundle that was unpacked there
CHUNK = 1 << 20
OVERHEAD = 1.1  # disk space beyond the sizes of files: blocks, folders, compiled Python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, metavar="DIR", help="target folder")
    parser.add_argument("--install", action="store_true", help="also create DIR/.venv, without network")
    parser.add_argument("--check", action="store_true", help="only check the archives")
    options = parser.parse_args()
    if options.to is None and not options.check:
        parser.error("give a target folder: --to DIR (or --check to check the archives only)")
    here = Path(__file__).resolve().parent
    contents, archives = checked(here)
    if options.check:
        print(f"all {len(archives)} archives are present and undamaged")
        return 0
    if options.install and (problem := mismatch(contents)):
        fail(problem)
    folder = options.to.resolve()
    unpack(contents, archives, folder)
    if options.install:
        python = install(contents, folder)
        print(f"ready. Next:\n  cd {shlex.quote(str(folder))} && {python} scripts/train.py data=embedded")
    return 0


def fail(*lines: str) -> NoReturn:
    sys.exit("\n".join(f"error: {line}" for line in lines))


def checked(here: Path) -> tuple[dict[str, Any], list[Path]]:
    """The contents and the archives in order, after checking every SHA-256; otherwise exit and name all wrong files."""
    if not (here / SUMS).exists():
        fail(f"{here / SUMS} is missing: the bundle is incomplete")
    problems, listed = [], []
    for line in read(here / SUMS).splitlines():
        match = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\]+)", line)
        if not match:
            fail(f"{here / SUMS} is damaged: {line[:200]!r}")
        listed.append(match[2])
        if not (here / match[2]).is_file():
            problems.append(f"{match[2]} is missing")
        elif sha256(here / match[2]) != match[1]:
            problems.append(f"{match[2]} is damaged: its checksum is wrong")
    if CONTENTS not in listed:
        problems.append(f"{here / SUMS} is damaged: it does not list {CONTENTS}")
    if problems:
        fail(*problems)
    contents = read_contents(here / CONTENTS)
    names = [f"{NAME}.{number:03d}" for number in range(contents["archives"])]
    if different := sorted({*names, CONTENTS, UNPACK} ^ set(listed)):
        which = "does not list" if different[0] not in listed else f"lists, unlike {CONTENTS},"
        fail(f"{here / SUMS} is damaged: it {which} {different[0]!r}")
    archives = [here / name for name in names]
    size, room = sum(file["size"] for file in contents["files"]), sum(path.stat().st_size for path in archives)
    if size > room:
        fail(f"{here / CONTENTS} is damaged: it lists {size:,} bytes, but the archives have {room:,}")
    return contents, archives


def read(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES[path.name]:
            fail(f"{path} is damaged: it must be a file of at most {MOST_BYTES[path.name]:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read: {error}")


def read_contents(path: Path) -> dict[str, Any]:
    """contents.json, with all that is used of it in its place; otherwise exit."""
    try:
        contents = json.loads(read(path))
        files = contents["files"]
        fine = [
            type(contents["archives"]) is int and 0 < contents["archives"] < 1 << 20,
            type(contents["install_bytes"]) is int and contents["install_bytes"] >= 0,
            contents["python"] is None or isinstance(contents["python"] + contents["platform"], str),
            all(isinstance(requirement, str) for requirement in contents["left_out"]),
            all(type(file["size"]) is int and file["size"] >= 0 for file in files),
            all(isinstance(file["path"] + file["sha256"], str) and type(file["executable"]) is bool for file in files),
            len({file["path"] for file in files}) == len(files),
        ]
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        fine = [False]
    if not all(fine):
        fail(f"{path} is damaged: it does not describe a bundle")
    return contents  # type: ignore[no-any-return]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


class Joined:
    """Reads files one after another as if they were one."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.file = list(paths), io.BytesIO()

    def read(self, size: int) -> bytes:
        while not (data := self.file.read(size)) and self.paths:
            self.file.close()
            self.file = self.paths.pop(0).open("rb")  # type: ignore[assignment]
        return data


def unpack(contents: dict[str, Any], archives: list[Path], folder: Path) -> None:
    """Write every file of the bundle that is not already correct."""
    files = {file["path"]: file for file in contents["files"]}
    if outside := [name for name in files if leaves_folder(name)]:
        fail(f"the bundle lists {outside[0]!r}, which leads out of the folder: it was tampered with")
    existing = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    # Folders for data and results may exist beforehand, for example as links to another disk.
    foreign = [name for name in existing if name not in ("data", "results")]
    if RECORD not in existing and (foreign or (folder.exists() and not folder.is_dir())):
        fail(f"{folder} is not empty and not an unpacked bundle: choose another folder with --to")
    wrong = {name for name, file in files.items() if not is_correct(folder / name, file)}
    # A run that continued in the folder, or was made there, differs from the bundle's: leave it alone.
    kept_runs = {run_of(name) for name in wrong if (folder / name).exists()} - {None}
    if kept_runs:
        print(f"{len(kept_runs)} runs in {folder} differ from those in the bundle and are left unchanged")
    pending = {name for name in wrong if run_of(name) not in kept_runs}
    if not pending:
        print(f"all {len(files):,} files are already in {folder}")
        return
    installed = (folder / ".venv" / ".ready").exists()
    needed = OVERHEAD * (sum(files[name]["size"] for name in pending) + (0 if installed else contents["install_bytes"]))
    disk = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(disk).free
    if free < needed:
        fail(f"{disk} has {free / 1e9:.1f} GB free, but {needed / 1e9:.1f} GB are needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / RECORD, io.BytesIO(json.dumps(contents).encode()), executable=False)
        unread = set(files)
        with tarfile.open(fileobj=Joined(archives), mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                # Links, devices and folders are never in a bundle: a tar could use them to write elsewhere.
                if not member.isfile() or member.name not in files:
                    fail(f"the archives contain {member.name!r}, which the bundle does not list")
                # A sparse file of few bytes may be written as one of many.
                if member.issparse() or member.size != files[member.name]["size"] or member.name not in unread:
                    fail(f"the archives contain {member.name!r} twice, or not of the size that the bundle lists")
                unread.remove(member.name)
                if member.name in pending:
                    write(folder / member.name, archive.extractfile(member), files[member.name]["executable"])
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        fail(f"the archives are damaged: {error!r:.200}")
    except OSError as error:
        fail(f"{error.filename or folder} cannot be written: {error.strerror or error}")
    if wrong := {name for name in pending if not is_correct(folder / name, files[name])}:
        fail(*(f"{folder / name} differs from the bundle after writing" for name in sorted(wrong)))
    print(f"{len(pending):,} of {len(files):,} files were unpacked to {folder} and checked")


def write(path: Path, content: Any, executable: bool) -> None:
    """Write atomically. The modification time is now, so that Python recompiles the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)  # of an earlier process with this id, or a link to another file
        with part.open("xb") as file:
            shutil.copyfileobj(content, file, CHUNK)
        part.chmod(0o755 if executable else 0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def is_correct(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and sha256(path) == file["sha256"]


def run_of(name: str) -> tuple[str, ...] | None:
    """The directory results/runs/<task>/<id> that a file belongs to; None for other files."""
    parts = PurePosixPath(name).parts
    return parts[:4] if parts[:2] == ("results", "runs") and len(parts) > 4 else None


def leaves_folder(name: str) -> bool:
    path = PurePosixPath(name)
    odd = not name.isprintable() or bool(re.search(r"\\|^\w:|^\.$", name))
    return odd or path.is_absolute() or ".." in path.parts or path.as_posix() != name


def mismatch(contents: dict[str, Any]) -> str | None:
    """Why the wheels cannot be installed by this Python on this machine, or None. pip checks the finer points."""
    if not contents["python"]:
        return "the bundle was made without wheels: there is nothing to install"
    wanted, tag = f"the bundle is for Python {contents['python']} on {contents['platform']}", contents["platform"]
    version = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    if version != f"CPython {contents['python']}" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        free_threaded = " (free-threaded)" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        return f"{wanted}, but this is {version}{free_threaded}: run it with python{contents['python']}"
    system = "Darwin" if tag.startswith("macosx") else "Windows" if tag.startswith("win") else "Linux"
    if platform.system() != system or not tag.lower().endswith(platform.machine().lower()):
        return f"{wanted}, but this machine is {platform.system()} {platform.machine()}"
    library, release = platform.libc_ver()
    glibc = re.match(r"manylinux_(\d+)_(\d+)", tag)
    if glibc and (library != "glibc" or [*map(int, release.split(".")[:2])] < [*map(int, glibc.groups())]):
        return f"{wanted}, but this machine has {library or 'no glibc'} {release}"
    return None


def install(contents: dict[str, Any], folder: Path) -> Path:
    """Create DIR/.venv from the wheels; .ready, which make looks for, is written last. Returns its Python."""
    venv = folder / ".venv"
    ready, mark, python = venv / ".ready", venv / ".bundle", venv / ("Scripts" if os.name == "nt" else "bin") / "python"
    identity = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    if ready.exists() and mark.exists() and mark.read_text() == identity and python.exists():
        print(f"{venv} is already complete")
        return python
    wheels = [folder / file["path"] for file in contents["files"] if file["path"].startswith("wheels/")]
    pip = next((wheel for wheel in wheels if wheel.name.startswith("pip-")), None)
    if pip is None:
        fail("the bundle has no wheel of pip")
    print(f"installing {len(wheels)} wheels into {venv}", flush=True)
    # What was left out of the bundle comes from the Python that runs this.
    shared = bool(contents["left_out"])
    options = ["--without-pip", "--clear", *(["--system-site-packages"] if shared else []), str(venv)]
    run([sys.executable, "-m", "venv", *options], "the virtual environment cannot be created")
    # pip runs from its wheel, since some Pythons (Debian's) cannot put pip into a virtual environment. Packages of the
    # shared Python are ignored, since they may change.
    command = [str(python), str(pip / "pip"), "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    run([*command, *map(str, wheels)], "the wheels cannot be installed")
    # Editable: configs and experiments are found relative to src.
    run([*command, "--no-build-isolation", "--editable", str(folder)], "the project cannot be installed")
    if shared and sys.prefix != sys.base_prefix:
        # venv shares only the packages of the base Python: name those of the virtual environment that runs this.
        own = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(venv)}))
        (site / "shared-packages.pth").write_text("".join(f"{path}\n" for path in own))
    if shared:
        run([str(python), "-c", CHECK_LEFT_OUT, *contents["left_out"]], "packages that were left out are missing")
    run([str(python), "-c", "import nero.train.run; from nero import Nero"], "the project cannot be imported")
    mark.write_text(identity)
    ready.touch()
    return python


CHECK_LEFT_OUT = """
import sys
from importlib.metadata import distributions
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
found = {canonicalize_name(d.metadata["Name"]): d.version for d in [*distributions()][::-1]}
problems = []
for wanted in map(Requirement, sys.argv[1:]):
    version = found.get(canonicalize_name(wanted.name), "none")
    if version == "none" or not wanted.specifier.contains(version, prereleases=True):
        problems.append(f"error: {wanted} was left out of the bundle, but this Python has {version}")
sys.exit("\\n".join(problems) or 0)
"""


def run(command: list[str], problem: str) -> None:
    """Run a command isolated from the user's settings: pip's indexes and constraints, and other packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))}
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    environment = {**kept, **own, "PYTHONNOUSERSITE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        fail(problem)


if __name__ == "__main__":
    sys.exit(main())
