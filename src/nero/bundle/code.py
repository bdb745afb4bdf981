"""The project's own files, as git tracks them and as they lie in the work tree."""

import os
import subprocess
from pathlib import Path

from nero.bundle.parcels import Entry
from nero.bundle.refusal import Refusal
from nero.runs.provenance import COMMIT, ROOT, code_version

RUNS = "results/runs/"


def tracked_files(root: Path = ROOT, runs: bool = False) -> list[Entry]:
    """Every tracked file that is there, with its changes; those of logged runs only if asked for."""
    entries = []
    for name in _listed(root):
        path = root / name
        if name.startswith(RUNS) and not runs:
            continue
        if path.is_symlink():
            raise Refusal(f"{name} is a symbolic link, which a bundle does not carry")
        if path.is_file():  # one that was deleted but not committed is not
            entries.append(Entry(name, path, executable=bool(path.stat().st_mode & 0o100)))
    if not entries:
        raise Refusal(f"git tracks no file in {root}")
    return entries


def untracked_files(root: Path = ROOT) -> list[str]:
    """Files that git neither tracks nor ignores: new code that nobody has added yet, perhaps."""
    return _listed(root, "--others", "--exclude-standard")


def commit_file() -> Entry:
    """What says which code it is where there is no git."""
    commit, dirty = code_version()
    if commit is None:
        raise Refusal("which commit the code is of is not known: git describe failed")
    return Entry(COMMIT, f"{commit}{'-dirty' if dirty else ''}\n".encode())


def _listed(root: Path, *words: str) -> list[str]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z", *words], cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Refusal(f"{root} is no git work tree: what belongs to the project is not known") from error
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
