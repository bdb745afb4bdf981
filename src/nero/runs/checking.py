"""Whether a store is whole. Reads everything and changes nothing."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nero.runs.store import SETTLED, VERSION, Record, RunDirectory, Status, Store, is_settled

IdOf = Callable[[Mapping[str, Any]], str]
"""The id of the run that a config is of."""

BESIDE_A_RUN = frozenset({"lock"})
"""What a directory may hold of which no run was ever started."""


@dataclass(frozen=True)
class Finding:
    """What is to be said of a run; `is_problem` where it is not as a run should be."""

    path: Path
    words: str
    is_problem: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


@dataclass(frozen=True)
class Checked:
    """A directory of a store, looked through."""

    run: RunDirectory
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        return not any(finding.is_problem for finding in self.findings)


def check_store(store: Store, id_of: IdOf) -> Iterator[Checked]:
    """Every run directory in order of its path, with what is to be said of it."""
    directories = run_directories(store)
    places: dict[str, list[Path]] = {}
    for run in directories:
        places.setdefault(run.run_id, []).append(run.path)
    for run in directories:
        others = [path for path in places[run.run_id] if path != run.path]
        twice = [Finding(run.path, f"the same id is also at {other}") for other in others]
        yield Checked(run, (*check_run(run, id_of), *twice))


def run_directories(store: Store) -> list[RunDirectory]:
    """Every directory that is a run's or looks like one, also without a summary, unlike `Store.runs`.

    Names that begin with a dot are put there by imports.
    """
    folders = [
        path
        for task in sorted(store.root.glob("*"))
        if task.is_dir() and not task.name.startswith(".")
        for path in sorted(task.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]
    return [RunDirectory(path) for path in folders if {entry.name for entry in path.iterdir()} - BESIDE_A_RUN]


def check_run(run: RunDirectory, id_of: IdOf) -> list[Finding]:
    """All that is to be said of one run. Of one that a process has, only what it is: the rest is on its way."""
    if run.is_held():
        return [Finding(run.path, "is being written, and was not looked into", is_problem=False)]
    found = [Finding(path, "was left over by a write that was cut off") for path in sorted(run.path.rglob("*.part"))]
    summary, trouble = _summary(run)
    words = [trouble] if trouble else []
    config = run.config_there()
    if config is None:
        is_there = (run.path / "config.yaml").exists()
        words.append("config.yaml cannot be read" if is_there else "there is no config.yaml")
    else:
        words += _wrong_config(run, config, summary, id_of)
    if summary is not None:
        words += _wrong_summary(run, summary)
    words += _wrong_checkpoints(run)
    found += [Finding(run.path, text) for text in words]
    lines = _Lines.of(run)
    found += [Finding(run.path, text) for text in lines.wrong()]
    unsettled = summary is None or summary.get("status") not in SETTLED
    if lines.cut_off:
        found.append(Finding(run.path, "metrics.jsonl: its last line was cut off", is_problem=not unsettled))
    if summary is not None and not unsettled:
        found += [Finding(run.path, text) for text in _wrong_ending(summary, lines)]
        if not any(finding.is_problem for finding in found) and not is_settled(summary):
            found.append(Finding(run.path, "unmeasured: it came to its end without its metric", is_problem=False))
    return found


def _summary(run: RunDirectory) -> tuple[Record | None, str | None]:
    """What it says, where it can be read; else what is the matter."""
    if not (run.path / "summary.json").exists():
        return None, "there is no summary.json"
    if (version := run.other_version()) is not None:
        return None, f"summary.json is of version {version}, and only {VERSION} can be read"
    summary = run.read_summary()
    return summary, "summary.json cannot be read" if summary is None else None


def _wrong_config(run: RunDirectory, config: Record, summary: Record | None, id_of: IdOf) -> Iterator[str]:
    try:
        own = id_of(config)
    except (KeyError, TypeError, ValueError) as error:
        yield f"config.yaml is not that of a run ({type(error).__name__}: {error})"
        return
    if own != run.run_id:
        yield f"config.yaml is that of {own}"
    if config["task_name"] != run.path.parent.name:
        yield f"is a run of {config['task_name']}, under {run.path.parent.name}"
    if summary is not None:
        said = {
            "task": config["task_name"],
            "optim": config["optim_name"],
            "lr": config["optim"]["lr"],
            "seed": config["seed"],
            "data": config.get("data"),
        }
        for key, value in said.items():
            if summary.get(key) != value:
                yield f"summary.json says {key} {summary.get(key)!r} and config.yaml {value!r}"


def _wrong_summary(run: RunDirectory, summary: Record) -> Iterator[str]:
    if summary["run_id"] != run.run_id:
        yield f"summary.json is that of {summary['run_id']}"
    if summary["task"] != run.path.parent.name:
        yield f"summary.json is that of a run of {summary['task']}, under {run.path.parent.name}"


@dataclass(frozen=True)
class _Lines:
    """The lines of a run's log, as they are."""

    records: Sequence[Record]  # the whole ones
    damaged: Sequence[int]  # numbers of lines that are not, but for the last
    cut_off: bool  # the last line has no end

    @classmethod
    def of(cls, run: RunDirectory) -> "_Lines":
        try:
            data = (run.path / "metrics.jsonl").read_bytes()
        except OSError:
            return cls((), (), False)
        *ended, last = data.split(b"\n")
        cut_off = bool(last) and _parsed(last) is None
        parsed = [_parsed(line) for line in ([*ended, last] if last and not cut_off else ended)]
        damaged = [number for number, record in enumerate(parsed, start=1) if record is None]
        return cls([record for record in parsed if record is not None], damaged, cut_off)

    def wrong(self) -> Iterator[str]:
        if self.damaged:
            yield f"metrics.jsonl: damaged lines {', '.join(map(str, self.damaged[:10]))}"
            return  # whose epochs would be told as missing too
        before = 0
        for record in self.records:
            epoch, epochs = record["epoch"], record.get("epochs", 1)
            if epoch <= before:
                yield f"metrics.jsonl: epoch {epoch} comes after epoch {before}"
                return
            if epoch - epochs != before:
                missing = f"{before + 1} to {epoch - epochs}" if epoch - epochs > before else f"before {epoch}"
                yield f"metrics.jsonl: epochs {missing} are {'missing' if epoch - epochs > before else 'repeated'}"
                return
            before = epoch


def _parsed(line: bytes) -> Record | None:
    """A line of the log; None for one that is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or type(record.get("epoch")) is not int or type(record.get("epochs", 1)) is not int:
        return None
    return record


def _wrong_ending(summary: Record, lines: _Lines) -> Iterator[str]:
    """What a settled run's summary says otherwise than its log."""
    last: Mapping[str, Any] = lines.records[-1] if lines.records else {"epoch": 0}
    if summary["epochs_done"] != last["epoch"]:
        yield f"summary.json says that {summary['epochs_done']} epochs are done, and metrics.jsonl {last['epoch']}"
    if summary["status"] != Status.DONE:
        return
    if summary["epochs_done"] != summary.get("epochs"):
        yield f"is done after {summary['epochs_done']} of {summary.get('epochs')} epochs"
    logged = {key: value for key, value in last.items() if "/" in key}
    finals = summary["final_metrics"]
    if differing := sorted(key for key in logged.keys() | finals.keys() if _differ(logged, finals, key)):
        yield f"the last line of metrics.jsonl and the final metrics of summary.json differ in {', '.join(differing)}"
    if summary.get("final") != finals.get(summary["metric"]["key"]):
        yield f"summary.json has two final values of {summary['metric']['key']}"


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    return key not in one or key not in other or one[key] != other[key]


def _wrong_checkpoints(run: RunDirectory) -> Iterator[str]:
    path = run.path / "checkpoint.json"
    try:
        index = json.loads(path.read_bytes())
        entries = [(str(entry["file"]), str(entry["sha256"]), entry.get("log")) for entry in index]
        if not isinstance(index, list):
            raise TypeError("an index is a list")
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        yield "checkpoint.json cannot be read"
        return
    for name, checksum, log in entries:
        if Path(name).name != name:
            yield f"checkpoint.json names a file elsewhere: {name}"
        elif not (run.path / name).is_file():
            yield f"checkpoint.json names {name}, which is not there"
        elif _sha256(run.path / name) != checksum:
            yield f"{name} is not what checkpoint.json has the checksum of"
        elif not run.is_log_whole(log):
            yield f"metrics.jsonl is not what it was when {name} was written"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
