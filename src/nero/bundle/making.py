"""A bundle from beginning to end. It looks whole only when it is: its checksum list is written last."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nero.atomic import write_atomic
from nero.bundle import contents
from nero.bundle.code import ROOT, commit_file, tracked_files, untracked_files
from nero.bundle.contents import Contents, unpacker
from nero.bundle.parcels import NAME, SUMS, Entry, Parcels, pack, sum_of, sums_text
from nero.bundle.prepared_data import data_files
from nero.bundle.refusal import Refusal
from nero.bundle.requirements import read_project
from nero.bundle.target import Target
from nero.bundle.wheels import Wanted, download, resolve, unpacked_bytes

SCRATCH = ".collecting"
UNPACK = "unpack.py"
OURS = re.compile(rf"{NAME}\.\d{{3,}}|{'|'.join(map(re.escape, (contents.FILE, SUMS, UNPACK, SCRATCH)))}|.*\.part")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What a bundle is to have. target: of the wheels, None for a bundle without; data: names of data sets."""

    target: Target | None
    parcel_size: int = 1 << 30
    extras: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    data_root: Path = Path("data")
    runs: bool = False
    root: Path = ROOT


def make_bundle(order: Order, out: Path, force: bool = False, say: Say = lambda line: None) -> Contents:
    """Write it into the folder `out`. An older one there goes, if `force` allows it, once all is collected."""
    refuse_to_overwrite(out, force)
    scratch = out / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # of one that was cut off
    scratch.mkdir(parents=True)
    try:
        about, entries = _collect(order, scratch, say)
        (out / SUMS).unlink(missing_ok=True)
        for old in sorted(out.iterdir()):
            if old != scratch:
                old.unlink()
        with Parcels(out, order.parcel_size) as parcels:
            files = pack(entries, parcels)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    about = dataclasses.replace(about, parcels=len(parcels.sums), files=tuple(files))
    write_atomic(out / contents.FILE, about.as_json().encode())
    write_atomic(out / UNPACK, unpacker().read_bytes())
    others = [sum_of(out / name) for name in (contents.FILE, UNPACK)]
    write_atomic(out / SUMS, sums_text([*parcels.sums, *others]).encode())
    return about


def listing(order: Order, scratch: Path, say: Say = lambda line: None) -> list[str]:
    """What would be bundled: the code in one line, then a line for each package and file of data. Keeps nothing."""
    code = [*tracked_files(order.root, order.runs), commit_file()]
    data = data_files(order.data, order.data_root, say)
    lines = [f"code: {len(code):,} files, {sum(entry.size for entry in code):,} bytes"]
    if order.target is not None:
        found = resolve(_wanted(order, order.target), scratch, say)
        lines += [f"wheel: {package.name} {package.version}" for package in found.packages]
        lines += [f"left out, to be there already: {requirement}" for requirement in found.left_out]
    return lines + [f"{entry.path}: {entry.size:,} bytes" for entry in data]


def refuse_to_overwrite(out: Path, force: bool) -> None:
    """An empty folder, none, and one with a bundle that was cut off are fine; a whole bundle is if forced."""
    if out.exists() and not out.is_dir():
        raise Refusal(f"{out} is no folder")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    if others := sorted(name for name in names if not OURS.fullmatch(name)):
        raise Refusal(f"{out} is not empty and no bundle: it holds {others[0]}; say another --out")
    if SUMS in names and not force:
        raise Refusal(f"{out} holds a bundle already; --force replaces it")


def _collect(order: Order, scratch: Path, say: Say) -> tuple[Contents, list[Entry]]:
    """The cheap checks come first, so that a mistake shows before anything is fetched."""
    project = read_project(order.root, order.extras)
    wanted = _wanted(order, order.target) if order.target else None
    data = data_files(order.data, order.data_root, say)
    commit = commit_file()
    if untracked := untracked_files(order.root):
        more = f" and {len(untracked) - 1:,} more" if len(untracked) > 1 else ""
        say(f"left out, since git does not track it: {untracked[0]}{more}")
    entries = [*tracked_files(order.root, order.runs), commit, *data]
    assert isinstance(commit.content, bytes)
    about = Contents(
        name=project.name,
        version=project.version,
        commit=commit.content.decode().strip(),
        data=order.data,
        runs=order.runs,
        parcel_size=order.parcel_size,
    )
    if wanted is None:
        return about, entries
    found = resolve(wanted, scratch, say)
    wheels = download(found, wanted, scratch, say)
    entries += [Entry(f"{contents.WHEELS}/{wheel.name}", wheel) for wheel in wheels]
    about = dataclasses.replace(
        about,
        python=wanted.target.python,
        platform=wanted.target.platform,
        extras=order.extras,
        without=order.without,
        left_out=found.left_out,
        install_bytes=unpacked_bytes(wheels),
    )
    return about, entries


def _wanted(order: Order, target: Target) -> Wanted:
    project = read_project(order.root, order.extras)
    target.require_python(project.python)
    return Wanted(order.root, project, target, order.without)
