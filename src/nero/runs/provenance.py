"""Where a run's numbers come from: code, versions, machine, command."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import nero

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "COMMIT"
"""A file in ROOT that a copy of the code without its history has: what git described it as."""

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "triton", "ale-py")


def provenance(device: str) -> dict[str, Any]:
    """What to record when a run starts. `device` is the device's name in words, as its driver gives it."""
    commit, dirty = code_version()
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version(), "nero": nero.__version__, **versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "device": device,
        "command": command(),
    }


def code_version() -> tuple[str | None, bool | None]:
    """Commit hash and whether the tree had changes on top of it; (None, None) where neither is known.

    A copy of the code without its history says what `git describe --always --dirty --abbrev=40` printed in NERO_COMMIT,
    or in a file COMMIT at its root.
    """
    described = os.environ.get("NERO_COMMIT") or _commit_file() or _git_describe()
    if not described:
        return None, None
    return described.removesuffix("-dirty"), described.endswith("-dirty")


def code_in_words() -> str:
    """As the head of a table says it."""
    commit, dirty = code_version()
    return f"code of {commit or 'an unknown commit'}{' with changes' if dirty else ''}"


def command() -> str:
    """The command line, with the paths that only mean something on this machine shortened."""
    words = [sys.argv[0].removeprefix(f"{Path.cwd()}{os.sep}"), *sys.argv[1:]]
    return " ".join(words).replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")


def _commit_file() -> str | None:
    """Not where there is a history of the code's own; before git, which would find one that the copy lies within."""
    if (ROOT / ".git").exists():
        return None
    try:
        return (ROOT / COMMIT).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _git_describe() -> str | None:
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
