"""Runs of another store, such as another machine's, brought into this one: whole, checked, and never over others.

A copy is made in <task>/.importing/, deeper than any reader looks for runs, checked there, and then renamed to its
place: whoever reads the store, and whatever is killed when, finds the whole run or none. Nothing is written in the
other store, and nothing of this one is lost: a run that is replaced is kept in <task>/.replaced/.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nero.runs.checking import IdOf, check_run
from nero.runs.lock import RunBusy, exclusive
from nero.runs.logged import LoggedRun
from nero.runs.store import RunDirectory, Store, is_settled

UNDER_WAY, REPLACED = ".importing", ".replaced"
"""Folders of a task: what is being copied, and what was replaced."""

LOCK = ".importing.lock"
"""Under the store's root: one import at a time, so that what it finds left over is of one that was killed."""

NOT_COPIED = frozenset({"lock", "wandb", "wandb-synced.json"})
"""What belongs to a place and not to a run: who writes it there, and what was mirrored from there."""


class Outcome(StrEnum):
    """What became of a run that was asked for."""

    IMPORTED = "imported"
    REPLACED = "imported in place of an unfinished run"
    ALREADY_HERE = "already here"
    BUSY = "passed over"
    UNFINISHED_HERE = "unfinished here"
    CONFLICT = "conflict"
    PROBLEM = "not whole"


NOT_TAKEN = frozenset({Outcome.UNFINISHED_HERE, Outcome.CONFLICT, Outcome.PROBLEM})
"""Someone has to decide something."""


@dataclass(frozen=True)
class Imported:
    """A run of the other store and what became of it."""

    run: LoggedRun
    outcome: Outcome
    why: str = ""

    def __str__(self) -> str:
        return f"{self.run.run_id}: {self.outcome}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True)
class Import:
    """How runs are brought into a store.

    checkpoints:         with the states that they can be resumed from
    replace_unfinished:  a settled run takes the place of one that was cut off here
    dry:                 only say what would be done
    """

    store: Store
    id_of: IdOf
    checkpoints: bool = True
    replace_unfinished: bool = False
    dry: bool = False

    def runs(self, others: Iterable[LoggedRun]) -> Iterator[Imported]:
        """Each in turn; RunBusy where another import into this store is under way."""
        if self.dry:
            yield from map(self._one, others)
            return
        self.store.root.mkdir(parents=True, exist_ok=True)
        with exclusive(self.store.root / LOCK):
            for left_over in self.store.root.glob(f"*/{UNDER_WAY}"):
                shutil.rmtree(left_over)
            yield from map(self._one, others)

    def _one(self, other: LoggedRun) -> Imported:
        here = self.store.run(other.directory.path.parent.name, other.run_id)
        if other.directory.is_held():
            return Imported(other, Outcome.BUSY, "a process is writing it there")
        if elsewhere := self._elsewhere(here):
            return Imported(other, Outcome.CONFLICT, f"the same id is here under another task: {elsewhere}")
        if not _is_there(here):
            return self._put(other, here, Outcome.IMPORTED)
        if _same(here.path, other.directory.path):
            return Imported(other, Outcome.ALREADY_HERE)
        if here.is_held():
            return Imported(other, Outcome.BUSY, "a process is writing it here")
        if is_settled(here.read_summary()) or not is_settled(other.summary):
            return Imported(other, Outcome.CONFLICT, f"{here.path} and {other.directory.path} differ; both are kept")
        if not self.replace_unfinished:
            why = f"and {other.standing} there: --replace-unfinished takes it, and keeps what is here in {REPLACED}"
            return Imported(other, Outcome.UNFINISHED_HERE, why)
        return self._put(other, here, Outcome.REPLACED)

    def _elsewhere(self, here: RunDirectory) -> Path | None:
        """A directory of the same id under another task."""
        found = (path for path in self.store.root.glob(f"*/{here.run_id}") if path.parent != here.path.parent)
        return next(found, None)

    def _put(self, other: LoggedRun, here: RunDirectory, outcome: Outcome) -> Imported:
        """Copy, check, rename."""
        if self.dry:
            findings = [finding for finding in check_run(other.directory, self.id_of) if finding.is_problem]
            return Imported(other, Outcome.PROBLEM, findings[0].words) if findings else Imported(other, outcome)
        # The folders of the copy are named as in a store, since that is part of what is checked.
        task_folder = here.path.parent
        under_way = task_folder / UNDER_WAY
        copy = RunDirectory(under_way / task_folder.name / here.run_id)
        try:
            before = _state(other.directory.path)
            _copy(other.directory.path, copy.path, self.checkpoints)
            if other.directory.is_held() or _state(other.directory.path) != before:
                return Imported(other, Outcome.BUSY, "a process is writing it there")
            if findings := [finding for finding in check_run(copy, self.id_of) if finding.is_problem]:
                return Imported(other, Outcome.PROBLEM, findings[0].words)
            _exchange(copy.path, here)
        except _NotCopied as error:
            return Imported(other, Outcome.PROBLEM, str(error))
        except RunBusy as error:
            return Imported(other, Outcome.BUSY, str(error))
        finally:
            shutil.rmtree(under_way, ignore_errors=True)
            with suppress(OSError):
                task_folder.rmdir()  # only if nothing came to be in it
        return Imported(other, outcome)


class _NotCopied(Exception):
    """A run with something in it that is no file."""


def _is_there(run: RunDirectory) -> bool:
    """Whether anything of a run is there: a lock alone is not."""
    return run.path.is_dir() and any(path.name != "lock" for path in run.path.iterdir())


def _files(folder: Path) -> dict[str, Path]:
    """What a run consists of, by the path within it."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in NOT_COPIED or path.suffix == ".part":
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise _NotCopied(f"{name} is no plain file")
        if path.is_file():
            found[str(name)] = path
    return found


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file: other ones when someone has written meanwhile."""
    return {name: (path.stat().st_size, path.stat().st_mtime_ns) for name, path in _files(folder).items()}


def _same(here: Path, there: Path) -> bool:
    """Whether two directories tell the same of a run; states to resume from are no part of what it tells."""
    try:
        ours, theirs = _files(here), _files(there)
    except _NotCopied:
        return False
    told = [{name: path for name, path in files.items() if not _is_checkpoint(name)} for files in (ours, theirs)]
    return told[0].keys() == told[1].keys() and all(
        path.stat().st_size == told[1][name].stat().st_size and path.read_bytes() == told[1][name].read_bytes()
        for name, path in told[0].items()
    )


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoint")


def _copy(source: Path, target: Path, checkpoints: bool) -> None:
    """Every file of a run, on disk when this returns; its times go with it."""
    target.mkdir(parents=True)
    for name, path in _files(source).items():
        if _is_checkpoint(name) and not checkpoints:
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / name)
        _flush(target / name)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(copy: Path, here: RunDirectory) -> None:
    """Rename a whole copy to its place; what is there is put aside first, held so that nobody goes on with it."""
    if here.path.exists():
        with here.exclusive():
            if is_settled(here.read_summary()):
                raise RunBusy("it was finished here meanwhile")
            os.rename(here.path, _free(here.path.parent / REPLACED, here.run_id))
            _place(copy, here.path)
    else:
        _place(copy, here.path)
    _flush(here.path.parent)


def _place(copy: Path, path: Path) -> None:
    try:
        os.rename(copy, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise RunBusy("it was started here meanwhile") from error


def _free(folder: Path, name: str) -> Path:
    """A path in a folder that nothing is at yet."""
    folder.mkdir(exist_ok=True)
    number, path = 1, folder / name
    while path.exists():
        number += 1
        path = folder / f"{name}.{number}"
    return path
