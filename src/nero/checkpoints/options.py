"""Options of the commands on a trained run, and the run that they name. Without torch, whose import takes seconds."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nero.data.sources import default_root
from nero.plans.argparse_types import Parser
from nero.plans.stores import local_runs
from nero.runs.logged import UnknownRun, matching_id
from nero.runs.store import RunDirectory, Store
from nero.runs.targets import NOT_OWN

RUN_HELP = "a run's directory, its id in the store, or the hash at the end of its id"


class Unusable(ValueError):
    """The request cannot be met with this run on this machine; the message is one line."""


@dataclass(frozen=True)
class Retraining:
    """Where and how to train runs that have no checkpoint.

    settings: overrides such as machine=gpu, which may not change what a run is
    """

    store: Path
    settings: Sequence[str] = ()


def find_run(name: str, store: Store) -> RunDirectory:
    """Find a run by its directory, or by its id or a part of it, such as the hash at its end.

    Ids are looked up in the store, then in the local one.
    """
    if (Path(name) / "config.yaml").is_file():
        return RunDirectory(Path(name).resolve())
    unknown = None
    for root in (store.root, local_runs()):
        runs = {path.parent.name: path.parent for path in root.glob("*/*/config.yaml")}
        try:
            return RunDirectory(runs[matching_id(runs, name)])
        except UnknownRun as error:
            unknown = unknown or error
    raise Unusable(f"{unknown} (in {store.root})")


def run_parser(command: str, description: str | None) -> Parser:
    """A parser with the options that all commands on a trained run share."""
    parser = Parser(prog=f"nero {command}", description=description)
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_store(parser)
    add_data_and_device(parser)
    add_retrain(parser)
    add_trust(parser)
    return parser


def parse(parser: Parser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of a command on a trained run; `retraining` is among them."""
    options, others = parser.parse_known_args(arguments)
    options.retraining = retraining_of(parser, options.retrain, others)
    return options


def retraining_of(parser: Parser, store: str | None, others: Sequence[str]) -> Retraining | None:
    """From the value of --retrain and the arguments that are no options: settings, all others are errors."""
    settings = [word for word in others if "=" in word and not word.startswith("-")]
    if unknown := [word for word in others if word not in settings]:
        parser.error(f"unrecognized arguments: {unknown[0]}")
    if store is None:
        if settings:
            parser.error(f"{settings[0]}: settings are those of --retrain")
        return None
    if "=" in store and not Path(store).exists():  # argparse takes the first setting for the store
        store, settings = "", [store, *settings]
    return Retraining(Path(store) if store else local_runs(), settings)


def add_store(parser: argparse.ArgumentParser) -> None:
    store = os.environ.get("NERO_RUNS") or "results/runs"
    parser.add_argument("--store", default=store, metavar="DIR", help="where ids are looked up (default: %(default)s)")


def add_retrain(parser: argparse.ArgumentParser) -> None:
    text = "train a run without a checkpoint again, into STORE (default: local/runs), with settings such as machine=gpu"
    parser.add_argument("--retrain", nargs="?", const="", metavar="STORE", help=text)


def add_data_and_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    devices = ["auto", "cpu", "cuda"]
    parser.add_argument("--device", choices=devices, default="auto", help="default: a GPU if there is one")


def add_trust(parser: argparse.ArgumentParser) -> None:
    text = "a package of your own that the run's config.yaml may name, besides this project and torch; may be repeated"
    parser.add_argument("--trust", type=_own_package, action="append", default=[], metavar="PACKAGE", help=text)


def _own_package(name: str) -> str:
    if not name.isidentifier() or name in NOT_OWN:
        raise argparse.ArgumentTypeError(f"must be a package of your own, such as my_package, not {name!r}")
    return name
