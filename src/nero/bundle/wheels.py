"""The wheels of a bundle: uv resolves them for another Python and platform, pip downloads them."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

SOURCE_ONLY = {"antlr4-python3-runtime"}  # published without a wheel: it is built here
UV_SYSTEMS = {"macosx": "apple-darwin", "win": "pc-windows-msvc", "musllinux": "unknown-linux-musl"}
Lock = dict[str, str]  # package -> its lines in a requirements file: the exact version, and the hashes of its files


class BundleError(RuntimeError):
    """The bundle cannot be made as requested; the message is one line."""


def check_target(python: str, platform: str) -> None:
    """Raise BundleError unless this is a Python version and a wheel platform tag."""
    if not re.fullmatch(r"3\.\d+", python):
        raise BundleError(f"{python!r} is not a Python version such as 3.12")
    if not re.fullmatch(r"manylinux_2_\d+_\w+|musllinux_1_\d+_\w+|macosx_\d+_\d+_\w+|win_(amd64|arm64)", platform):
        example = "manylinux_2_28_x86_64, macosx_11_0_arm64 or win_amd64"
        raise BundleError(f"unknown platform {platform!r}: use a wheel tag such as {example}")


def resolve(
    root: Path,
    python: str,
    platform: str,
    extras: Sequence[str],
    without: Sequence[str],
    scratch: Path,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[Lock, list[str]]:
    """The packages to bundle, and the requirements that the target machine must already meet.

    without:  names or patterns of packages to leave out, together with what only they need (patterns: just themselves)
    """
    about = tomllib.loads((root / "pyproject.toml").read_text())
    project, optional = about["project"], about["project"].get("optional-dependencies", {})
    if not SpecifierSet(project["requires-python"]).contains(f"{python}.0"):
        raise BundleError(f"the project needs Python {project['requires-python']}, but the bundle is for {python}")
    if unknown := [extra for extra in extras if extra not in optional]:
        raise BundleError(f"unknown extra {unknown[0]!r}: choose from {', '.join(optional)}")
    tools = ["pip", *about["build-system"]["requires"]]  # never left out: they install the rest
    always = {canonicalize_name(Requirement(tool).name) for tool in tools}
    patterns = [canonicalize_name(pattern) for pattern in without]
    (scratch / "tools.txt").write_text("\n".join(tools))
    (scratch / "excludes.txt").write_text("\n".join(p for p in patterns if "*" not in p and p not in always))
    kind, machine = re.split(r"_[\d_]*", platform, maxsplit=1)
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)
    lock = scratch / "lock.txt"
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise BundleError("uv, which resolves the wheels, is not installed: pip install uv")
    log(f"uv resolves the wheels for Python {python} on {platform}")
    run(
        *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
        *("--python-version", python, "--python-platform"),
        f"{arch}-{UV_SYSTEMS.get(kind) or platform.removesuffix(f'_{machine}')}",
        *("--constraint", root / "constraints.txt", "--excludes", scratch / "excludes.txt"),
        *(f"--extra={extra}" for extra in extras),
        *("--output-file", lock, root / "pyproject.toml", scratch / "tools.txt"),
    )
    entries = [entry for entry in re.split(r"\n(?=\S)", lock.read_text().strip()) if "==" in entry]
    packages = {entry.partition("==")[0]: entry for entry in entries}
    direct = map(Requirement, [*project["dependencies"], *(line for extra in extras for line in optional[extra])])
    names: dict[str, str] = {canonicalize_name(needed.name): f"{needed.name}{needed.specifier}" for needed in direct}
    known = {*packages, *names} - always
    left_out = {name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)}
    kept = {name: entry for name, entry in packages.items() if name not in left_out}
    return kept, sorted(names.get(name, name) for name in left_out)


def download(lock: Lock, python: str, platform: str, scratch: Path) -> list[Path]:
    """The wheels, each with one of the hashes in the lock; the one that has to be built, from such a source."""
    folder = scratch / "wheels"
    options = ("--disable-pip-version-check", "--no-input", "--quiet", "--no-deps", "--require-hashes")
    for name in SOURCE_ONLY & lock.keys():
        (scratch / "source.txt").write_text(lock[name])
        run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, "-r", scratch / "source.txt")
        if compiled := [wheel.name for wheel in folder.iterdir() if not wheel.name.endswith("-none-any.whl")]:
            raise BundleError(f"{compiled[0]} was built from source for this machine only")
    (scratch / "wheels.txt").write_text("\n".join(entry for name, entry in lock.items() if name not in SOURCE_ONLY))
    tags = (f"--platform={tag}" for tag in platform_tags(platform))
    target = ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *tags)
    run(sys.executable, "-m", "pip", "download", *options, *target, "--dest", folder, "-r", scratch / "wheels.txt")
    return sorted(folder.iterdir())


def platform_tags(platform: str) -> list[str]:
    """Platforms whose wheels run on this one: pip compares Linux tags literally, but an older libc is fine."""
    match = re.fullmatch(r"(manylinux_2|musllinux_1)_(\d+)_(\w+)", platform)
    if not match:
        return [platform]
    older = [f"{match[1]}_{minor}_{match[3]}" for minor in range(int(match[2]), -1, -1)]
    return older + [f"manylinux{year}_{match[3]}" for year in ("2014", "2010", "1") if match[1] == "manylinux_2"]


def run(*command: str | Path) -> None:
    env = {**os.environ, "SOURCE_DATE_EPOCH": "946684800"}  # so that a wheel that is built is always the same
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise BundleError(f"{Path(command[0]).name} failed: {' '.join(done.stderr.split()) or done.returncode}")
