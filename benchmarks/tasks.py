#!/usr/bin/env python3
"""Seconds per epoch of whole runs on this machine: data loading, training and evaluation.

    python -m benchmarks.tasks                the 100-layer MLP with the paper's four optimisers
    python -m benchmarks.tasks --task cifar10_vgg11 cifar10_resnet18 --optim nero sgd machine=gpu \\
        --variant "precision=tf32" "precision=bf16 machine.compile=true" --out results/tables/bench_tasks.md

Arguments with `=` are overrides of every run, as for `nero train`; each quoted set of overrides after --variant is
measured in turn. The first two epochs, which compile, warm up and capture, are not timed; the others give median and
range (the first of them still captures a last, smaller batch). Epochs that measure more than others, such as a GAN's
last one with its FID, are not timed either. Each run is repeated --runs times in this process with a new seed, as a
sweep does. Its start-up is the time outside its epochs, plus what its first two epochs took longer than others. "MiB
kept" is the GPU memory in use after the first and after the last run. An existing file keeps its other rows if they
were measured on the same device with the same packages.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.tables import (
    NotMeasured,
    benchmark_parser,
    exit_status,
    parse_with_overrides,
    read_rows,
    table_head,
    with_versions,
    write_lines,
)
from nero.plans.config import compose
from nero.report.tables.sheets import markdown_line
from nero.runs.formatting import seconds_per_epoch
from nero.runs.provenance import code_version

UNTIMED = 2
INTERRUPTED = "interrupted"
HEAD = ["task", "optimiser", "settings", "s per epoch", "range", "epochs", "s to start, run by run", "MiB kept", "code"]
KEY = 3  # columns that identify a measurement


@dataclass(frozen=True)
class Timed:
    """A run: its status, the seconds of its timed epochs and of its start-up."""

    status: str
    epochs: list[float]
    start_up: float = 0.0
    mib_kept: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--task", nargs="+", default=["mnist_mlp100"])
    parser.add_argument("--optim", nargs="+", default=["nero", "sgd", "adam", "lamb"])
    parser.add_argument("--variant", nargs="+", default=[""], metavar="OVERRIDES", help="to compare, in quotes")
    parser.add_argument("--epochs", type=int, default=6, help=f"the first {UNTIMED} are not timed (default: 6)")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each kind, in this process (default: 1)")
    options, overrides = parse_with_overrides(parser, arguments, lists=("task", "optim"))
    for name in ("task", "optim"):
        if not getattr(options, name):
            parser.error(f"--{name} is empty")
    if options.epochs <= UNTIMED:
        parser.error(f"--epochs must be at least {UNTIMED + 1}: the first {UNTIMED} are not timed")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return exit_status(lambda: 0 if _report(options, overrides) else 1)


def _report(options: argparse.Namespace, overrides: list[str]) -> bool:
    """Print and write the table row by row. False if a run was asked to stop."""
    from nero.train.build import choose_device, device_name

    device = device_name(choose_device(compose([f"task={options.task[0]}", *overrides]).cfg.machine.device))
    about = f"{with_versions(device, packages=('torch', 'triton'))}; training, all that its data need, and evaluation."
    head = table_head("Seconds per epoch", about, HEAD, numbers=range(KEY, 8))
    lines = read_rows(options.out, head, KEY)
    if lines is None:
        found = options.out.read_text().splitlines()[2:3]
        raise NotMeasured(f"{options.out} is another table, or of another device or other packages: {found}")
    print("\n".join(head), flush=True)
    for row in _rows(options, overrides):
        line, key = markdown_line(row), tuple(row[:KEY])
        print(line, flush=True)
        # An interrupted run does not replace an earlier measurement.
        lines[key] = lines.get(key, line) if INTERRUPTED in row else line
        write_lines([*head, *lines.values()], options.out)
        if INTERRUPTED in row:  # the request to stop was meant for all runs
            return False
    return True


def _rows(options: argparse.Namespace, overrides: list[str]) -> Iterator[list[str]]:
    commit, dirty = code_version()
    code = f"{(commit or 'unknown')[:10]}{' with changes' if dirty else ''}"
    for task, variant, optim in itertools.product(options.task, options.variant, options.optim):
        settings = [*overrides, *variant.split()]
        shown = ", ".join(word for word in settings if not word.startswith("machine=")) or "-"
        own = [f"task={task}", f"optim={optim}", *settings, f"task.epochs={options.epochs}"]
        runs: list[Timed] = []
        while len(runs) < options.runs and all(run.status == "done" for run in runs):
            runs.append(_timed([*own, f"seed={len(runs)}"]))
        if runs[-1].status != "done":
            yield [task, optim, shown, runs[-1].status, "", "0", "", "", code]
            continue
        seconds = [each for run in runs for each in run.epochs]
        spread = f"{min(seconds):.3f} - {max(seconds):.3f}"
        starts = ", ".join(f"{run.start_up:.1f}" for run in runs)
        kept = ", ".join(str(run.mib_kept) for run in (runs[0], runs[-1]) if run.mib_kept is not None)
        yield [task, optim, shown, f"{statistics.median(seconds):.3f}", spread, str(len(seconds)), starts, kept, code]


def _timed(overrides: list[str]) -> Timed:
    from nero.runs.store import Store
    from nero.train.run import train

    with tempfile.TemporaryDirectory() as folder:
        config = compose([*overrides, f"store={folder}", "machine.keep_checkpoint=false"])
        start = time.monotonic()
        outcome = train(config)
        total = time.monotonic() - start
        records = Store(folder).run(config.task_name, config.run_id).read_metrics()
    if message := outcome.get("message"):
        print(f"{config.run_id}: {message}", file=sys.stderr)
    timed = [record for record in records if record["epoch"] - record.get("epochs", 1) >= UNTIMED]
    timed = [record for record in timed if record.keys() <= timed[0].keys()]
    if outcome["status"] == "done" and not timed:
        return Timed("one line of the log holds all epochs", [])
    if outcome["status"] != "done":
        return Timed(str(outcome["status"]), [])
    seconds = [seconds_per_epoch(record) for record in timed for _ in range(record.get("epochs", 1))]
    first = [record for record in records if record["epoch"] - record.get("epochs", 1) < UNTIMED]
    usual = statistics.median(seconds) * sum(record.get("epochs", 1) for record in first)
    outside = total - sum(record["seconds"] for record in records)
    start_up = max(0.0, outside + sum(record["seconds"] for record in first) - usual)
    return Timed("done", seconds, start_up, _mib_in_use() if config.cfg.machine.device != "cpu" else None)


def _mib_in_use() -> int | None:
    """GPU memory in use by all processes; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


if __name__ == "__main__":
    sys.exit(main())
