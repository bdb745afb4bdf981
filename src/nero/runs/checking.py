"""Verify a store: every file of every run is intact and consistent with the others. Nothing is changed."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nero.runs.records import is_metrics, parse_line
from nero.runs.store import SETTLED, VERSION, Record, RunDirectory, Status, Store, is_settled

IdOf = Callable[[Mapping[str, Any]], str]
"""Computes a run id from a config."""


@dataclass(frozen=True)
class Finding:
    """A remark on a run; `is_problem` if the run is damaged."""

    path: Path
    words: str
    is_problem: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


@dataclass(frozen=True)
class Checked:
    """A run directory with its findings."""

    run: RunDirectory
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        return not any(finding.is_problem for finding in self.findings)


def check_store(store: Store, id_of: IdOf) -> Iterator[Checked]:
    """Check every run directory, sorted by path."""
    directories = run_directories(store)
    places: dict[str, list[Path]] = {}
    for run in directories:
        places.setdefault(run.run_id, []).append(run.path)
    for run in directories:
        others = [path for path in places[run.run_id] if path != run.path]
        twice = [Finding(run.path, f"the same id is also at {other}") for other in others]
        yield Checked(run, (*check_run(run, id_of), *twice))


def run_directories(store: Store) -> list[RunDirectory]:
    """Every run directory, also those without a summary, unlike `Store.runs`. A lock alone does not make a run.

    Names that begin with a dot belong to imports.
    """
    folders = [path for path in sorted(store.root.glob("[!.]*/[!.]*")) if path.is_dir()]
    return [RunDirectory(path) for path in folders if any(entry.name != "lock" for entry in path.iterdir())]


def check_run(run: RunDirectory, id_of: IdOf) -> list[Finding]:
    """All findings on one run. A run that is being written is not checked."""
    if run.is_held():
        return [Finding(run.path, "is being written, and was not checked", is_problem=False)]
    summary, log = run.read_summary(), _Log(run)
    has_result = summary is not None and summary["status"] in SETTLED
    parts = sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*.part"))
    problems = [f"{name} was left over by a write that was cut off" for name in parts]
    problems += _summary_problems(run, summary)
    problems += _config_problems(run, summary, id_of)
    problems += _checkpoint_problems(run)
    problems += log.problems()
    notes: list[str] = []
    if log.is_cut_off:  # harmless in a run that will be resumed
        (problems if has_result else notes).append("metrics.jsonl: its last line was cut off")
    if summary is not None and has_result:
        problems += _result_problems(summary, log)
        if not problems and not is_settled(summary):
            notes.append("unmeasured: it ended without its metric")
    return [Finding(run.path, words, words not in notes) for words in (*problems, *notes)]


def _summary_problems(run: RunDirectory, summary: Record | None) -> Iterator[str]:
    if not (run.path / "summary.json").exists():
        yield "there is no summary.json"
    elif (version := run.other_version()) is not None:
        yield f"summary.json is of version {version}, and only {VERSION} can be read"
    elif summary is None:
        yield "summary.json cannot be read"
    else:
        if summary["run_id"] != run.run_id:
            yield f"summary.json is that of {summary['run_id']}"
        if summary["task"] != run.path.parent.name:
            yield f"summary.json is that of a run of {summary['task']}, under {run.path.parent.name}"


def _config_problems(run: RunDirectory, summary: Record | None, id_of: IdOf) -> Iterator[str]:
    config = run.find_config()
    if config is None:
        is_there = (run.path / "config.yaml").exists()
        yield "config.yaml cannot be read" if is_there else "there is no config.yaml"
        return
    try:
        own = id_of(config)
    except (KeyError, TypeError, ValueError) as error:
        yield f"config.yaml is not that of a run ({type(error).__name__}: {error})"
        return
    if own != run.run_id:
        yield f"config.yaml is that of {own}"
    if config["task_name"] != run.path.parent.name:
        yield f"is a run of {config['task_name']}, under {run.path.parent.name}"
    if summary is None:
        return
    names = {"task": config["task_name"], "optim": config["optim_name"], "lr": config["optim"]["lr"]}
    for key, value in {**names, "seed": config["seed"], "data": config.get("data")}.items():
        if summary.get(key) != value:
            yield f"summary.json has {key} {summary.get(key)!r} and config.yaml {value!r}"


class _Log:
    """The lines of metrics.jsonl: intact records, numbers of damaged lines, whether the last line is incomplete."""

    def __init__(self, run: RunDirectory) -> None:
        try:
            *lines, last = (run.path / "metrics.jsonl").read_bytes().split(b"\n")
        except OSError:
            lines, last = [], b""
        self.is_cut_off = bool(last) and _parse(last) is None
        parsed = [_parse(line) for line in ([*lines, last] if last and not self.is_cut_off else lines)]
        self.records = [record for record in parsed if record is not None]
        self.damaged = [number for number, record in enumerate(parsed, start=1) if record is None]

    def problems(self) -> Iterator[str]:
        if self.damaged:
            yield f"metrics.jsonl: damaged lines {', '.join(map(str, self.damaged[:10]))}"
            return  # their epochs would be reported as missing too
        before = 0
        for record in self.records:
            epoch, first = record["epoch"], record["epoch"] - record.get("epochs", 1) + 1
            if epoch <= before:
                yield f"metrics.jsonl: epoch {epoch} comes after epoch {before}"
            elif first > before + 1:
                yield f"metrics.jsonl: epochs {before + 1} to {first - 1} are missing"
            elif first <= before:
                yield f"metrics.jsonl: epochs before {epoch} are repeated"
            else:
                before = epoch
                continue
            return


def _parse(line: bytes) -> Record | None:
    """A line of metrics.jsonl; None if it is damaged."""
    record: Any = next(iter(parse_line(line)), None)
    return record if is_metrics(record) and type(record.get("epochs", 1)) is int else None


def _result_problems(summary: Record, log: _Log) -> Iterator[str]:
    """Where the summary of a settled run contradicts its log."""
    last: Mapping[str, Any] = log.records[-1] if log.records else {"epoch": 0}
    if summary["epochs_done"] != last["epoch"]:
        yield f"summary.json has {summary['epochs_done']} epochs done, and metrics.jsonl {last['epoch']}"
    if summary["status"] != Status.DONE:
        return
    if summary["epochs_done"] != summary.get("epochs"):
        yield f"is done after {summary['epochs_done']} of {summary.get('epochs')} epochs"
    logged, finals = {key: value for key, value in last.items() if "/" in key}, summary["final_metrics"]
    missing = object()
    differing = [key for key in logged.keys() | finals.keys() if logged.get(key, missing) != finals.get(key, missing)]
    if differing:
        differ = ", ".join(sorted(differing))
        yield f"the last line of metrics.jsonl and the final metrics of summary.json differ in {differ}"
    if summary.get("final") != finals.get(summary["metric"]["key"]):
        yield f"summary.json has two final values of {summary['metric']['key']}"


def _checkpoint_problems(run: RunDirectory) -> Iterator[str]:
    try:
        index = json.loads((run.path / "checkpoint.json").read_bytes())
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
            yield f"checkpoint.json names {name}, which is missing"
        elif _sha256(run.path / name) != checksum:
            yield f"{name} does not match its checksum in checkpoint.json"
        elif not run.log_matches(log):
            yield f"metrics.jsonl has changed since {name} was written"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
