"""Measure the paper's theory (Sections 3 and 8) on runs, and make tables and figures of the measurements.

    nero theory measure --experiment theory             balance, activations and robustness of its best runs
    nero theory measure RUN ...                         the same for any runs
    nero theory along --experiment theory --task mnist_mlp100
                                                        steps, trust and angles during training of its runs
    nero theory along task=mnist_mlp100 task.depth=5 optim=lamb optim.lr=0.01
                                                        the same for any training
    nero theory report                                  results/tables/theory_*, results/figures/theory_*
    nero theory report --check                          compare these with the records; writes nothing

RUN is a run's directory, its id or the hash at its end. Records are stored in results/theory. A finished run is
measured once (--again repeats it); a run measured before it finished is measured again. Measuring needs the checkpoint
of a run: --retrain [STORE] trains it again if there is none.
Exit status: 0; 1 if something could not be measured, or differs under --check; 2 for invalid arguments.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from nero.checkpoints.options import (
    RUN_HELP,
    Unusable,
    add_data_and_device,
    add_retrain,
    add_store,
    add_trust,
    find_run,
    retraining_of,
)
from nero.data.sources import MissingData
from nero.plans.argparse_types import Parser, int_at_least, positive_int
from nero.plans.config import ROOT, ConfigError, compose
from nero.plans.plan import load_experiment
from nero.report.cells import EmbeddedDataError
from nero.runs.store import Store
from nero.runs.validation import printable
from nero.theory import records


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, overrides = parser.parse_known_args(arguments)
    if options.command == "measure":  # argparse takes overrides for runs
        overrides += [word for word in options.runs if "=" in word and not Path(word).exists()]
        options.runs = [word for word in options.runs if word not in overrides]
        if not options.runs and not options.experiment:
            parser.error("measure: name runs, or an --experiment")
    allowed = options.command != "report"
    if unknown := [word for word in overrides if "=" not in word or word.startswith("-") or not allowed]:
        parser.error(f"unrecognized arguments: {unknown[0]}")
    if options.command == "measure":
        options.retraining = retraining_of(parser, options.retrain, overrides)
    if options.command == "along" and not overrides and not options.experiment:
        parser.error("along: give the settings of a training, such as task=mnist_mlp100, or an --experiment")
    try:
        return {"measure": _measure, "along": _along, "report": _report}[options.command](options, overrides)
    except (ConfigError, MissingData, EmbeddedDataError, records.UnreadableRecord) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _measure(options: argparse.Namespace, _: list[str]) -> int:
    from nero.checkpoints.measure import PARTS, leading_runs, measure_run

    parts = [part for part in PARTS if part not in options.without]
    where = options.store, options.data_root, options.device

    def measure(name: str) -> records.Record:
        return measure_run(name, *where, _log, parts, options.retraining, options.trust)

    def directory(name: str) -> str:
        with suppress(Unusable):  # measuring it reports the problem
            return str(find_run(name, Store(options.store)).path)
        return name

    work = {name: partial(measure, name) for name in map(directory, options.runs)}
    if options.experiment:
        runs = leading_runs(load_experiment(options.experiment), Store(options.store))
        work |= {run.run_id: partial(measure, run.run_id) for run in runs}
    return _measure_each(records.NETWORKS, work, options)


def _along(options: argparse.Namespace, overrides: list[str]) -> int:
    from nero.checkpoints.measure import leading_configs, measure_along

    if options.experiment:
        configs = leading_configs(load_experiment(options.experiment), Store(options.store), options.task, overrides)
    else:
        configs = [compose(["precision=fp32", *overrides])]
    work = {c.run_id: partial(measure_along, c, options.epochs, options.probes, _log) for c in configs}
    return _measure_each(records.STEPS, work, options)


def _measure_each(kind: str, work: Mapping[str, Callable[[], records.Record]], options: argparse.Namespace) -> int:
    """Measure in turn. Each record is written at once, and a failure does not stop the rest."""
    done = {record["run_id"] for record in records.read(kind, options.records) if records.is_whole(kind, record)}
    failed = 0
    for number, (name, measure) in enumerate(work.items(), 1):
        if Path(name).name in done and not options.again:
            continue
        start = time.monotonic()
        try:
            path = records.write(kind, measure(), options.records)
            print(f"[{number}/{len(work)}] {path}: {time.monotonic() - start:.0f} s", flush=True)
        except Unusable as error:
            failed += 1
            print(printable(f"not measured: {error}"), file=sys.stderr, flush=True)
    print(f"{len(work)} runs requested; {failed} could not be measured; the others have records", flush=True)
    return 1 if failed else 0


def _report(options: argparse.Namespace, overrides: list[str]) -> int:
    from nero.report import files
    from nero.report.theory.report import theory_files, theory_texts

    if options.check:
        # Not the figures: they differ with matplotlib's version.
        texts = theory_texts(options.records)
        found = files.differences(texts, options.out)
        print("\n".join(found) or f"{len(texts)} files agree with the records")
        return 1 if found else 0
    made = theory_files(options.records)
    files.write(made, options.out)
    print("\n".join(str(options.out / path) for path in made))
    return 0


def _log(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser(prog="nero theory", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    stored = Parser(add_help=False)
    folder = ROOT / "results" / "theory"
    stored.add_argument("--records", type=Path, default=folder, metavar="DIR", help="default: results/theory")
    runs = Parser(add_help=False, parents=[stored])
    add_store(runs)
    runs.add_argument("--experiment", metavar="NAME", help="runs of experiments/NAME.yaml at their best learning rates")
    runs.add_argument("--again", action="store_true", help="also measure what already has a record")
    measure = commands.add_parser("measure", parents=[runs], help="measure trained networks")
    measure.add_argument("runs", nargs="*", metavar="RUN", help=RUN_HELP)
    measure.add_argument("--without", nargs="+", choices=["activations", "robustness"], default=[], help="skip these")
    add_retrain(measure)
    add_trust(measure)
    add_data_and_device(measure)
    along = commands.add_parser("along", parents=[runs], help="measure steps during training")
    along.add_argument("--task", nargs="+", default=["mnist_mlp100"], metavar="TASK", help="of the experiment's tasks")
    along.add_argument("--epochs", type=positive_int, metavar="N", help="how far to train (default: to the end)")
    probes = "steps to measure (default: 60, fewer for a very deep network)"
    along.add_argument("--probes", type=int_at_least(2), metavar="N", help=probes)
    report = commands.add_parser("report", parents=[stored], help="make tables and figures of the records")
    report.add_argument("--out", type=Path, default=ROOT / "results", metavar="DIR", help="default: results")
    report.add_argument("--check", action="store_true", help="list what differs from the records instead of writing")
    return parser
