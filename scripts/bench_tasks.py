"""Seconds per epoch of a task with each optimiser on this machine: training and evaluation, as a run does it.

    python scripts/bench_tasks.py [--task mnist_mlp100] [--optim nero sgd adam lamb] [--epochs 6] [OVERRIDE ...]

The first two epochs, which warm up and capture, are left out; the rest give median and range.
"""

import argparse
import statistics
import sys
import tempfile

from nero.plans.config import ConfigError, compose


def main() -> None:
    from nero.data.sources import MissingData
    from nero.runs.store import Store
    from nero.train import train

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist_mlp100")
    parser.add_argument("--optim", nargs="+", default=["nero", "sgd", "adam", "lamb"])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("overrides", nargs="*", help="settings, as scripts/train.py takes them")
    args = parser.parse_args()
    if args.epochs < 3:
        parser.error("--epochs must be at least 3: the first two are not timed")
    rows = ["| task | optimiser | precision | device | s per epoch | range | epochs |", "| --- " * 7 + "|"]
    with tempfile.TemporaryDirectory() as folder:
        for optim in args.optim:
            words = [
                f"task={args.task}",
                f"optim={optim}",
                f"task.epochs={args.epochs}",
                f"store={folder}",
                *args.overrides,
            ]
            try:
                config = compose([*words, "machine.keep_checkpoint=false"])
                outcome = train(config)
            except (ConfigError, MissingData) as error:
                sys.exit(f"error: {error}")
            records = Store(folder).run(config.task_name, config.run_id).read_metrics()[2:]
            what = f"| {args.task} | {optim} | {config.cfg.precision} | {outcome['device']} "
            if not records:
                rows.append(f"{what}| {outcome['status']} | | |")
                continue
            seconds = [record["seconds"] for record in records]
            spread = f"{min(seconds):.3f} - {max(seconds):.3f}"
            rows.append(f"{what}| {statistics.median(seconds):.3f} | {spread} | {len(seconds)} |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
