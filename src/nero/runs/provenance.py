"""Where a run's numbers come from: code, versions, machine, command."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import nero

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "COMMIT"
"""A file in ROOT with the output of git describe, in a copy of the code without its history."""

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "triton", "ale-py")


def provenance(device: str) -> dict[str, Any]:
    """The record of one start of a run. `device` is the device's name from its driver."""
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
    """Commit hash, and whether the working tree had changes; (None, None) if unknown.

    Copies of the code without history have what `git describe --always --dirty --abbrev=40` printed in NERO_COMMIT or
    in a file COMMIT at their root.
    """
    described = os.environ.get("NERO_COMMIT") or _commit_file() or _git_describe()
    if not described:
        return None, None
    return described.removesuffix("-dirty"), described.endswith("-dirty")


def code_in_words() -> str:
    """For the head of a table."""
    commit, dirty = code_version()
    return f"code of {commit or 'an unknown commit'}{' with changes' if dirty else ''}"


def command() -> str:
    """The command line, without the paths of this machine."""
    words = [sys.argv[0].removeprefix(f"{Path.cwd()}{os.sep}"), *sys.argv[1:]]
    return " ".join(words).replace(str(Path.cwd()), ".").replace(str(Path.home()), "~")


def _commit_file() -> str | None:
    """Ignored where the code has its own history. Read before git, which would find an enclosing repository."""
    if (ROOT / ".git").exists():
        return None
    try:
        return (ROOT / COMMIT).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _git_describe() -> str | None:
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(
            words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
