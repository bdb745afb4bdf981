"""Import runs from another store, such as another machine's: whole, checked, and never over others.

A run is copied to <task>/.importing/, which no reader looks into, checked there, and renamed to its place: readers find
the whole run or none, even after a kill. The other store is not written to, and nothing here is lost: a run that is
replaced is kept in <task>/.replaced/.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from pathlib import Path

from nero.runs.checking import IdOf, check_run
from nero.runs.lock import RunBusy, exclusive
from nero.runs.logged import LoggedRun
from nero.runs.store import RunDirectory, Store, is_settled

COPIES, REPLACED = ".importing", ".replaced"  # folders of a task: unfinished copies, and runs that were replaced
# In the store's root: one import at a time, so that every unfinished copy belongs to an import that was killed.
LOCK = ".importing.lock"
# What belongs to a place and not to a run: its writer, and its mirrors.
NOT_COPIED = frozenset({"lock", "wandb", "wandb-synced.json"})


class ImportOutcome(StrEnum):
    """What an import did with a run."""

    IMPORTED = "imported"
    REPLACED = "imported in place of an unfinished run"
    ALREADY_HERE = "already here"
    BUSY = "skipped"
    UNFINISHED_HERE = "unfinished here"
    CONFLICT = "conflict"
    PROBLEM = "damaged"


# The user has to decide.
NOT_TAKEN = frozenset({ImportOutcome.UNFINISHED_HERE, ImportOutcome.CONFLICT, ImportOutcome.PROBLEM})


class _Refused(Exception):
    """Ends the import of one run; the arguments are its outcome and why."""


@dataclass(frozen=True)
class Import:
    """An import into a store.

    checkpoints:         copy checkpoints too
    replace_unfinished:  replace runs that are unfinished here by settled ones
    dry:                 only report what would be done
    """

    store: Store
    id_of: IdOf
    checkpoints: bool = True
    replace_unfinished: bool = False
    dry: bool = False

    def runs(self, others: Iterable[LoggedRun]) -> Iterator[tuple[LoggedRun, ImportOutcome, str]]:
        """Import runs one by one; yields each with its outcome and why. RunBusy while another import is going on."""
        if not self.dry:
            self.store.root.mkdir(parents=True, exist_ok=True)
        with exclusive(self.store.root / LOCK) if not self.dry else nullcontext():
            for copies in self.store.root.glob(f"*/{COPIES}") if not self.dry else ():
                shutil.rmtree(copies)
            for other in others:
                here = self.store.run(other.directory.path.parent.name, other.run_id)
                try:
                    outcome = self._decide(other, here)
                    self._put(other.directory, here)
                    yield other, outcome, ""
                except _Refused as refused:
                    yield other, *refused.args
                except RunBusy as busy:
                    yield other, ImportOutcome.BUSY, str(busy)

    def _decide(self, other: LoggedRun, here: RunDirectory) -> ImportOutcome:
        """The outcome if the run can be copied; raises _Refused if it is not to be."""
        if other.directory.is_held():
            raise _Refused(ImportOutcome.BUSY, "a process is writing it there")
        for path in self.store.root.glob(f"*/{here.run_id}"):
            if path.parent != here.path.parent:
                raise _Refused(ImportOutcome.CONFLICT, f"the same id is here under another task: {path}")
        if not here.path.is_dir() or all(path.name == "lock" for path in here.path.iterdir()):
            return ImportOutcome.IMPORTED
        if _has_same_content(here.path, other.directory.path):
            raise _Refused(ImportOutcome.ALREADY_HERE, "")
        if here.is_held():
            raise _Refused(ImportOutcome.BUSY, "a process is writing it here")
        if is_settled(here.read_summary()) or not is_settled(other.summary):
            raise _Refused(ImportOutcome.CONFLICT, f"{here.path} and {other.directory.path} differ; both are kept")
        if not self.replace_unfinished:
            option = f"--replace-unfinished replaces it, and keeps what is here in {REPLACED}"
            raise _Refused(ImportOutcome.UNFINISHED_HERE, f"and {other.status} there: {option}")
        return ImportOutcome.REPLACED

    def _put(self, other: RunDirectory, here: RunDirectory) -> None:
        if self.dry:
            self._check(other)
            return
        task_folder = here.path.parent
        # The folders of the copy are named as in a store, because the check compares them with the config.
        copy = RunDirectory(task_folder / COPIES / task_folder.name / here.run_id)
        try:
            before = _files(other.path)
            _copy(other.path, copy.path, self.checkpoints)
            if other.is_held() or _files(other.path) != before:  # someone wrote during the copy
                raise _Refused(ImportOutcome.BUSY, "a process is writing it there")
            self._check(copy)
            _move_into_place(copy.path, here)
        finally:
            shutil.rmtree(task_folder / COPIES, ignore_errors=True)
            with suppress(OSError):
                task_folder.rmdir()  # only if it is empty

    def _check(self, run: RunDirectory) -> None:
        for finding in check_run(run, self.id_of):
            if finding.is_problem:
                raise _Refused(ImportOutcome.PROBLEM, finding.words)


def _files(folder: Path, checkpoints: bool = True) -> dict[str, tuple[int, int]]:
    """The files of a run, by their path within it, with size and modification time."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in NOT_COPIED or path.suffix == ".part":
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise _Refused(ImportOutcome.PROBLEM, f"{name} is not a regular file")
        if path.is_file() and (checkpoints or not name.parts[0].startswith("checkpoint")):
            found[str(name)] = path.stat().st_size, path.stat().st_mtime_ns
    return found


def _has_same_content(here: Path, there: Path) -> bool:
    """Whether two directories have the same files, checkpoints aside."""
    try:
        ours, theirs = _files(here, checkpoints=False).keys(), _files(there, checkpoints=False).keys()
    except _Refused:
        return False
    return ours == theirs and all((here / name).read_bytes() == (there / name).read_bytes() for name in ours)


def _copy(source: Path, target: Path, checkpoints: bool) -> None:
    """Copy the files of a run with their times, and flush them to disk."""
    target.mkdir(parents=True)
    for name in _files(source, checkpoints):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name)
        _flush(target / name)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(copy: Path, here: RunDirectory) -> None:
    """Rename a whole copy to its place. A run that is there is held, so that nobody resumes it, and moved aside."""
    with here.exclusive() if here.path.exists() else nullcontext():
        if here.path.exists():
            if is_settled(here.read_summary()):
                raise RunBusy("it was finished here meanwhile")
            aside = here.path.parent / REPLACED
            aside.mkdir(exist_ok=True)
            names = chain([here.run_id], (f"{here.run_id}.{number}" for number in count(2)))
            os.rename(here.path, next(aside / name for name in names if not (aside / name).exists()))
        try:
            os.rename(copy, here.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise RunBusy("it was started here meanwhile") from error
    _flush(here.path.parent)
