#!/usr/bin/env python3
"""Seconds and memory from a large store to a finished page.

    python -m benchmarks.report                           5,000 synthetic runs of 200 epochs, in a temporary folder
    python -m benchmarks.report --runs 200 --epochs 20 --report every    a quick trial
    python -m benchmarks.report --out results/tables/bench_report.md

Two reports are timed, each in its own process: `whole`, all of `scripts/report.py`, on a store of the runs of its
experiments and of further seeds; and `every`, a table, a figure and a page of one experiment of all these runs, so that
each of them counts in a number and in a curve.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.synthetic_store import experiment_of_runs, write_store
from benchmarks.tables import benchmark_parser, code_in_words, print_lines, table_head
from nero.plans.argparse_types import check_out, positive_int
from nero.plans.config import ROOT
from nero.plans.plan import survey
from nero.report import files
from nero.report.assembly import PAGE, Report
from nero.report.evidence import Evidence
from nero.report.tables.sheets import markdown_line
from nero.runs.store import Store

REPORTS = {
    "whole": "`scripts/report.py`: all tables, figures in three formats, the page",
    "every": "a table, a figure and a page of one experiment that asks for every run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=5000)
    parser.add_argument("--epochs", type=positive_int, default=200)
    parser.add_argument("--report", nargs="+", choices=REPORTS, default=list(REPORTS), help="default: both")
    parser.add_argument("--page-of", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)  # for the process of `every`
    options = parser.parse_args(arguments)
    check_out(parser, options.out)
    if options.page_of:
        return _page_of_all(options.page_of, options.runs)
    with tempfile.TemporaryDirectory() as folder:
        print_lines(_lines(Path(folder), options.runs, options.epochs, options.report), options.out)
    return 0


def _lines(folder: Path, count: int, epochs: int, reports: Sequence[str]) -> Iterator[str]:
    start = time.monotonic()
    written, lines = write_store(Store(folder / "runs"), count, epochs)
    print(f"{written:,} runs written in {time.monotonic() - start:.0f} s", file=sys.stderr)
    about = f"{os.cpu_count()} CPU cores; {code_in_words()}. {written:,} runs, {lines:,} logged epochs."
    columns = ["report", "seconds", "peak memory (MB)", "page (MB)"]
    yield from table_head("From a large store to a finished page", about, columns)
    own = [str(ROOT / "scripts" / "report.py"), "--store", str(folder / "runs"), "--out", str(folder / "whole")]
    every = ["-m", "benchmarks.report", "--page-of", str(folder), "--runs", str(count)]
    for name, words in {"whole": own, "every": every}.items():
        if name in reports:
            measured = measure_command([sys.executable, *words], statuses=(0, 1))  # 1: some runs are missing
            size = (folder / name / PAGE).stat().st_size / 1e6
            yield markdown_line([REPORTS[name], f"{measured.seconds:.1f}", f"{measured.megabytes:.0f}", f"{size:.1f}"])


@dataclass(frozen=True)
class Took:
    """Wall-clock and CPU seconds."""

    seconds: float
    cpu: float

    def __add__(self, other: "Took") -> "Took":
        return Took(self.seconds + other.seconds, self.cpu + other.cpu)

    def over(self, count: int) -> "Took":
        return Took(self.seconds / count, self.cpu / count)


@dataclass(frozen=True)
class Measured(Took):
    """What a process took; the CPU seconds are of all its processes that have ended."""

    megabytes: float  # peak


def measure_command(
    command: Sequence[str], statuses: Collection[int] = (0,), variables: Mapping[str, str] | None = None
) -> Measured:
    """Measure a process until it ends; exit with its output if its exit status is another one."""
    start, environment = time.monotonic(), {**os.environ, **(variables or {})}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if process.returncode not in statuses:
        sys.exit(f"error: {' '.join(command)} ended with {process.returncode}: {errors}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6)


def _page_of_all(folder: Path, count: int) -> int:
    store = Store(folder / "runs")
    summaries = store.summaries()
    experiment = experiment_of_runs(count)
    states = tuple(survey(cell, summaries) for cell in experiment.cells)
    evidence = Evidence(experiment, states, summaries, store)
    report = Report([evidence], store, folder / "every")
    files.write(report.texts(evidence) | report.figure_files(evidence) | report.page(), report.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
