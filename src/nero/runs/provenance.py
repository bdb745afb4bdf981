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
COMMIT = "COMMIT"  # a file in ROOT with the output of git describe, in a copy of the code without its history
PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "omegaconf", "triton", "ale-py")


def provenance(device: str) -> dict[str, Any]:
    """The record of one start of a run. `device` is the device's name from its driver."""
    commit, dirty = code_version()
    words = [sys.argv[0].removeprefix(f"{Path.cwd()}{os.sep}"), *sys.argv[1:]]
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version(), "nero": nero.__version__, **versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "device": device,
        # Without the paths of this machine.
        "command": " ".join(words).replace(str(Path.cwd()), ".").replace(str(Path.home()), "~"),
    }


def code_version() -> tuple[str | None, bool | None]:
    """Commit hash, and whether the working tree had changes; (None, None) if unknown.

    Copies of the code without history have what `git describe --always --dirty --abbrev=40` printed in NERO_COMMIT or
    in a file COMMIT at their root.
    """
    described = os.environ.get("NERO_COMMIT")
    # The file is read before git, which would find an enclosing repository.
    if not described and not (ROOT / ".git").exists():
        with suppress(OSError, UnicodeDecodeError):
            described = (ROOT / COMMIT).read_text().strip()
    described = described or _git_describe()
    return (described.removesuffix("-dirty"), described.endswith("-dirty")) if described else (None, None)


def _git_describe() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    return None


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
