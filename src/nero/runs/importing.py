"""Import runs from another store, such as another machine's: whole, checked, and never over others.

Of the other store, which may be anybody's, only the bytes of regular files are taken: no owners, modes or links.

A run is copied to <task>/.importing/, which no reader looks into, checked there, and renamed to its place: readers find
the whole run or none, even after a kill. The other store is not written to, and nothing here is lost: a run that is
replaced is kept in <task>/.replaced/.
"""

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, count, zip_longest
from pathlib import Path

from nero.atomic import open_regular, open_to_read
from nero.runs.checking import MIRRORS, IdOf, check_run, is_place_of_file
from nero.runs.lock import RunBusy, exclusive
from nero.runs.logged import LoggedRun
from nero.runs.records import MOST_BYTES_OF_OTHERS
from nero.runs.store import RunDirectory, Store, is_settled
from nero.runs.targets import remark
from nero.runs.validation import printable

COPIES, REPLACED = ".importing", ".replaced"  # folders of a task: unfinished copies, and runs that were replaced
# In the store's root: one import at a time, so that every unfinished copy belongs to an import that was killed.
LOCK = ".importing.lock"
# What belongs to a place and not to a run: its writer, and its mirrors.
NOT_COPIED = MIRRORS | {"lock"}
MOST_FILES = 10_000  # of a run
PIECE = 1 << 20  # bytes that are copied at a time
OWN_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})  # errors that all further runs would have too


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
                    yield other, outcome, remark(other.config)
                except _Refused as refused:
                    yield other, *refused.args
                except RunBusy as busy:
                    yield other, ImportOutcome.BUSY, str(busy)
                except OSError as error:
                    if error.errno in OWN_DISK:
                        raise
                    yield other, ImportOutcome.PROBLEM, printable(f"{error.filename}: {error.strerror}")

    def _decide(self, other: LoggedRun, here: RunDirectory) -> ImportOutcome:
        """The outcome if the run can be copied; raises _Refused if it is not to be."""
        if other.directory.is_held():
            raise _Refused(ImportOutcome.BUSY, "a process is writing it there")
        for path in self.store.root.glob(f"*/{glob.escape(here.run_id)}"):
            if path.parent != here.path.parent:
                raise _Refused(ImportOutcome.CONFLICT, f"the same id is here under another task: {path}")
        if os.path.lexists(here.path) and (here.path.is_symlink() or not here.path.is_dir()):
            raise _Refused(ImportOutcome.CONFLICT, f"{here.path} is not a folder")
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


def _walk(folder: Path, checkpoints: bool = True) -> Iterator[tuple[Path, int, os.stat_result]]:
    """The files of a run: their paths within it, descriptors of the folders they are in, and their status.

    Nothing that is put in the place of a folder meanwhile is followed.
    """

    def fail(error: OSError) -> None:
        raise error

    count = 0
    for place, folders, names, descriptor in os.fwalk(folder, onerror=fail):
        parent = Path(place).relative_to(folder)
        if parent == Path():
            folders[:] = [name for name in folders if name not in NOT_COPIED]
            names = [name for name in names if name not in NOT_COPIED]
        for name in sorted(folders + names):
            path = parent / name
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            count += 1
            if count > MOST_FILES:
                raise _Refused(ImportOutcome.PROBLEM, f"it has more than {MOST_FILES:,} files")
            if path.suffix == ".part" or (stat.S_ISDIR(found.st_mode) and not is_place_of_file(path)):
                continue
            if not stat.S_ISREG(found.st_mode):
                raise _Refused(ImportOutcome.PROBLEM, f"{printable(path)} is not a regular file")
            if checkpoints or not path.parts[0].startswith("checkpoint"):
                yield path, descriptor, found


def _files(folder: Path, checkpoints: bool = True) -> dict[Path, tuple[int, int]]:
    """The files of a run, by their path within it, with size and modification time."""
    return {path: (found.st_size, found.st_mtime_ns) for path, _, found in _walk(folder, checkpoints)}


def _has_same_content(here: Path, there: Path) -> bool:
    """Whether two directories have the same files, checkpoints aside."""
    try:
        ours, theirs = ({path: size for path, (size, _) in _files(run, False).items()} for run in (here, there))
        return ours == theirs and all(_are_same(here / name, there / name) for name in ours)
    except (_Refused, OSError):
        return False


def _are_same(one: Path, other: Path) -> bool:
    with open_to_read(one, MOST_BYTES_OF_OTHERS) as ours, open_to_read(other, MOST_BYTES_OF_OTHERS) as theirs:
        pieces = zip_longest(*(iter(partial(file.read, PIECE), b"") for file in (ours, theirs)))
        return all(mine == their for mine, their in pieces)


def _copy(source: Path, target: Path, checkpoints: bool) -> None:
    """Copy the content of a run's files with their times, and flush them to disk."""
    target.mkdir(parents=True)
    needed, free = sum(size for size, _ in _files(source, checkpoints).values()), shutil.disk_usage(target).free
    if needed > free:
        raise _Refused(ImportOutcome.PROBLEM, f"it has {needed:,} bytes, and {free:,} are free here")
    for path, descriptor, found in _walk(source, checkpoints):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        left = found.st_size
        with (
            open(open_regular(Path(path.name), folder=descriptor), "rb") as file,
            open(target / path, "xb") as made,
        ):
            while left > 0 and (data := file.read(min(PIECE, left))):
                left -= made.write(data)
        os.utime(target / path, ns=(found.st_atime_ns, found.st_mtime_ns))
        _flush(target / path)
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
