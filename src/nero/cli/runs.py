"""Logged runs as data.

    nero runs                                         a table of all runs (the same as `nero runs list`)
    nero runs list --task 'cifar10_*' --status done --where precision=bf16 --sort final
    nero runs compare ID ID [ID ...]                  what differs in their settings, and what came of it
    nero runs export runs.parquet [--curves]          the runs, or all that they logged, as .csv or .parquet
    nero runs check                                   is the store whole? (also: nero runs --check)
    nero runs import OTHER_STORE [--dry-run]          bring in the runs of another machine; never over others
    nero runs sync [--mode online]                    mirror runs in wandb that were logged without it

`python scripts/runs.py` is the same. The store is --store, else NERO_RUNS, else results/runs. Each command has a --help
of its own.

Exit status: 0; 1 where no run fits, the store is not whole, or a run was not imported; 2 for a command that makes no
sense.
"""

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nero.plans.argparse_types import whole
from nero.plans.config import ROOT, run_id
from nero.report.tables import run_list
from nero.report.tables.run_comparison import compare_runs
from nero.runs.checking import check_store, run_directories
from nero.runs.importing import NOT_TAKEN, Import, Outcome
from nero.runs.lock import RunBusy
from nero.runs.logged import STANDINGS, Choice, LoggedRun, UnknownRun, logged_runs, named, setting
from nero.runs.mirroring import Destination, MirrorFailed, mirror
from nero.runs.store import Store

LIST, CHECK = "list", "check"
NOTHING_FOUND, NO_SENSE, STOPPED = 1, 2, 130

Value = TypeVar("Value")


class _Ends(Exception):
    """A line for whoever asked, and the exit status."""

    def __init__(self, words: str, status: int = NOTHING_FOUND) -> None:
        super().__init__(words)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(_with_command(arguments))
    options.store = Store(options.store or os.environ.get("NERO_RUNS") or ROOT / "results" / "runs")
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except _Ends as end:
        print(f"error: {end}", file=sys.stderr)
        return end.status
    except BrokenPipeError:
        # Whoever reads has had enough (`| head`). Nothing more is to be written there, not even at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except (OSError, RunBusy, MirrorFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return NOTHING_FOUND


def _with_command(arguments: Sequence[str]) -> list[str]:
    """Without a command it is `list`; `--check` is `check`."""
    words = list(arguments)
    if words and (not words[0].startswith("-") or words[0] in ("-h", "--help")):
        return words
    if "--check" in words:
        words.remove("--check")
        return [CHECK, *words]
    return [LIST, *words]


# the commands


def _list(options: argparse.Namespace) -> int:
    try:
        columns = run_list.known_columns(options.columns or run_list.SHOWN)
        runs = run_list.in_order(_chosen(options), options.sort or ["run"], options.reverse)
    except run_list.UnknownColumn as error:
        raise _Ends(str(error), NO_SENSE) from None
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(run_list.describe_runs(runs, columns, options.limit, width))
    return 0


def _compare(options: argparse.Namespace) -> int:
    runs = _all(options.store)
    try:
        chosen = [named(runs, word) for word in options.runs]
    except UnknownRun as error:
        raise _Ends(str(error), NO_SENSE) from None
    if twice := [run for run, count in Counter(run.run_id for run in chosen).items() if count > 1]:
        raise _Ends(f"{twice[0]} is named twice", NO_SENSE)
    print(compare_runs(chosen, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return 0


def _export(options: argparse.Namespace) -> int:
    # Here and not above: the other commands do without pandas, which takes longer to import than they take to run.
    from nero.report.exporting import NoExport, check_export, export
    from nero.report.frame import load_curves, load_runs

    try:
        check_export(options.file, options.force)
    except NoExport as error:
        raise _Ends(str(error), NO_SENSE) from None
    wanted = {run.run_id for run in _chosen(options)}
    frame = load_curves(options.store, wanted) if options.curves else load_runs(options.store)
    frame = frame[frame["run_id"].isin(wanted)].reset_index(drop=True)
    export(frame, options.file)
    print(f"{options.file}: {len(frame):,} rows of {len(wanted)} runs")
    return 0


def _check(options: argparse.Namespace) -> int:
    if not options.store.root.is_dir():
        raise _Ends(f"there is no store at {options.store.root}")
    progress = _Progress(len(run_directories(options.store)))
    whole = problems = 0
    for checked in check_store(options.store, run_id):
        progress.wipe()
        for finding in checked.findings:
            print(finding if finding.is_problem else f"{finding} (no problem)")
        whole += checked.is_whole
        problems += sum(finding.is_problem for finding in checked.findings)
        progress.next()
    progress.wipe()
    print(f"{_counted(progress.of, 'run')}: {whole} whole, {_counted(problems, 'problem')}")
    return NOTHING_FOUND if problems else 0


def _import(options: argparse.Namespace) -> int:
    other = Store(options.other)
    if not other.root.is_dir():
        raise _Ends(f"there is no store at {other.root}", NO_SENSE)
    if other.root.resolve() == options.store.root.resolve():
        raise _Ends(f"{other.root} is the store itself", NO_SENSE)
    runs = _fitting(_all(other), options)
    bring = Import(options.store, run_id, not options.no_checkpoints, options.replace_unfinished, options.dry_run)
    progress, counts = _Progress(len(runs)), Counter[Outcome]()
    for imported in bring.runs(runs):
        progress.wipe()
        if imported.outcome is not Outcome.ALREADY_HERE:
            print(imported)
        counts[imported.outcome] += 1
        progress.next()
    progress.wipe()
    would = "would be: " if options.dry_run else ""
    print(would + "; ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]))
    return NOTHING_FOUND if any(counts[outcome] for outcome in NOT_TAKEN) else 0


def _sync(options: argparse.Namespace) -> int:
    runs = _chosen(options)
    destination = Destination(options.project, options.entity, options.mode)
    progress, new = _Progress(len(runs)), 0
    try:
        for mirrored in mirror(runs, destination, options.all, options.again):
            progress.wipe()
            print(mirrored, flush=True)
            new += mirrored.is_new
            progress.next()
    except RuntimeError as error:
        raise _Ends(str(error)) from error
    progress.wipe()
    print(f"{new} of {_counted(len(runs), 'run')} mirrored, {options.mode}, in the project {options.project}")
    if new and options.mode == "offline":
        print(f"to send them: wandb sync {options.store.root}/*/*/wandb/offline-run-*")
    return 0


# which runs


def _all(store: Store) -> list[LoggedRun]:
    runs = logged_runs(store)
    if not runs:
        raise _Ends(
            f"there are no runs in {store.root}" if store.root.is_dir() else f"there is no store at {store.root}"
        )
    if unread := len(store.runs()) - len(runs):
        hint = f"`nero runs check --store {store.root}` says more"
        print(f"{_counted(unread, 'run')} with a summary that cannot be read; {hint}", file=sys.stderr)
    return runs


def _chosen(options: argparse.Namespace) -> list[LoggedRun]:
    return _fitting(_all(options.store), options)


def _fitting(runs: Sequence[LoggedRun], options: argparse.Namespace) -> list[LoggedRun]:
    choice = Choice(options.task, options.optim, options.lr, options.seed, options.status, options.data, options.where)
    found = choice.of(runs)
    if not found:
        for key, _ in choice.settings:
            if not any(key in run.settings for run in runs):
                raise _Ends(f"no run has the setting {key}")
        raise _Ends(f"none of {_counted(len(runs), 'run')} is such a run")
    return found


# words on the command line


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
    command.add_argument("--columns", type=_list_of(str), metavar="NAMES", help=f"of {', '.join(run_list.COLUMNS)}")
    command.add_argument("--sort", type=_list_of(str), metavar="COLUMNS", help="default: run")
    command.add_argument("--reverse", action="store_true", help="the largest first")
    command.add_argument("--limit", type=whole(1), metavar="N", help="show no more than the first N")

    command = add("compare", _compare, "what differs between runs, and what came of it", filters=False)
    command.add_argument("runs", nargs="+", metavar="RUN", help="an id, or enough of it that only one run fits")

    command = add("export", _export, "runs as a file for other programs", filters=True)
    command.add_argument("file", type=Path, metavar="FILE", help="ends with .csv or .parquet")
    command.add_argument("--curves", action="store_true", help="a row per run, epoch and key instead of one per run")
    command.add_argument("--force", action="store_true", help="replace a file that is there")

    add(CHECK, _check, "is the store whole? changes nothing; status 1 where something is wrong", filters=False)

    command = add("import", _import, "bring in runs of another store", filters=True)
    command.add_argument("other", type=Path, metavar="OTHER_STORE")
    command.add_argument("--no-checkpoints", action="store_true", help="without the states to resume from")
    command.add_argument(
        "--replace-unfinished",
        action="store_true",
        help="let settled runs take the place of unfinished ones, which are kept in .replaced",
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be done")

    command = add("sync", _sync, "mirror runs in wandb that were logged without it", filters=True)
    command.add_argument("--mode", choices=["offline", "online"], default="offline", help="default: offline")
    command.add_argument("--project", default="nero", help="default: nero")
    command.add_argument("--entity")
    command.add_argument("--all", action="store_true", help="also runs that have no result yet")
    command.add_argument("--again", action="store_true", help="also runs that have not changed since")
    return parser


def _add_filters(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("which runs", "all of these must fit; of several values, given with commas, any")

    def add(word: str, parse: Callable[[str], Any], metavar: str, help_: str) -> None:
        group.add_argument(word, type=parse, action="extend", default=[], metavar=metavar, help=help_)

    add("--task", _list_of(str), "NAMES", "patterns such as 'cifar10_*'")
    add("--optim", _list_of(str), "NAMES", "patterns")
    add("--lr", _list_of(float), "NUMBERS", "learning rates")
    add("--seed", _list_of(int), "NUMBERS", "")
    add("--status", _list_of(_standing), "NAMES", f"of {', '.join(STANDINGS)}")
    add("--data", _list_of(str), "NAMES", "real or embedded")
    group.add_argument(
        "--where",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of config.yaml, such as optim.beta=0.999; may be given several times",
    )


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse_all(text: str) -> list[Value]:
        try:
            return [parse(word.strip()) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be numbers, not {text!r}") from None

    return parse_all


def _standing(word: str) -> str:
    if word not in STANDINGS:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(STANDINGS)}, not {word!r}")
    return word


def _setting(text: str) -> tuple[str, Any]:
    try:
        return setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class _Progress:
    """How far long work is, in a line that is rewritten; on a terminal alone."""

    def __init__(self, of: int) -> None:
        self.of, self.done, self.shown = of, 0, ""
        self.is_seen = sys.stderr.isatty()

    def next(self) -> None:
        self.done += 1
        if self.is_seen:
            self.shown = f"{self.done} of {self.of} runs"
            print(f"\r{self.shown}", end="", file=sys.stderr, flush=True)

    def wipe(self) -> None:
        if self.shown:
            print(f"\r{' ' * len(self.shown)}\r", end="", file=sys.stderr, flush=True)
            self.shown = ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
