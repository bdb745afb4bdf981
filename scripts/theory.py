#!/usr/bin/env python3
"""The paper's theory (Sections 3 and 8) measured on runs, and what was measured as tables and figures.

    python scripts/theory.py measure --experiment theory        balance, activations and robustness of its trained runs
    python scripts/theory.py measure RUN ...                    the same of any runs that kept their checkpoint
    python scripts/theory.py along --experiment theory --task mnist_mlp100
                                                                steps, trust and angles along trainings of its runs
    python scripts/theory.py along task=mnist_mlp100 task.depth=5 optim=lamb optim.lr=0.01
                                                                the same of any training
    python scripts/theory.py report                             results/tables/theory_*, results/figures/theory_*
    python scripts/theory.py report --check                     whether these are what the records give; writes nothing

A run is measured once it has ended: its record is kept in results/theory, and --again takes it anew. One that was
measured under way is measured again. RUN is a run's directory or id.
Exit status: 0; 1 when something could not be measured, or differs under --check; 2 for what makes no sense.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nero.data.sources import MissingData, default_root
from nero.plans.argparse_types import whole
from nero.plans.config import ROOT, ConfigError, compose
from nero.plans.plan import PlannedRun, load_experiment
from nero.report.cells import EmbeddedDataError
from nero.runs.store import Store
from nero.theory import records

FOLDER = ROOT / "results" / "theory"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, words = parser.parse_known_args(arguments)
    if options.command == "measure":  # argparse takes settings for runs
        words += [word for word in options.runs if "=" in word and not Path(word).exists()]
        options.runs = [word for word in options.runs if word not in words]
    if unknown := [word for word in words if "=" not in word or word.startswith("-") or options.command == "report"]:
        parser.error(f"unknown argument {unknown[0]}")
    if options.command == "measure" and not options.runs and not options.experiment:
        parser.error("measure: name runs, or an --experiment")
    if options.command == "along" and not words and not options.experiment:
        parser.error("along: give settings of a training, such as task=mnist_mlp100, or an --experiment")
    try:
        return {"measure": _measure, "along": _along, "report": _report}[options.command](options, words)
    except (ConfigError, MissingData, EmbeddedDataError, records.UnreadableRecord) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    kept = argparse.ArgumentParser(add_help=False)
    kept.add_argument("--records", type=Path, default=FOLDER, metavar="DIR", help="default: %(default)s")
    runs = argparse.ArgumentParser(add_help=False, parents=[kept])
    store = os.environ.get("NERO_RUNS") or "results/runs"
    runs.add_argument("--store", default=store, metavar="DIR", help="where runs are looked up (default: %(default)s)")
    runs.add_argument("--experiment", metavar="NAME", help="runs of experiments/NAME.yaml at their best learning rates")
    runs.add_argument("--again", action="store_true", help="also what has a record already")
    measure = commands.add_parser("measure", parents=[runs], help="networks as their runs left them")
    measure.add_argument("runs", nargs="*", metavar="RUN", help="a run's directory, or its id in the store")
    measure.add_argument(
        "--without", nargs="+", choices=["activations", "robustness"], default=[], help="leave these out"
    )
    measure.add_argument(
        "--retrain",
        type=Path,
        metavar="STORE",
        help="train an experiment's runs without a checkpoint anew, in this store, with any machine.* settings given",
    )
    measure.add_argument("--data-root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    measure.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU if there is one"
    )
    along = commands.add_parser("along", parents=[runs], help="steps along trainings")
    along.add_argument("--task", nargs="+", default=["mnist_mlp100"], metavar="TASK", help="of the experiment's tasks")
    along.add_argument("--epochs", type=whole(1), metavar="N", help="how far to train (default: to the end)")
    along.add_argument(
        "--probes", type=whole(2), metavar="N", help="steps to look at (default: 60, fewer of a very deep network)"
    )
    report = commands.add_parser("report", parents=[kept], help="tables and figures of what was measured")
    report.add_argument("--out", type=Path, default=ROOT / "results", metavar="DIR", help="default: %(default)s")
    report.add_argument("--check", action="store_true", help="say what differs from the records instead of writing")
    return parser


def _measure(options: argparse.Namespace, words: list[str]) -> int:
    from nero.checkpoints.loading import Unusable, find_run
    from nero.checkpoints.of_runs import PARTS, measure_run
    from nero.checkpoints.selection import leading_runs
    from nero.train.run import train

    parts = [part for part in PARTS if part not in options.without]

    def measure(name: str, run: PlannedRun | None = None) -> records.Record:
        store = options.store
        if run and options.retrain and find_run(name, Store(store)).load_checkpoint() is None:
            store = options.retrain
            train(compose([*run.overrides, *words, f"store={store}", f"data_root={options.data_root}"]))
        return measure_run(name, store, options.data_root, options.device, say, parts)

    work = {name: partial(measure, name) for name in options.runs}
    if options.experiment:
        runs = leading_runs(load_experiment(options.experiment), Store(options.store))
        work |= {run.run_id: partial(measure, run.run_id, run) for run in runs}
    return _each(records.NETWORKS, work, options, Unusable)


def _along(options: argparse.Namespace, words: list[str]) -> int:
    from nero.checkpoints.along_training import measure_along
    from nero.checkpoints.selection import trainings

    if options.experiment:
        configs = trainings(load_experiment(options.experiment), Store(options.store), options.task, words)
    else:
        configs = [
            compose([*words, *([] if any(word.startswith("precision=") for word in words) else ["precision=fp32"])])
        ]
    work = {c.run_id: partial(measure_along, c, options.epochs, options.probes, say) for c in configs}
    return _each(records.STEPS, work, options, ())


def _each(
    kind: str,
    work: Mapping[str, Callable[[], records.Record]],
    options: argparse.Namespace,
    unusable: type[Exception] | tuple[()],
) -> int:
    """Measure one after the other; each is kept as soon as it is there, and one that fails does not stop the rest."""
    there = {record["run_id"] for record in records.read(kind, options.records) if records.is_whole(kind, record)}
    failed = 0
    for number, (name, measure) in enumerate(work.items(), 1):
        run_id = Path(name).name
        if run_id in there and not options.again:
            continue
        start = time.monotonic()
        try:
            record = measure()
        except unusable as error:
            failed += 1
            print(f"not measured: {error}", file=sys.stderr, flush=True)
            continue
        path = records.write(kind, record, options.records)
        print(f"[{number}/{len(work)}] {path}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(work)} runs asked for; {failed} could not be measured; the others have their records", flush=True)
    return 1 if failed else 0


def _report(options: argparse.Namespace, words: list[str]) -> int:
    from nero.report import files
    from nero.report.theory.report import theory_files, theory_texts

    if options.check:
        # Not the figures: what is drawn differs with matplotlib's version.
        texts = theory_texts(options.records)
        found = files.differences(texts, options.out)
        print("\n".join(found) or f"{len(texts)} files are as the records give them")
        return 1 if found else 0
    made = theory_files(options.records)
    files.write(made, options.out)
    for path in made:
        print(options.out / path)
    return 0


def say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
