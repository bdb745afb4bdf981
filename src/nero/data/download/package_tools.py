"""Programs that fetch a package as one file: npm and pip, where only their registries can be reached."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

SECONDS = 900


class ToolFailed(OSError):
    """The program is not there or did not deliver; the message is one line."""


def fetch_one(
    words: Sequence[str], folder: Path, pattern: str, name: str, why: Callable[[list[str]], str | None]
) -> Path:
    """Run a program in an empty folder and give the one file of that pattern which it leaves there.

    name:  what messages call it
    why:   from what it said line by line on stderr, the words that say why it failed, or None
    """
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{name} took more than {SECONDS} seconds") from error
    except OSError as error:
        raise ToolFailed(f"{name} cannot be run: {error}") from error
    if done.returncode != 0:
        raise ToolFailed(f"{name} failed: {why(done.stderr.splitlines()) or f'status {done.returncode}'}")
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ToolFailed(f"{name} left {len(found)} files {pattern} instead of one")
    return found[0]
