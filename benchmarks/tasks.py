#!/usr/bin/env python3
"""Seconds per epoch of whole runs on this machine: training with all that its data need, and evaluation, as a run does.

    python -m benchmarks.tasks                the 100-layer MLP with the paper's four optimisers
    python -m benchmarks.tasks --task cifar10_vgg11 cifar10_resnet18 --optim nero sgd machine=gpu \\
        --variant "precision=tf32" "precision=bf16 machine.compile=true" --out results/tables/bench_tasks.md

Words with `=` are settings of every run, as scripts/train.py takes them; those in quotes after --variant are tried one
after the other. The first two epochs, which compile, warm up and capture, are left out; the rest give median and range,
and the first of them has yet to capture a last, smaller batch. Epochs that measure more than others, as a GAN's last
one takes its FID, are left out too. Each run is done --runs times in this process, as a sweep does runs of a task one
after another, with a seed of its own. The start-up of each is what it took beside its epochs, and what its first two
epochs took more than others; "MiB kept" is the GPU's memory that was in use after the first run and after the last. A
file that is there already keeps its other lines, if they were measured on the same
device with the same packages.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kept_lines import kept_lines
from nero.atomic import write_atomic
from nero.data.sources import MissingData
from nero.plans.argparse_types import parse_with_settings
from nero.plans.config import ConfigError, compose
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_version, versions
from nero.runs.tracking import seconds_per_epoch

UNTIMED = 2
INTERRUPTED = "interrupted"
HEAD = ["task", "optimiser", "settings", "s per epoch", "range", "epochs", "s to start, run by run", "MiB kept", "code"]
KEY = 3  # the first columns, which say what was measured


@dataclass(frozen=True)
class Timed:
    """A run: how it ended, what its timed epochs took, and what starting it took."""

    status: str
    epochs: list[float]
    start_up: float = 0.0
    mib_kept: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["mnist_mlp100"])
    parser.add_argument("--optim", nargs="+", default=["nero", "sgd", "adam", "lamb"])
    parser.add_argument("--variant", nargs="+", default=[""], metavar="WORDS", help="settings to compare, in quotes")
    parser.add_argument("--epochs", type=int, default=6, help=f"the first {UNTIMED} are not timed (default: 6)")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each kind, in this process (default: 1)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table to write the lines into")
    options, words = parse_with_settings(parser, arguments, lists=("task", "optim"))
    for name in ("task", "optim"):
        if not getattr(options, name):
            parser.error(f"--{name} names none")
    if options.epochs <= UNTIMED:
        parser.error(f"--epochs must be at least {UNTIMED + 1}: the first {UNTIMED} are not timed")
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        return 0 if _report(options, words) else 1
    except (ConfigError, MissingData, OtherTable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


class OtherTable(Exception):
    """The file to write into holds something else."""


def _report(options: argparse.Namespace, words: list[str]) -> bool:
    """Print the table line by line; the file has every line as soon as it is there. False if it was asked to stop."""
    from nero.train.run import choose_device, device_name

    device = device_name(choose_device(compose([f"task={options.task[0]}", *words]).cfg.machine.device))
    packages = [f"{package} {version}" for package, version in versions(("torch", "triton")).items()]
    head = [
        "# Seconds per epoch",
        "",
        f"{', '.join([device, *packages])}; training, all that its data need, and evaluation.",
        "",
        markdown_line(HEAD),
        markdown_line(["---"] * KEY + ["---:"] * 5 + ["---"]),
    ]
    lines = kept_lines(options.out, head, KEY) if options.out else {}
    if lines is None:
        found = options.out.read_text().splitlines()[2:3]
        raise OtherTable(f"{options.out} is no such table, or one of another device or other packages: {found}")
    print("\n".join(head), flush=True)
    for row in _rows(options, words):
        line = markdown_line(row)
        print(line, flush=True)
        if options.out:
            # A time that was measured once is not lost to a run that was cut short.
            key = tuple(row[:KEY])
            lines[key] = lines.get(key, line) if INTERRUPTED in row else line
            write_atomic(options.out, "\n".join([*head, *lines.values(), ""]).encode())
        if INTERRUPTED in row:  # a run ends so when it is asked to: that was meant for all of them
            return False
    return True


def _rows(options: argparse.Namespace, words: list[str]) -> Iterator[list[str]]:
    commit, dirty = code_version()
    code = f"{(commit or 'unknown')[:10]}{' with changes' if dirty else ''}"
    for task, variant, optim in itertools.product(options.task, options.variant, options.optim):
        settings = [*words, *variant.split()]
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


def _timed(words: list[str]) -> Timed:
    from nero.runs.store import Store
    from nero.train.run import train

    with tempfile.TemporaryDirectory() as folder:
        config = compose([*words, f"store={folder}", "machine.keep_checkpoint=false"])
        begun = time.monotonic()
        outcome = train(config)
        whole = time.monotonic() - begun
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
    beside = whole - sum(record["seconds"] for record in records)
    start_up = max(0.0, beside + sum(record["seconds"] for record in first) - usual)
    return Timed("done", seconds, start_up, _mib_in_use() if config.cfg.machine.device != "cpu" else None)


def _mib_in_use() -> int | None:
    """Of the GPU's memory, by whomever; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


if __name__ == "__main__":
    sys.exit(main())
