"""List, compare, export, check, import and mirror logged runs.

    nero runs                                         a table of all runs (the same as `nero runs list`)
    nero runs list --task 'cifar10_*' --status done --where precision=bf16 --sort final
    nero runs compare ID ID [ID ...]                  differences between their settings and results
    nero runs export runs.parquet [--curves]          the runs, or all logged metrics, as .csv or .parquet
    nero runs check                                   verify every file of the store (also: nero runs --check)
    nero runs import OTHER_STORE [--dry-run]          copy runs from another store; never overwrites other runs
    nero runs sync [--mode online]                    mirror runs to wandb that were logged without it

`python scripts/runs.py` is the same. The store is --store, else NERO_RUNS, else results/runs. Each command has a --help
of its own.

Exit status: 0; 1 if no run matches, the store has problems, or a run was not imported; 2 for invalid arguments.
"""

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from nero.plans.argparse_types import positive_int
from nero.plans.config import ROOT, run_id
from nero.report.tables import run_list
from nero.runs.checking import check_store, run_directories
from nero.runs.importing import NOT_TAKEN, Import, ImportOutcome
from nero.runs.lock import RunBusy
from nero.runs.logged import STANDINGS, Choice, LoggedRun, UnknownRun, logged_runs, named, setting
from nero.runs.store import Store
from nero.runs.tracking import Destination, MirrorFailed, mirror

LIST, CHECK = "list", "check"
FAILED, USAGE, INTERRUPTED = 1, 2, 130  # exit statuses

Value = TypeVar("Value")


class _Error(Exception):
    """A message of one line, and the exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(_with_command(sys.argv[1:] if arguments is None else arguments))
    options.store = Store(options.store or os.environ.get("NERO_RUNS") or ROOT / "results" / "runs")
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except _Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): write nothing more, not even when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, RunBusy, MirrorFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def _with_command(arguments: Sequence[str]) -> list[str]:
    """Without a command: `list`, or `check` with --check."""
    words = list(arguments)
    if words and (not words[0].startswith("-") or words[0] in ("-h", "--help")):
        return words
    if "--check" in words:
        words.remove("--check")
        return [CHECK, *words]
    return [LIST, *words]


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# commands


def _list(options: argparse.Namespace) -> int:
    try:
        columns = run_list.known_columns(options.columns or run_list.SHOWN)
        runs = run_list.in_order(_chosen(options), options.sort or ["run"], options.reverse)
    except run_list.UnknownColumn as error:
        raise _Error(str(error), USAGE) from None
    print(run_list.describe_runs(runs, columns, options.limit, _terminal_width()))
    return 0


def _compare(options: argparse.Namespace) -> int:
    runs = _all(options.store)
    try:
        chosen = [named(runs, word) for word in options.runs]
    except UnknownRun as error:
        raise _Error(str(error), USAGE) from None
    if twice := [run for run, count in Counter(run.run_id for run in chosen).items() if count > 1]:
        raise _Error(f"{twice[0]} is named twice", USAGE)
    print(run_list.compare_runs(chosen, _terminal_width()))
    return 0


def _export(options: argparse.Namespace) -> int:
    # Imported here: the other commands need no pandas, whose import takes longer than they do.
    from nero.report.frame import NoExport, check_export, export, load_curves, load_runs

    try:
        check_export(options.file, options.force)
    except NoExport as error:
        raise _Error(str(error), USAGE) from None
    wanted = {run.run_id for run in _chosen(options)}
    frame = load_curves(options.store, wanted) if options.curves else load_runs(options.store)
    frame = frame[frame["run_id"].isin(wanted)].reset_index(drop=True)
    export(frame, options.file)
    print(f"{options.file}: {len(frame):,} rows of {len(wanted)} runs")
    return 0


def _check(options: argparse.Namespace) -> int:
    if not options.store.root.is_dir():
        raise _Error(f"there is no store at {options.store.root}")
    count = len(run_directories(options.store))
    intact = problems = 0
    for checked in _progress(check_store(options.store, run_id), count):
        for finding in checked.findings:
            tqdm.write(str(finding) if finding.is_problem else f"{finding} (no problem)")
        intact += checked.is_whole
        problems += sum(finding.is_problem for finding in checked.findings)
    print(f"{_counted(count, 'run')}: {intact} whole, {_counted(problems, 'problem')}")
    return FAILED if problems else 0


def _import(options: argparse.Namespace) -> int:
    other = Store(options.other)
    if not other.root.is_dir():
        raise _Error(f"there is no store at {other.root}", USAGE)
    if other.root.resolve() == options.store.root.resolve():
        raise _Error(f"{other.root} is the store itself", USAGE)
    runs = _matching(_all(other), options)
    bring = Import(options.store, run_id, not options.no_checkpoints, options.replace_unfinished, options.dry_run)
    counts = Counter[ImportOutcome]()
    for imported in _progress(bring.runs(runs), len(runs)):
        if imported.outcome is not ImportOutcome.ALREADY_HERE:
            tqdm.write(str(imported))
        counts[imported.outcome] += 1
    would = "would be: " if options.dry_run else ""
    print(would + "; ".join(f"{counts[outcome]} {outcome}" for outcome in ImportOutcome if counts[outcome]))
    return FAILED if any(counts[outcome] for outcome in NOT_TAKEN) else 0


def _sync(options: argparse.Namespace) -> int:
    runs = _chosen(options)
    destination = Destination(options.project, options.entity, options.mode)
    new = 0
    try:
        for mirrored in _progress(mirror(runs, destination, options.all, options.again), len(runs)):
            tqdm.write(str(mirrored))
            new += mirrored.is_new
    except RuntimeError as error:
        raise _Error(str(error)) from error
    print(f"{new} of {_counted(len(runs), 'run')} mirrored, {options.mode}, in the project {options.project}")
    if new and options.mode == "offline":
        print(f"to send them: wandb sync {options.store.root}/*/*/wandb/offline-run-*")
    return 0


# selection of runs


def _all(store: Store) -> list[LoggedRun]:
    runs = logged_runs(store)
    if not runs:
        raise _Error(
            f"there are no runs in {store.root}" if store.root.is_dir() else f"there is no store at {store.root}"
        )
    if unread := len(store.runs()) - len(runs):
        hint = f"see `nero runs check --store {store.root}`"
        print(f"{_counted(unread, 'run')} with an unreadable summary; {hint}", file=sys.stderr)
    return runs


def _chosen(options: argparse.Namespace) -> list[LoggedRun]:
    return _matching(_all(options.store), options)


def _matching(runs: Sequence[LoggedRun], options: argparse.Namespace) -> list[LoggedRun]:
    choice = Choice(options.task, options.optim, options.lr, options.seed, options.status, options.data, options.where)
    found = choice.of(runs)
    if not found:
        for key, _ in choice.settings:
            if not any(key in run.settings for run in runs):
                raise _Error(f"no run has the setting {key}")
        raise _Error(f"none of {_counted(len(runs), 'run')} matches")
    return found


# the command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nero runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], help_: str, filters: bool) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_, description=help_)
        command.set_defaults(run=run)
        command.add_argument("--store", metavar="DIR", help="default: NERO_RUNS, else results/runs")
        if filters:
            _add_filters(command)
        return command

    command = add(LIST, _list, "a table of runs", filters=True)
    command.add_argument("--columns", type=_list_of(str), metavar="NAMES", help=f"from {', '.join(run_list.COLUMNS)}")
    command.add_argument("--sort", type=_list_of(str), metavar="COLUMNS", help="default: run")
    command.add_argument("--reverse", action="store_true", help="largest first")
    command.add_argument("--limit", type=positive_int, metavar="N", help="show no more than the first N")

    command = add("compare", _compare, "differences between the settings and results of runs", filters=False)
    command.add_argument("runs", nargs="+", metavar="RUN", help="an id, or a part of it that only one run has")

    command = add("export", _export, "write runs to a file for other programs", filters=True)
    command.add_argument("file", type=Path, metavar="FILE", help="a .csv or .parquet file")
    command.add_argument("--curves", action="store_true", help="a row per run, epoch and key instead of one per run")
    command.add_argument("--force", action="store_true", help="overwrite an existing file")

    add(
        CHECK,
        _check,
        "verify every file of the store; changes nothing; exit status 1 if there are problems",
        filters=False,
    )

    command = add("import", _import, "copy runs from another store", filters=True)
    command.add_argument("other", type=Path, metavar="OTHER_STORE")
    command.add_argument("--no-checkpoints", action="store_true", help="do not copy checkpoints")
    command.add_argument(
        "--replace-unfinished",
        action="store_true",
        help="replace unfinished runs by finished ones; the former move to .replaced",
    )
    command.add_argument("--dry-run", action="store_true", help="only print what would be done")

    command = add("sync", _sync, "mirror runs to wandb that were logged without it", filters=True)
    command.add_argument("--mode", choices=["offline", "online"], default="offline", help="default: offline")
    command.add_argument("--project", default="nero", help="default: nero")
    command.add_argument("--entity")
    command.add_argument("--all", action="store_true", help="also runs without a result")
    command.add_argument("--again", action="store_true", help="also runs that have not changed since the last time")
    return parser


def _add_filters(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "selection", "a run must match all of these, and any of several comma-separated values"
    )

    def add(word: str, parse: Callable[[str], Any], metavar: str, help_: str) -> None:
        group.add_argument(word, type=parse, action="extend", default=[], metavar=metavar, help=help_)

    add("--task", _list_of(str), "NAMES", "patterns such as 'cifar10_*'")
    add("--optim", _list_of(str), "NAMES", "patterns")
    add("--lr", _list_of(float), "NUMBERS", "learning rates")
    add("--seed", _list_of(int), "NUMBERS", "")
    add("--status", _list_of(_state), "NAMES", f"from {', '.join(STANDINGS)}")
    add("--data", _list_of(str), "NAMES", "real or embedded")
    group.add_argument(
        "--where",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of config.yaml, such as optim.beta=0.999; may be repeated",
    )


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse_all(text: str) -> list[Value]:
        try:
            return [parse(word.strip()) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be numbers, not {text!r}") from None

    return parse_all


def _state(word: str) -> str:
    if word not in STANDINGS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(STANDINGS)}, not {word!r}")
    return word


def _setting(text: str) -> tuple[str, Any]:
    try:
        return setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _progress(items: Iterable[Value], total: int) -> Iterable[Value]:
    """Show a progress bar, on a terminal only."""
    return tqdm(items, total=total, unit=" runs", leave=False, disable=None)
