#!/usr/bin/env python3
"""Check the parcels of a bundle, unpack them and install what is in them. Needs no network and nothing but Python.

    python3 unpack.py --check                  are all parcels here, and whole?
    python3 unpack.py --to DIR                 check, then unpack code, wheels and data
    python3 unpack.py --to DIR --install       and make DIR/.venv with the Python that runs this, from the wheels

It can be run again: what is there and right is left as it is, so that one that was cut off goes on. Nothing in DIR is
ever deleted, and a run that DIR has already is not touched. The exit status is 1 if something is missing, damaged or
does not fit.
"""

# This file travels alone: the standard library of Python 3.9 has to do.
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

SUMS, CONTENTS = "SHA256SUMS", "contents.json"
RECORD = ".bundle.json"
"""In the unpacked tree: what was unpacked there."""
RUNS = ("results", "runs")
CHUNK = 1 << 20
# Beside the sizes of files: blocks, folders, compiled Python.
SPARE = 1.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, metavar="DIR", help="where the project is to be")
    parser.add_argument("--install", action="store_true", help="also make DIR/.venv, without network")
    parser.add_argument("--check", action="store_true", help="only check the parcels")
    options = parser.parse_args()
    if options.to is None and not options.check:
        parser.error("say where to unpack: --to DIR (or --check to check the parcels only)")
    here = Path(__file__).resolve().parent
    parcels = checked(here)
    if options.check:
        print(f"{len(parcels)} parcels are here and whole")
        return 0
    contents = json.loads((here / CONTENTS).read_text(encoding="utf-8"))
    folder = options.to.resolve()
    if options.install:
        refuse_other_machines(contents)
    unpack(contents, parcels, folder)
    if options.install:
        install(contents, folder)
        python = Path(".venv") / scripts_folder() / "python"
        print(f"ready. Next:\n  cd {shlex.quote(str(folder))} && {python} scripts/train.py data=embedded")
    elif contents["python"]:
        words = (Path(sys.executable).name, str(here / "unpack.py"), "--to", str(folder), "--install")
        print(f"unpacked. Next:\n  {' '.join(map(shlex.quote, words))}")
    else:
        print("unpacked: code and data, no wheels")
    return 0


def fail(*lines: str) -> NoReturn:
    sys.exit("\n".join(f"error: {line}" for line in lines))


# ------------------------------------------------------------------------------------------------------- parcels


def checked(here: Path) -> list[Path]:
    """The parcels in their order, each with the right checksum; else the end, with all that are missing or damaged."""
    try:
        lines = (here / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError:
        fail(f"{here / SUMS} is not there: the bundle is not whole")
    wrong, parcels = [], []
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\]+)", line)
        if not match:
            fail(f"{here / SUMS} is damaged: {line!r}")
        path = here / match[2]
        if not path.is_file():
            wrong.append(f"{path.name} is missing")
        elif sha256(path) != match[1]:
            wrong.append(f"{path.name} is damaged: its checksum is wrong")
        if re.fullmatch(r".*\.\d{3,}", path.name):
            parcels.append(path)
    if wrong:
        fail(*wrong)
    return parcels


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


class Joined(io.RawIOBase):
    """Files read one after the other as if they were one."""

    def __init__(self, paths: list[Path]) -> None:
        self.waiting = list(paths)
        self.file: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self.file is None:
                if not self.waiting:
                    return 0
                self.file = self.waiting.pop(0).open("rb")
            count = self.file.readinto(buffer)
            if count:
                return int(count)
            self.file.close()
            self.file = None


# ------------------------------------------------------------------------------------------------------ unpacking


def unpack(contents: dict[str, Any], parcels: list[Path], folder: Path) -> None:
    """Put every file of the bundle into the folder, but for those that are there and right."""
    refuse_other_folders(folder)
    files = {file["path"]: file for file in contents["files"]}
    for name in files:
        refuse_ways_out(name)
    own = own_runs(folder, files)
    if own:
        print(f"{len(own)} runs that are in {folder} already differ from the bundle's and are left as they are")
    to_do = {name for name, file in files.items() if run_of(name) not in own and not is_right(folder / name, file)}
    if not to_do:
        print(f"all {len(files):,} files are in {folder} already")
        return
    installed = folder / ".venv" / ".ready"
    needed = sum(files[name]["size"] for name in to_do) + (0 if installed.exists() else contents["install_bytes"])
    refuse_small_disks(folder, int(needed * SPARE))
    folder.mkdir(parents=True, exist_ok=True)
    put(folder / RECORD, io.BytesIO(json.dumps(contents).encode()), 0o644)
    with tarfile.open(fileobj=io.BufferedReader(Joined(parcels), CHUNK), mode="r|") as archive:
        for member in archive:
            refuse_ways_out(member.name)
            # No links, devices or folders: what a tar could lead astray with is not in a bundle.
            if not member.isfile() or member.name not in files:
                fail(f"the parcels hold {member.name!r}, which the bundle does not list")
            if member.name in to_do:
                content = archive.extractfile(member)
                assert content is not None
                mode = 0o755 if files[member.name]["executable"] else 0o644
                put(folder / member.name, content, mode)
    wrong = sorted(name for name in to_do if not is_right(folder / name, files[name]))
    if wrong:
        fail(*(f"{folder / name} is not what the bundle holds: is the disk sound?" for name in wrong))
    print(f"{len(to_do):,} of {len(files):,} files were unpacked to {folder} and checked")


def put(path: Path, content: Any, mode: int) -> None:
    """Whole or not at all; the time of the file is now, so that Python compiles again what it had compiled of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK)
            part.chmod(mode)
            part.replace(path)
        finally:
            if part.exists():
                part.unlink()
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")


def is_right(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and sha256(path) == file["sha256"]


def run_of(name: str) -> tuple[str, ...] | None:
    """The directory of the logged run that a file belongs to: results/runs/<task>/<id>; None for other files."""
    parts = PurePosixPath(name).parts
    return parts[:4] if parts[:2] == RUNS and len(parts) > 4 else None


def own_runs(folder: Path, files: dict[str, Any]) -> set[Any]:
    """Runs that went on in the folder, or were made there: a file of theirs is there and is not the bundle's."""
    return {
        run_of(name)
        for name, file in files.items()
        if run_of(name) and (folder / name).exists() and not is_right(folder / name, file)
    }


def refuse_ways_out(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0] or path.as_posix() != name:
        fail(f"the bundle holds {name!r}, which leads out of the folder: it was tampered with")


def refuse_other_folders(folder: Path) -> None:
    """Its files would replace those of the same name: only where a bundle was unpacked before is that meant."""
    if folder.exists() and not folder.is_dir():
        fail(f"{folder} is no folder")
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    # Folders for data and results may have been laid out beforehand, on another disk say.
    others = [name for name in there if name not in ("data", "results")]
    if others and RECORD not in there:
        fail(f"{folder} holds {others[0]} and no unpacked bundle: say another --to")


def refuse_small_disks(folder: Path, needed: int) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        fail(f"{there} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")


# ----------------------------------------------------------------------------------------------------- installing


def refuse_other_machines(contents: dict[str, Any]) -> None:
    """In one line, if the wheels cannot run here."""
    if not contents["python"]:
        fail("the bundle was made without wheels: there is nothing to install")
    wanted = f"the bundle is for Python {contents['python']} on {contents['platform']}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != contents["python"] or platform.python_implementation() != "CPython":
        fail(f"{wanted}, and this is {platform.python_implementation()} {version}: run python{contents['python']}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        fail(f"{wanted}, and this Python is a free-threaded one, for which wheels are others")
    problem = misfit(contents["platform"])
    if problem:
        fail(f"{wanted}, and {problem}")


def misfit(wanted: str) -> str | None:
    """Why wheels for this platform do not run here, or None."""
    system, machine = platform.system(), platform.machine()
    kind = re.match(r"[a-z]+", wanted)
    wanted_system = {"macosx": "Darwin", "win": "Windows"}.get(kind[0] if kind else "", "Linux")
    if system != wanted_system:
        return f"this is {system}"
    if not wanted.lower().endswith(machine.lower()) and wanted != "win32":
        return f"this machine is {machine}"
    library, release = platform.libc_ver()
    has_glibc = library == "glibc"
    if wanted.startswith("musllinux"):
        return "this machine has glibc, not musl" if has_glibc else None
    if wanted.startswith("manylinux"):
        if not has_glibc:
            return "this machine has no glibc"
        old = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}.get(wanted.partition("_")[0])
        minor = old if old is not None else int(wanted.split("_")[2])
        if tuple(map(int, release.split(".")[:2])) < (2, minor):
            return f"this machine has glibc {release}"
    if wanted.startswith("macosx"):
        here = tuple(map(int, (platform.mac_ver()[0] or "0").split(".")[:2]))
        if here < tuple(map(int, wanted.split("_")[1:3])):
            return f"this is macOS {platform.mac_ver()[0]}"
    return None


def scripts_folder() -> str:
    return "Scripts" if os.name == "nt" else "bin"


def install(contents: dict[str, Any], folder: Path) -> None:
    """DIR/.venv from the wheels; .ready, which make looks for, is put there last."""
    venv = folder / ".venv"
    ready, mark = venv / ".ready", venv / ".bundle"
    identity = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    python = venv / scripts_folder() / "python"
    if ready.exists() and mark.exists() and mark.read_text() == identity and python.exists():
        print(f"{venv} has all of it already")
        return
    if ready.exists():
        ready.unlink()
    wheels = [folder / file["path"] for file in contents["files"] if file["path"].startswith("wheels/")]
    pip = next((wheel for wheel in wheels if wheel.name.startswith("pip-")), None)
    if pip is None:
        fail("the bundle holds no pip")
    print(f"{venv} is made with {len(wheels)} wheels", flush=True)
    # Shared packages come after the installation: pip would not install what it saw among them, and they may change.
    make_venv(venv, share=False)
    # From its wheel, as Debian's Python has none to put into a virtual environment.
    command = [str(python), str(pip / "pip"), "install", "--quiet", "--no-index", "--no-deps"]
    run([*command, *map(str, wheels)], "the wheels cannot be installed", alone=True)
    # Editable: configs and experiments lie beside src, and are found from there.
    editable = ["--no-build-isolation", "--editable", str(folder)]
    run([*command, *editable], "the project cannot be installed", alone=True)
    if contents["left_out"]:
        make_venv(venv, share=True)
    refuse_missing(python, contents["left_out"])
    run([str(python), "-c", "import nero.train.run; from nero import Nero"], "the project does not start")
    mark.write_text(identity)
    ready.touch()


def make_venv(venv: Path, share: bool) -> None:
    """Or change whether it shares the packages of the Python that runs this; nothing in it is deleted but that."""
    words = [sys.executable, "-m", "venv", "--without-pip", *(["--system-site-packages"] if share else []), str(venv)]
    run(words, "the virtual environment cannot be made")
    asked = [str(venv / scripts_folder() / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    named = site / "packages-of-the-machine.pth"
    # A virtual environment that makes another lends it the packages of its base only: its own folders are named.
    own = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    if share and sys.prefix != sys.base_prefix:
        named.write_text("".join(f"{path}\n" for path in own))
    elif named.exists():
        named.unlink()


CHECK = """
import sys
from importlib.metadata import PackageNotFoundError, version
try:
    from packaging.requirements import Requirement
except ImportError:  # pip, which is there in any case, has a copy
    from pip._vendor.packaging.requirements import Requirement
for line in sys.argv[1:]:
    wanted = Requirement(line)
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        print(f"{line} was left out of the bundle, and this Python has none")
    else:
        if not wanted.specifier.contains(found, prereleases=True):
            print(f"{line} was left out of the bundle, and this Python has {found}")
"""


def refuse_missing(python: Path, left_out: list[str]) -> None:
    """What was left out of the bundle has to be here already."""
    if left_out:
        done = subprocess.run([str(python), "-c", CHECK, *left_out], stdout=subprocess.PIPE, text=True, check=False)
        if done.stdout or done.returncode:
            fail(*(done.stdout.splitlines() or ["whether what was left out is here cannot be found out"]))


def run(words: list[str], problem: str, alone: bool = False) -> None:
    """Or the end, with what was said; `alone`: whatever else this user's Python sees is not seen."""
    # No setting of pip's on this machine is meant for this: indexes, targets, constraints.
    hidden = ("PIP_", "PYTHONPATH") if alone else ("PIP_",)
    own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment = {**own, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    if alone:
        environment["PYTHONNOUSERSITE"] = "1"
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        fail(problem)


if __name__ == "__main__":
    sys.exit(main())
