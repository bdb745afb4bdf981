#!/usr/bin/env python3
"""Seconds and memory from a large store to a finished page, as a table.

    python scripts/bench_report.py                           5,000 made-up runs of 200 epochs, in a folder of its own
    python scripts/bench_report.py --runs 200 --epochs 20 --report every    a quick look
    python scripts/bench_report.py --out results/tables/bench_report.md

Two reports are timed, each in a process of its own: `whole`, which is all of `scripts/report.py`, on a store of runs
that its experiments ask for and of further seeds of them; and `every`, a table, a figure and a page of one experiment
that asks for all of the runs, so that every one of them is in a number and in a curve.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from nero.plans.command_words import check_out
from nero.plans.config import ROOT
from nero.plans.plan import Cell, Experiment, PlannedRun, load_experiment, survey
from nero.report import catalogue, files
from nero.report.assembly import PAGE, Report
from nero.report.paper import ERROR, FID, PERPLEXITY, REWARD
from nero.report.sheet_markdown import markdown_line
from nero.runs.provenance import code_in_words, provenance
from nero.runs.store import Store
from nero.trained.options import whole

REPORTS = {
    "whole": "`scripts/report.py`: all tables, figures in three formats, the page",
    "every": "a table, a figure and a page of one experiment that asks for every run",
}

METRICS = {"cgan": FID, "transformer": PERPLEXITY, "ppo": REWARD}
"""What is reported of a task with this in its name; of others, an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=whole(1), default=5000)
    parser.add_argument("--epochs", type=whole(1), default=200)
    parser.add_argument("--report", nargs="+", choices=REPORTS, default=list(REPORTS), help="default: both")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there")
    parser.add_argument("--page-of", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)  # the second report's process
    options = parser.parse_args(arguments)
    check_out(parser, options.out)
    if options.page_of:
        return _page_of_all(options.page_of, options.runs)
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(_lines(Path(folder), options.runs, options.epochs, options.report))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


def _lines(folder: Path, count: int, epochs: int, reports: Sequence[str]) -> Iterator[str]:
    begun = time.monotonic()
    written, lines = _write_store(Store(folder / "runs"), count, epochs)
    print(f"{written:,} runs written in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    yield "# From a large store to a finished page"
    yield ""
    yield f"{os.cpu_count()} CPU cores; {code_in_words()}. {written:,} runs, {lines:,} logged epochs."
    yield ""
    yield markdown_line(["report", "seconds", "peak memory (MB)", "page (MB)"])
    yield markdown_line(["---"] * 4)
    own = [str(ROOT / "scripts" / "report.py"), "--store", str(folder / "runs"), "--out", str(folder / "whole")]
    every = [__file__, "--page-of", str(folder), "--runs", str(count)]
    for name, words in {"whole": own, "every": every}.items():
        if name in reports:
            measured = _measure([sys.executable, *words])
            size = (folder / name / PAGE).stat().st_size / 1e6
            yield markdown_line([REPORTS[name], f"{measured.seconds:.1f}", f"{measured.megabytes:.0f}", f"{size:.1f}"])


@dataclass(frozen=True)
class Measured:
    seconds: float
    megabytes: float  # the most that the process had at once


def _measure(command: Sequence[str]) -> Measured:
    """Of a process to its end; one that does not come to a page ends this one, with what it said."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: some runs are missing
        sys.exit(f"error: {' '.join(command)} ended with {process.returncode}: {said}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(time.monotonic() - begun, usage.ru_maxrss * unit / 1e6)


def _page_of_all(folder: Path, count: int) -> int:
    store = Store(folder / "runs")
    summaries = store.summaries()
    experiment = _experiment(count)
    states = tuple(survey(cell, summaries) for cell in experiment.cells)
    evidence = catalogue.Evidence(experiment, states, summaries, store)
    report = Report([evidence], store, folder / "every")
    files.write(report.texts(evidence) | report.figure_files(evidence) | report.page(), report.out)
    return 0


def _experiment(count: int) -> Experiment:
    """Table 1's cells with as many seeds as make so many runs, or a few less."""
    cells = load_experiment("table1").cells
    seeds = max(1, count // len(cells) - len(cells[0].lrs))
    return Experiment(
        "bench", "Many runs", tuple(replace(cell, repeat_seeds=tuple(range(1, 1 + seeds))) for cell in cells)
    )


# a store of made-up runs


def _write_store(store: Store, count: int, epochs: int) -> tuple[int, int]:
    """How many runs and lines it then has: what the catalogue's experiments ask for, then further seeds."""
    planned: dict[str, tuple[Cell, PlannedRun]] = {}
    experiments = [load_experiment(name) for name in catalogue.CATALOGUE]
    asked = [cell for experiment in (_experiment(count), *experiments) for cell in experiment.cells]
    for cell in asked:
        best = cell.lrs[len(cell.lrs) // 2]
        for lr, seed in itertools.chain(((lr, 0) for lr in cell.lrs), ((best, seed) for seed in cell.repeat_seeds)):
            run = cell.run(lr, seed)
            planned.setdefault(run.run_id, (cell, run))
    chosen = list(planned.values())[:count]
    start = json.dumps(provenance("NVIDIA H200")) + "\n"
    for place, (cell, run) in enumerate(chosen):
        _write_run(store.run(run.task, run.run_id).path, cell, run, epochs, start, np.random.default_rng(place))
    return len(chosen), len(chosen) * epochs


def _write_run(
    folder: Path, cell: Cell, run: PlannedRun, epochs: int, start: str, numbers: np.random.Generator
) -> None:
    """Files as a run leaves them, with curves that fall to somewhere. Plainly: a store's own care takes minutes."""
    metric = next((metric for part, metric in METRICS.items() if part in cell.task), ERROR)
    off = abs(math.log10(run.lr / cell.lrs[len(cell.lrs) // 2]))  # from the rate in the middle, which leads
    sign = 1 if metric["goal"] == "min" else -1
    level = (0.1 + 0.02 * off) * (1 + 0.01 * numbers.standard_normal())
    values = sign * level * (1 + 5 * np.exp(-np.arange(1, epochs + 1) / 20)) + 1e-3 * numbers.standard_normal(epochs)
    lines = [
        f'{{"epoch": {epoch}, "step": {391 * epoch}, "seconds": 0.3612, "lr": {run.lr}, "train/loss": {value}, '
        f'"{metric["key"].replace("val", "train")}": {value}, "{metric["key"]}": {value}}}\n'
        for epoch, value in enumerate(values.tolist(), start=1)
    ]
    final = float(values[-1])
    summary = {
        "version": 1,
        "run_id": run.run_id,
        "task": run.task,
        "optim": run.optim,
        "lr": run.lr,
        "seed": run.seed,
        "data": "real",
        "epochs": epochs,
        "epochs_done": epochs,
        "device": "NVIDIA H200",
        "parameters": 9_000_000,
        "metric": metric,
        "final": final,
        "final_metrics": {metric["key"]: final},
        "status": "done",
        "seconds": 80.0,
        "joules": None,
        "gpu_processes": None,
        "diverged_at": None,
        "traceback": None,
    }
    identity = cell.identity_at(run.lr, run.seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.dump(identity, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    (folder / "provenance.jsonl").write_text(start)
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2, sort_keys=True))


if __name__ == "__main__":
    sys.exit(main())
