"""Reading a run directory, which may come from elsewhere: only regular files within limits, and only what is valid.

See `nero.runs.store` for the files, and `nero.runs.validation` for what is valid.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

from nero.atomic import open_to_read
from nero.runs import validation
from nero.runs.lock import is_held
from nero.runs.records import MOST_BYTES, MOST_BYTES_OF_OTHERS, parse, parse_lines, parse_yaml
from nero.runs.validation import SETTLED, VERSION, Damaged, Record

CONFIG, SUMMARY, METRICS, PROVENANCE = "config.yaml", "summary.json", "metrics.jsonl", "provenance.jsonl"
ALL = (CONFIG, METRICS, PROVENANCE)  # files that `Store.read` can check beside the summary


class RunFiles:
    """The files of one run, to be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return self.path.name

    def is_held(self) -> bool:
        return is_held(self.path / "lock")

    def is_new(self) -> bool:
        """Whether this is no run yet: a process has taken it, and has not written its summary."""
        if os.path.lexists(self.path / SUMMARY):
            return False
        return not os.path.lexists(self.path / CONFIG) or self.is_held()

    def _open(self, name: str) -> BufferedReader:
        """OSError for anything but a regular file within the limits of its kind."""
        return open_to_read(self.path / name, MOST_BYTES.get(name, MOST_BYTES_OF_OTHERS))

    def _read(self, name: str) -> bytes:
        with self._open(name) as file:
            return file.read()

    def content(self, name: str) -> bytes:
        """A file as it is; empty if it cannot be read."""
        with suppress(OSError):
            return self._read(name)
        return b""

    def _parse(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        """The content of a file; Damaged if there is none."""
        try:
            return parse(self._read(name))
        except FileNotFoundError:
            raise Damaged(f"there is no {name}") from None
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise Damaged(f"{name} cannot be read: {error}") from None

    def check(self, *files: str) -> Record:
        """The summary; Damaged, with the reason in one line, if it or one of `files`, of ALL, is.

        With ALL of them, they must agree too. The last line of a log may be cut off, as by a kill.
        """
        if self.path.is_symlink():
            raise Damaged("it is a link and not a folder")
        summary = self.load_summary()
        if CONFIG in files:
            self.read_config(summary if files == ALL else None)
        if METRICS in files and (summary["epochs_done"] or os.path.lexists(self.path / METRICS)):
            lines = self._checked_lines(METRICS, validation.line_problem)
            for before, after in pairwise(line["epoch"] for line in lines):
                if after <= before:
                    raise Damaged(f"{METRICS}: epoch {after} comes after epoch {before}")
            if summary["status"] in SETTLED and (last := lines[-1]["epoch"] if lines else 0) != summary["epochs_done"]:
                raise Damaged(f"{SUMMARY} has {summary['epochs_done']} epochs done, and {METRICS} {last}")
        if PROVENANCE in files:
            self.check_provenance()
        return summary

    def check_provenance(self) -> None:
        """Damaged if it is unreadable; runs that failed before they began have none."""
        if os.path.lexists(self.path / PROVENANCE):
            self._checked_lines(PROVENANCE, validation.start_problem)

    def _checked_lines(self, name: str, problem: Callable[[Any], str | None]) -> list[Record]:
        """All lines but a last one that was cut off; Damaged if any other is."""
        data = self._parse(name, bytes)
        records = parse_lines(data)
        for number, record in enumerate(records, start=1):
            if words := problem(record):
                if number == len(records) and not data.endswith(b"\n"):
                    return records[:-1]
                raise Damaged(f"{name}: damaged line {number}: {words}")
        return records

    def read_summary(self) -> Record | None:
        """None if it is missing, unreadable or of another version."""
        with suppress(Damaged):
            return self.load_summary()
        return None

    def load_summary(self) -> Record:
        """Damaged if it is missing, unreadable, of another version or of another run."""
        summary: Record = self._parse(SUMMARY, parse)
        if problem := validation.summary_problem(summary, self.run_id, self.path.parent.name):
            raise Damaged(problem)
        return {"final": None, **summary}

    def other_version(self) -> str | None:
        """The summary's version, if it is not this code's."""
        with suppress(Damaged):
            summary = self._parse(SUMMARY, parse)
            if isinstance(summary, dict) and summary.get("version") != VERSION:
                return repr(summary.get("version"))
        return None

    def damaged_result(self) -> str | None:
        """What is damaged in the summary of a run that has ended by it: to be overwritten by nobody."""
        with suppress(Damaged):
            summary = self._parse(SUMMARY, parse)
            if isinstance(summary, dict) and summary.get("status") in tuple(SETTLED):
                return validation.summary_problem(summary, self.run_id, self.path.parent.name)
        return None

    def read_config(self, summary: Record | None = None) -> Record:
        """Damaged if it is missing or unreadable, or contradicts the summary."""
        config: Record = self._parse(CONFIG, parse_yaml)
        if problem := validation.config_problem(config, summary):
            raise Damaged(problem)
        return config

    def find_config(self) -> Record | None:
        """The config, or None if it is missing or unreadable."""
        with suppress(Damaged):
            return self.read_config()
        return None

    def read_provenance(self) -> list[Record]:
        """Every intact line in order."""
        return [record for record in self._read_lines(PROVENANCE) if not validation.start_problem(record)]

    def read_metrics(self) -> list[Record]:
        """Every intact line in order. Damaged lines, such as one cut off by a kill, are skipped."""
        return [record for record in self._read_lines(METRICS) if not validation.line_problem(record)]

    def _read_lines(self, name: str) -> list[Any]:
        return parse_lines(self.content(name))

    def log(self) -> bytes:
        """metrics.jsonl as it is; empty if there is none."""
        with suppress(FileNotFoundError):
            return self._read(METRICS)
        return b""

    def pictures(self, stem: str) -> dict[int, Path]:
        """Epoch -> file of the images of one name, sorted by epoch."""
        name = re.compile(rf"{re.escape(stem)}-epoch([0-9]{{1,9}})\.\w+")
        found = sorted(self.path.glob("pictures/*"))
        matches = ((name.fullmatch(path.name), path) for path in found)
        return {int(match[1]): path for match, path in matches if match and stat.S_ISREG(path.lstat().st_mode)}

    def load_checkpoint(self) -> bytes | None:
        """The newest checkpoint with a valid checksum, or None."""
        return next((data for _, data, _ in self.checkpoints() if data is not None), None)

    def resumable_checkpoint(self, report: Callable[[str], None]) -> tuple[Path, bytes] | None:
        """The newest checkpoint with a valid checksum and an intact log up to it, with its file; None to start over.

        Args:
            report: called with one line for each problem
        """
        problems: list[str] = []
        found = None
        for name, data, problem in self.checkpoints():
            if data is not None and problem is None:
                found = self.path / name, data
                break
            problems.append(str(problem))
        for problem in problems:
            report(f"{problem}; {f'resuming from {found[0].name}' if found else 'starting over'}")
        return found

    def checkpoints(self) -> Iterator[tuple[str, bytes | None, str | None]]:
        """File, data and problem of each checkpoint, newest first.

        A damaged checkpoint has no data. One with data and a problem is intact, but the log up to it is not.
        """
        for entry in self._checkpoint_index():
            name = entry.get("file")
            if not isinstance(name, str) or Path(name).name != name:  # a file elsewhere is never read
                yield "checkpoint.json", None, "checkpoint.json is damaged"
                continue
            try:
                with self._open(name) as file:
                    is_intact = hashlib.file_digest(file, "sha256").hexdigest() == entry.get("sha256")
                    file.seek(0)
                    data = file.read() if is_intact else None  # only now: another file may be too large for memory
            except OSError as error:
                yield name, None, f"{name} cannot be read ({error.strerror})"
                continue
            if data is None:
                yield name, None, f"{name} is damaged"
            else:
                yield name, data, None if self._has_log(entry.get("log")) else f"metrics.jsonl is damaged before {name}"

    def _checkpoint_index(self) -> list[Record]:
        """The entries, newest first; a damaged index is one entry without a file."""
        try:
            index = parse(self._read("checkpoint.json"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            index = None
        return [entry for entry in index if isinstance(entry, dict)] if isinstance(index, list) else [{}]

    def _has_log(self, mark: Any) -> bool:
        """Whether metrics.jsonl still begins with what it had at a checkpoint. `mark` may be a list of alternatives."""
        if mark is None:  # checkpoints of older code
            return True
        marks = [one for one in (mark if isinstance(mark, list) else [mark]) if isinstance(one, dict)]
        with suppress(OSError):
            log = self.log()
            return any(type(one.get("bytes")) is int and log_mark(log[: one["bytes"]]) == one for one in marks)
        return False


def log_mark(log: bytes) -> Record:
    return {"bytes": len(log), "sha256": sha256(log)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
