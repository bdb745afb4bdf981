"""List, compare, export, check, import and mirror logged runs.

    nero runs                                         a table of all runs (the same as `nero runs list`)
    nero runs list --task 'cifar10_*' --status done --where precision=bf16 --sort final
    nero runs compare ID ID [ID ...]                  differences between their settings and results
    nero runs export runs.parquet [--curves]          the runs, or all logged metrics, as .csv or .parquet
    nero runs check                                   verify every file of the store (also: nero runs --check)
    nero runs import OTHER_STORE [--dry-run]          copy runs from another store; never overwrites other runs
    nero runs sync [--mode online]                    mirror runs to wandb that were logged without it

The store is --store, else NERO_RUNS, else results/runs. ID is a run's id, or a part of it that no other run has, such
as the hash at its end. Each command has a --help of its own.

Runs with a damaged file are left out of what reads it, and named. Exit status: 0; 1 if there are such runs, no run
matches, the store has problems, or a run was not imported; 2 for invalid arguments.
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

from nero.plans.argparse_types import Parser, folder, positive_int
from nero.plans.config import run_id
from nero.plans.stores import COMMITTED, named_store
from nero.report.tables import run_list
from nero.runs.checking import check_store, run_directories
from nero.runs.importing import NOT_TAKEN, Import, ImportOutcome
from nero.runs.lock import RunBusy
from nero.runs.logged import STATUSES, LoggedRun, UnknownRun, logged_runs, name_left_out, named, select, setting
from nero.runs.reading import CONFIG, METRICS, PROVENANCE
from nero.runs.store import ALL, Store
from nero.runs.tracking import mirror
from nero.runs.validation import Damaged, printable

Value = TypeVar("Value")


class CommandFailed(Exception):
    """A message of one line: the command could not be carried out. Exit status 1."""


class InvalidArguments(Exception):
    """A message of one line: the command cannot be carried out as given. Exit status 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words = ["check" if "--check" in words else "list", *(word for word in words if word != "--check")]
    options = _parser().parse_args(words)
    options.store = Store(named_store(options.store) or COMMITTED)
    options.stores = [options.store]  # whose runs are read
    try:
        status = int(options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): write nothing more, not even when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (OSError, RunBusy, CommandFailed) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        status = 1
    except (InvalidArguments, UnknownRun, run_list.UnknownColumn) as error:
        print(f"error: {printable(error)}", file=sys.stderr)
        status = 2
    return max(status, name_left_out(*options.stores))


def _list(options: argparse.Namespace) -> int:
    columns = run_list.known_columns(options.columns or run_list.SHOWN)
    runs = run_list.in_order(_chosen(options), options.sort or ["run"], options.reverse)
    print(run_list.describe_runs(runs, columns, options.limit, _terminal_width()))
    return 0


def _compare(options: argparse.Namespace) -> int:
    runs = _all(options.store)
    chosen = [named(runs, word) for word in options.runs]
    for found in chosen:
        try:
            found.directory.check(CONFIG, PROVENANCE)
        except Damaged as damaged:
            raise CommandFailed(f"{found.directory.path}: {damaged}") from None
    run, count = Counter(run.run_id for run in chosen).most_common(1)[0]
    if count > 1:
        raise InvalidArguments(f"{run} is named twice")
    print(run_list.compare_runs(chosen, _terminal_width()))
    return 0


def _export(options: argparse.Namespace) -> int:
    # Imported here: the other commands need no pandas, whose import takes longer than they do.
    from nero.report.frame import check_export, export, load_curves, load_runs, with_settings

    try:
        check_export(options.file, options.force)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None
    wanted = {run.run_id for run in _chosen(options, None, METRICS if options.curves else CONFIG)}
    if options.curves:
        frame = load_curves(options.store, wanted)
    else:
        frame = load_runs(options.store)
        frame = with_settings(frame[frame["run_id"].isin(wanted)], options.store)
    export(frame, options.file)
    print(f"{options.file}: {len(frame):,} rows of {len(wanted)} runs")
    return 0


def _check(options: argparse.Namespace) -> int:
    if not options.store.root.is_dir():
        raise CommandFailed(f"there is no store at {options.store.root}")
    count = len(run_directories(options.store))
    damaged = problems = 0
    for findings in _progress(check_store(options.store, run_id), count):
        for finding in findings:
            tqdm.write(str(finding) if finding.is_problem else f"{finding} (no problem)")
        found = sum(finding.is_problem for finding in findings)
        damaged, problems = damaged + bool(found), problems + found
    print(f"{_counted(count, 'run')}: {count - damaged} whole, {_counted(problems, 'problem')}")
    return int(problems > 0)


def _import(options: argparse.Namespace) -> int:
    other = Store(options.other)
    if not other.root.is_dir():
        raise InvalidArguments(f"there is no store at {other.root}")
    if other.root.resolve() == options.store.root.resolve():
        raise InvalidArguments(f"{other.root} is the store itself")
    options.stores = [other]
    runs = _chosen(options, other)
    importer = Import(options.store, run_id, not options.no_checkpoints, options.replace_unfinished, options.dry_run)
    counts = Counter[ImportOutcome]()
    for run, outcome, why in _progress(importer.runs(runs), len(runs)):
        if outcome is not ImportOutcome.ALREADY_HERE:
            tqdm.write(printable(f"{run.run_id}: {outcome}{f': {why}' if why else ''}"))
        counts[outcome] += 1
    would = "would be: " if options.dry_run else ""
    print(would + "; ".join(f"{counts[outcome]} {outcome}" for outcome in ImportOutcome if counts[outcome]))
    return int(any(counts[outcome] for outcome in NOT_TAKEN))


def _sync(options: argparse.Namespace) -> int:
    runs, new = _chosen(options, None, *ALL), 0
    mirrored = mirror(runs, options.project, options.entity, options.mode, options.all, options.again)
    try:
        for line, is_new in _progress(mirrored, len(runs)):
            tqdm.write(line)
            new += is_new
    except RuntimeError as error:  # of wandb
        raise CommandFailed(str(error)) from error
    print(f"{new} of {_counted(len(runs), 'run')} mirrored, {options.mode}, in the project {options.project}")
    if new and options.mode == "offline":
        print(f"to send them: wandb sync {options.store.root}/*/*/wandb/offline-run-*")
    return 0


def _all(store: Store, *files: str) -> list[LoggedRun]:
    runs = logged_runs(store, *files)
    if not runs:
        what = "there are no runs in" if store.root.is_dir() else "there is no store at"
        raise CommandFailed(f"{what} {store.root}")
    return runs


def _chosen(options: argparse.Namespace, store: Store | None = None, *files: str) -> list[LoggedRun]:
    """The runs of a store, by default of --store, that the options select; all with these files undamaged."""
    runs = _all(store or options.store, *files, *([CONFIG] if options.where else []))
    found = select(runs, options.where, **{name: getattr(options, name) for name in FILTERS})
    if not found:
        unknown = [key for key, _ in options.where if not any(key in run.settings for run in runs)]
        none = f"none of {_counted(len(runs), 'run')} matches"
        raise CommandFailed(f"no run has the setting {unknown[0]}" if unknown else none)
    return found


def _parser() -> Parser:
    parser = Parser(prog="nero runs", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], help_: str, filters: bool) -> Callable[..., Any]:
        command = commands.add_parser(name, help=help_, description=help_)
        command.set_defaults(run=run)
        command.add_argument("--store", type=folder, metavar="DIR", help="default: NERO_RUNS, else results/runs")
        if filters:
            text = "a run must match all of these, and any of several comma-separated values"
            group = command.add_argument_group("selection", text)
            for key, (parse, metavar, text) in FILTERS.items():
                group.add_argument(f"--{key}", type=parse, action="extend", default=[], metavar=metavar, help=text)
            text = "a setting of config.yaml, such as optim.beta=0.999; may be repeated"
            group.add_argument("--where", type=_setting, action="append", default=[], metavar="KEY=VALUE", help=text)
        return command.add_argument

    option = add("list", _list, "a table of runs", filters=True)
    option("--columns", type=_list_of(str), metavar="NAMES", help=f"from {', '.join(run_list.COLUMNS)}")
    option("--sort", type=_list_of(str), metavar="COLUMNS", help="default: run")
    option("--reverse", action="store_true", help="largest first")
    option("--limit", type=positive_int, metavar="N", help="show no more than the first N")

    option = add("compare", _compare, "differences between the settings and results of runs", filters=False)
    option("runs", nargs="+", metavar="RUN", help="an id, or a part of it that only one run has, such as its hash")

    option = add("export", _export, "write runs to a file for other programs", filters=True)
    option("file", type=Path, metavar="FILE", help="a .csv or .parquet file")
    option("--curves", action="store_true", help="a row per run, epoch and key instead of one per run")
    option("--force", action="store_true", help="overwrite an existing file")

    text = "verify every file of the store; changes nothing; exit status 1 if there are problems"
    add("check", _check, text, filters=False)

    option = add("import", _import, "copy runs from another store", filters=True)
    option("other", type=Path, metavar="OTHER_STORE")
    option("--no-checkpoints", action="store_true", help="do not copy checkpoints")
    text = "replace unfinished runs by finished ones; the former move to .replaced"
    option("--replace-unfinished", action="store_true", help=text)
    option("--dry-run", action="store_true", help="only print what would be done")

    option = add("sync", _sync, "mirror runs to wandb that were logged without it", filters=True)
    option("--mode", choices=["offline", "online"], default="offline", help="default: offline")
    option("--project", default="nero", help="default: nero")
    option("--entity")
    option("--all", action="store_true", help="also runs without a result")
    option("--again", action="store_true", help="also runs that have not changed since the last time")
    return parser


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse_all(text: str) -> list[Value]:
        try:
            return [parse(word.strip()) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be numbers, not {text!r}") from None

    return parse_all


def _status(word: str) -> str:
    if word not in STATUSES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(STATUSES)}, not {word!r}")
    return word


def _setting(text: str) -> tuple[str, Any]:
    try:
        return setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# Options that select runs by a key of their summary: how to parse its values, and their description.
FILTERS: dict[str, tuple[Callable[[str], list[Any]], str, str]] = {
    "task": (_list_of(str), "NAMES", "patterns such as 'cifar10_*'"),
    "optim": (_list_of(str), "NAMES", "patterns"),
    "lr": (_list_of(float), "NUMBERS", "learning rates"),
    "seed": (_list_of(int), "NUMBERS", ""),
    "status": (_list_of(_status), "NAMES", f"from {', '.join(STATUSES)}"),
    "data": (_list_of(str), "NAMES", "real or embedded"),
}


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _progress(items: Iterable[Value], total: int) -> Iterable[Value]:
    """Show a progress bar, on a terminal only."""
    return tqdm(items, total=total, unit=" runs", leave=False, disable=None)


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
