"""Verify a store: every file of every run is intact and consistent with the others. Nothing is changed."""

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nero.runs.records import MOST_BYTES, parse_line
from nero.runs.store import SETTLED, Record, RunDirectory, Status, Store, is_settled
from nero.runs.targets import remark
from nero.runs.validation import Damaged, config_problem, line_problem, printable

MIRRORS = frozenset({"wandb", "wandb-synced.json"})  # in a run's directory, and no part of the run
IdOf = Callable[[Mapping[str, Any]], str]  # computes a run id from a config


@dataclass(frozen=True)
class Finding:
    """A remark on a run; `is_problem` if the run is damaged."""

    path: Path
    words: str
    is_problem: bool = True

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.words}"


def check_store(store: Store, id_of: IdOf) -> Iterator[list[Finding]]:
    """The findings on each run directory, sorted by path."""
    directories = run_directories(store)
    paths: dict[str, list[Path]] = {}
    for run in directories:
        paths.setdefault(run.run_id, []).append(run.path)
    for run in directories:
        others = (path for path in paths[run.run_id] if path != run.path)
        twice = [Finding(run.path, f"the same id is also at {printable(path)}") for path in others]
        yield [*check_run(run, id_of), *twice]


def run_directories(store: Store) -> list[RunDirectory]:
    """Every run directory, also those without a summary, unlike `Store.runs`. A lock alone does not make a run.

    Names that begin with a dot belong to imports.
    """
    folders = [path for path in sorted(store.root.glob("[!.]*/[!.]*")) if path.is_dir()]
    return [RunDirectory(path) for path in folders if _has_files(path)]


def _has_files(folder: Path) -> bool:
    try:
        return any(entry.name != "lock" for entry in folder.iterdir())
    except OSError:  # it may not be looked into
        return True


def check_run(run: RunDirectory, id_of: IdOf) -> list[Finding]:
    """All findings on one run. A run that is being written is not checked."""
    if run.is_held():
        return [Finding(run.path, "is being written, and was not checked", is_problem=False)]
    if run.path.is_symlink():
        return [Finding(run.path, "it is a link and not a folder")]
    summary = run.read_summary()
    has_result = summary is not None and summary["status"] in SETTLED
    config = run.find_config()
    lines, is_cut_off = _read_log(run)
    problems = [*_file_problems(run), *_raised(run.load_summary), *_raised(run.read_config)]
    problems += _config_problems(run, summary, config, id_of) if config is not None else []
    problems += [problem for _, _, problem in run.checkpoints() if problem]
    problems += _log_problems(lines)
    problems += _raised(run.check_provenance)
    # Not a problem: it may be the run of somebody's own optimiser.
    notes = [words] if (words := remark(config or {})) else []
    if is_cut_off:  # harmless in a run that will be resumed
        (problems if has_result else notes).append("metrics.jsonl: its last line was cut off")
    if summary is not None and has_result:
        problems += _result_problems(summary, next(filter(None, reversed(lines)), {"epoch": 0}))
        if not problems and not is_settled(summary):
            notes.append("unmeasured: it ended without its metric")
    return [Finding(run.path, words, words not in notes) for words in (*problems, *notes)]


def _raised(read: Callable[[], object]) -> list[str]:
    """What is damaged, as `read` says."""
    try:
        read()
    except Damaged as damaged:
        return [str(damaged)]
    return []


def _file_problems(run: RunDirectory) -> Iterator[str]:
    """Partial files, and what is no file: another program may wait for it, or write through it."""
    for path in sorted(run.path.rglob("*")):
        name = path.relative_to(run.path)
        found = path.lstat().st_mode
        if name.parts[0] in MIRRORS or (stat.S_ISDIR(found) and not is_place_of_file(name)):
            continue
        if not stat.S_ISREG(found):
            yield f"{printable(name)} is not a regular file"
        elif path.suffix == ".part":
            yield f"{printable(name)} was left over by a write that was cut off"


def is_place_of_file(name: Path) -> bool:
    """Whether a run has a file of this name, and no folder."""
    return name.parts[0] in MOST_BYTES or len(name.parts) > 1 or name.name.startswith("checkpoint")


def _config_problems(run: RunDirectory, summary: Record | None, config: Record, id_of: IdOf) -> Iterator[str]:
    try:
        own = id_of(config)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        yield printable(f"config.yaml is not that of a run ({type(error).__name__}: {error})")
        return
    if own != run.run_id:
        yield printable(f"config.yaml is that of {own}")
    if config["task_name"] != run.path.parent.name:
        yield printable(f"is a run of {config['task_name']}, under {run.path.parent.name}")
    if problem := config_problem(config, summary):
        yield problem


def _read_log(run: RunDirectory) -> tuple[list[Record | None], bool]:
    """The lines of metrics.jsonl, None for damaged ones, and whether the last one was cut off."""
    try:
        *lines, last = map(_parse, (text := run.log()).split(b"\n"))
    except OSError:
        return [], False
    return [*lines, last] if last else lines, not last and text[-1:] not in (b"", b"\n")


def _parse(line: bytes) -> Record | None:
    record = parse_line(line)
    return None if line_problem(record) else record


def _log_problems(lines: Sequence[Record | None]) -> Iterator[str]:
    if damaged := [str(number) for number, record in enumerate(lines, start=1) if record is None]:
        yield f"metrics.jsonl: damaged lines {', '.join(damaged[:10])}"
        return  # their epochs would be reported as missing too
    before = 0
    for record in filter(None, lines):
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


def _result_problems(summary: Record, last: Record) -> Iterator[str]:
    """Where the summary of a settled run contradicts the last line of its log."""
    if summary["epochs_done"] != last["epoch"]:
        yield f"summary.json has {summary['epochs_done']} epochs done, and metrics.jsonl {last['epoch']}"
    if summary["status"] != Status.DONE:
        return
    if summary["epochs_done"] != summary.get("epochs"):
        yield f"is done after {summary['epochs_done']} of {summary.get('epochs')} epochs"
    logged, finals = {key: value for key, value in last.items() if "/" in key}, summary["final_metrics"]
    keys = sorted(logged.keys() | finals.keys())
    if differing := [key for key in keys if (key in logged, logged.get(key)) != (key in finals, finals.get(key))]:
        differ = ", ".join(differing)
        yield f"the last line of metrics.jsonl and the final metrics of summary.json differ in {differ}"
    if summary.get("final") != finals.get(summary["metric"]["key"]):
        yield f"summary.json has two final values of {summary['metric']['key']}"
