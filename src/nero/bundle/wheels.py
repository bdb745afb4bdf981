"""The wheels of a bundle, found and fetched with pip, which asks whatever index it is set up for."""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nero.bundle.empty_wheel import write_empty_wheel
from nero.bundle.refusal import Refusal
from nero.bundle.requirements import PINS, Project, needed_on, read_pins
from nero.bundle.selection import Selection, matches, reported, select
from nero.bundle.target import Target

SOURCE_ONLY = ("antlr4-python3-runtime",)
"""Packages whose pinned versions are published without a wheel; theirs is built here."""

SECONDS = 3600
ROUNDS = 10
# The wheels built here are then the same at every build: the earliest time that their format can hold is in 1980.
EPOCH = "946684800"
QUIET = ("--quiet", "--disable-pip-version-check", "--no-input")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """root: of the project; without: names or patterns of packages that the machine has already."""

    root: Path
    project: Project
    target: Target
    without: tuple[str, ...] = ()


def resolve(wanted: Wanted, scratch: Path, say: Say = lambda line: None) -> Selection:
    """Which packages to bundle. What has to be built is left in the folder `scratch`, for `download`."""
    environment = wanted.target.environment
    pins = read_pins(wanted.root)
    roots = needed_on(environment, wanted.project.packages)
    tools = needed_on(environment, wanted.project.tools)
    links = [_built(wanted, pins, scratch, say), _stand_ins(wanted, pins, scratch)]
    asked = [*roots, *tools]
    for _ in range(ROUNDS):
        say(f"pip resolves {len(asked)} requirements for Python {wanted.target.python} on {wanted.target.platform}")
        report = _report(asked, links, wanted, scratch)
        found = select(reported(report), roots, wanted.without, environment, tools)
        if not found.missing:
            return found
        # pip judged their markers by this machine and did not think that they were needed.
        asked = [*asked, *found.missing]
    raise Refusal(f"pip reports no {', '.join(found.missing)}, though something needs it")


def download(found: Selection, wanted: Wanted, scratch: Path, say: Say = lambda line: None) -> list[Path]:
    """The wheels of what was resolved, checked against what the index said of them."""
    folder = scratch / "wheels"
    folder.mkdir()
    lines = [_find_links(scratch / "built")]
    for package in found.packages:
        sha256 = f" --hash=sha256:{package.sha256}" if package.sha256 else ""
        lines.append(f"{package.name}=={package.version}{sha256}")
    say(f"pip fetches {len(found.packages)} wheels")
    listed = _write_lines(scratch / "wheels.txt", lines)
    _pip("download", "--no-deps", *_options(wanted.target), "--dest", str(folder), "--requirement", str(listed))
    wheels = sorted(folder.iterdir())
    refuse_unfit((wheel.name for wheel in wheels), wanted.target)
    if len(wheels) != len(found.packages):
        raise Refusal(f"pip left {len(wheels)} files of {len(found.packages)} packages")
    return wheels


def refuse_unfit(names: Iterable[str], target: Target) -> None:
    """Refusal if a wheel, by its name, cannot be installed on the machine that the bundle is for."""
    for name in names:
        if not name.endswith(".whl") or not target.takes(name):
            raise Refusal(f"{name} does not fit Python {target.python} on {target.platform}, and there is no other")


def unpacked_bytes(wheels: Iterable[Path]) -> int:
    """What they take once they are installed."""
    total = 0
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            total += sum(member.file_size for member in archive.infolist())
    return total


def _built(wanted: Wanted, pins: Mapping[str, str], scratch: Path, say: Say) -> Path:
    """A folder with wheels of the packages that come as source only."""
    folder = scratch / "built"
    folder.mkdir()
    for name in SOURCE_ONLY:
        if name in pins and not matches(name, wanted.without):
            say(f"pip builds {name} {pins[name]}, which comes as source only")
            _pip("wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder), f"{name}=={pins[name]}")
    for wheel in folder.iterdir():
        if not wanted.target.takes(wheel.name):
            raise Refusal(
                f"{wheel.name} comes as source only and was built for this machine:"
                f" it does not fit Python {wanted.target.python} on {wanted.target.platform}"
            )
    return folder


def _stand_ins(wanted: Wanted, pins: Mapping[str, str], scratch: Path) -> Path:
    """A folder with an empty wheel, without requirements, of every pinned package that is left out.

    An index without separate metadata would otherwise have pip fetch all of torch to learn what it needs; and the
    version that the machine has need not be in the index at all. The local version wins over what the index has.
    """
    folder = scratch / "stand-ins"
    folder.mkdir()
    for name, version in pins.items():
        if matches(name, wanted.without):
            write_empty_wheel(folder, name, f"{version.partition('+')[0]}+99999999.left.out")
    return folder


def _report(asked: Sequence[str], links: Sequence[Path], wanted: Wanted, scratch: Path) -> dict:
    place = scratch / "report.json"
    listed = _write_lines(scratch / "asked.txt", [*map(_find_links, links), *asked])
    words = ["--dry-run", "--ignore-installed", "--report", str(place), "--target", str(scratch / "nowhere")]
    pins = str(wanted.root / PINS)
    _pip("install", *words, *_options(wanted.target), "--constraint", pins, "--requirement", str(listed))
    return json.loads(place.read_text())


def _options(target: Target) -> list[str]:
    platforms = [word for platform in target.platforms for word in ("--platform", platform)]
    return ["--only-binary=:all:", "--python-version", target.python, "--implementation", "cp", *platforms]


def _find_links(folder: Path) -> str:
    return f"--find-links {shlex.quote(str(folder))}"


def _write_lines(place: Path, lines: Sequence[str]) -> Path:
    """In a file, and the links too: beside those of the command line, pip forgets the ones that it is set up with."""
    place.write_text("\n".join([*lines, ""]))
    return place


def _pip(command: str, *words: str) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    line = [sys.executable, "-m", "pip", command, *QUIET, *words]
    try:
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Refusal(f"pip {command} took more than {SECONDS} seconds") from error
    if done.returncode != 0:
        raise Refusal(f"pip {command} failed: {_why(done.stderr)}")


def _why(said: str) -> str:
    """Its errors, and the packages that it names below them, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("WARNING")]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return "; ".join(errors or lines[-1:]) or "it did not say why"
