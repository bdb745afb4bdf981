#!/usr/bin/env python3
"""Throughput of several runs that share a GPU: epochs per second of all of them, alone and side by side.

    python -m benchmarks.packing --task mnist_mlp100 cifar10_vgg11 --jobs 1 4 8 machine=gpu
    python -m benchmarks.packing --mps off on --out results/tables/bench_packing.md machine=gpu
    python -m benchmarks.packing --task cifar10_cgan --jobs 1 --beside "4 pong_ppo" machine=gpu

Arguments with `=` are overrides of every run, as for `nero train`. Each run is a process with its own seed. Once
all of them have logged their first epochs, which compile and capture, they are observed for some seconds and then
stopped. The rate of a run is that of the epochs it finished meanwhile; the sum of the rates over the rate of a single
run is the gain. With --beside, a run of each task is also observed next to several runs of another task, which are
observed alone first. MPS is started and stopped as in `make table1 LAUNCHER=joblib`. An existing file keeps its other
rows if its head is the same; otherwise it is replaced.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import (
    NotMeasured,
    benchmark_parser,
    code_in_words,
    exit_status,
    parse_with_overrides,
    read_rows,
    table_head,
    with_versions,
    write_lines,
)
from nero.plans.config import ROOT, compose
from nero.report.tables.sheets import markdown_line
from nero.runs.formatting import seconds_per_epoch
from nero.runs.store import RunDirectory, Store
from nero.sweep.mps import daemon

FIRST_LINES = 3
"""Log lines that are not timed: the graph of a shape that occurs once per epoch is captured in the third."""

ENDLESS = 100_000
TRAIN = ROOT / "scripts" / "train.py"
HEAD = ["task", "runs at a time", "MPS", "epochs/s of all", "s per epoch of one", "gain over one after the other"]


KEY = 3  # columns that identify a measurement


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--task", nargs="+", default=["mnist_mlp100"])
    parser.add_argument("--jobs", nargs="+", default=["1", "4"], metavar="N", help="runs at a time (default: 1 4)")
    parser.add_argument("--mps", nargs="+", default=["on"], help="on, off or both, for more than one at a time")
    parser.add_argument(
        "--beside", metavar="WORDS", help='in quotes, a number of runs, their task, and further settings: "4 pong_ppo"'
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="to observe (default: 20)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for all runs to start (default: 120)")
    options, overrides = parse_with_overrides(parser, arguments, lists=("task", "jobs", "mps"))
    if not all(job.isdigit() and int(job) > 0 for job in options.jobs):
        parser.error(f"--jobs takes positive integers, not {' '.join(options.jobs)}")
    if options.beside is not None:
        count, *others = options.beside.split()
        if not count.isdigit() or int(count) < 1 or not others or "=" in others[0]:
            parser.error(
                f'--beside takes a number of runs, their task and settings, such as "4 pong_ppo": {options.beside}'
            )
    if set(options.mps) - {"on", "off"}:
        parser.error(f"--mps takes on and off, not {' '.join(options.mps)}")
    return exit_status(lambda: _report(options, overrides))


def _report(options: argparse.Namespace, overrides: list[str]) -> None:
    from nero.train.build import choose_device, device_name

    device = device_name(choose_device(compose([f"task={options.task[0]}", *overrides]).cfg.machine.device))
    machine = with_versions(device, f"{os.cpu_count()} CPU cores", packages=("torch", "triton"))
    about = (
        f"{machine}; {code_in_words()}. Settings: {' '.join(overrides) or 'the defaults'}; "
        f"optimiser Nero unless they say otherwise; {options.seconds:g} s each."
        f"{f' Runs that others go beside: {options.beside}.' if options.beside else ''}"
    )
    head = table_head("Several runs on one device", about, HEAD, numbers=range(1, 6))
    print("\n".join(head), flush=True)
    rows = read_rows(options.out, head, KEY) or {}
    for row in _rows(options, overrides):
        rows[tuple(row[:KEY])] = markdown_line(row)
        print(markdown_line(row), flush=True)
        write_lines([*head, *rows.values()], options.out)


def _rows(options: argparse.Namespace, overrides: list[str]) -> Iterator[list[str]]:
    beside = _Beside.of(options.beside, overrides) if options.beside else None
    others_alone: float | None = None
    if beside is not None:
        others = [_seeded(beside.overrides, beside.count)]
        others_alone = yield from _measured(f"`{beside.task}`", beside.count, "on", others, options, None)
    for task in options.task:
        alone: float | None = None
        for jobs in sorted({int(job) for job in options.jobs}):
            for mps in dict.fromkeys(options.mps) if jobs > 1 else ["off"]:
                rates = yield from _measured(
                    f"`{task}`", jobs, mps, [_seeded([f"task={task}", *overrides], jobs)], options, alone
                )
                alone = rates if jobs == 1 else alone
        if beside is not None:
            yield from _beside_rows([f"task={task}", *overrides], task, beside, options, (alone, others_alone))


@dataclass(frozen=True)
class _Beside:
    """Runs next to which another run is measured."""

    count: int
    task: str
    overrides: list[str]

    @classmethod
    def of(cls, text: str, overrides: Sequence[str]) -> "_Beside":
        """Parse --beside: own settings, but the same machine."""
        count, task, *others = text.split()
        machine = [word for word in overrides if word.startswith("machine=")]
        return cls(int(count), task, [f"task={task}", *machine, *others])


def _beside_rows(
    overrides: list[str],
    task: str,
    beside: _Beside,
    options: argparse.Namespace,
    without: tuple[float | None, float | None],
) -> Iterator[list[str]]:
    """Measure both kinds side by side; `without`: epochs per second of either kind alone."""
    names = f"`{task}` beside {beside.count} `{beside.task}`", f"{beside.count} `{beside.task}` beside `{task}`"
    try:
        with daemon(True):
            groups = _rates(
                [_seeded(overrides, 1), _seeded(beside.overrides, beside.count)], options.seconds, options.patience
            )
    except NotMeasured as error:
        yield [names[0], "1", "on", f"not measured: {error}", "", ""]
        return
    for name, rates, before in zip(names, groups, without, strict=True):
        share = f"{sum(rates) / before:.2f} of its rate without" if before else ""
        yield [name, str(len(rates)), "on", f"{sum(rates):.3f}", f"{len(rates) / sum(rates):.3f}", share]


def _measured(
    name: str, jobs: int, mps: str, groups: list[list[list[str]]], options: argparse.Namespace, alone: float | None
) -> Generator[list[str], None, float | None]:
    """Yield a row; return epochs per second of all runs."""
    try:
        with daemon(mps == "on"):
            [rates] = _rates(groups, options.seconds, options.patience)
    except NotMeasured as error:
        yield [name, str(jobs), mps, f"not measured: {error}", "", ""]
        return None
    together = sum(rates)
    gain = 1.0 if jobs == 1 else together / alone if alone else None
    yield [name, str(jobs), mps, f"{together:.3f}", f"{jobs / together:.3f}", "" if gain is None else f"{gain:.2f}"]
    return together


def _seeded(overrides: list[str], jobs: int) -> list[list[str]]:
    return [[*overrides, f"seed={seed}"] for seed in range(jobs)]


def _rates(groups: list[list[list[str]]], seconds: float, patience: float) -> list[list[float]]:
    """Epochs per second of the runs of each group, all of which run side by side."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stop = Path(folder, "stop")
        own = [
            f"store={folder}",
            f"task.epochs={ENDLESS}",
            "machine.checkpoint_seconds=1e9",
            f"machine.stop_file={stop}",
        ]
        settings = [[*overrides, *own] for group in groups for overrides in group]
        configs = [compose(setting) for setting in settings]
        runs = [Store(folder).run(config.task_name, config.run_id) for config in configs]
        processes = [_start(setting, Path(folder, f"output-{number}")) for number, setting in enumerate(settings)]
        try:
            _wait_until(lambda: all(len(run.read_metrics()) >= FIRST_LINES for run in runs), processes, patience)
            before = [len(run.read_metrics()) for run in runs]
            # At least two whole epochs of each: the result must not depend on where the window begins.
            enough = time.monotonic() + seconds
            _wait_until(
                lambda: (
                    time.monotonic() >= enough
                    and all(len(run.read_metrics()) >= lines + 2 for run, lines in zip(runs, before, strict=True))
                ),
                processes,
                seconds + patience,
            )
            rates = iter([_rate(run, lines) for run, lines in zip(runs, before, strict=True)])
            return [list(itertools.islice(rates, len(group))) for group in groups]
        finally:
            stop.touch()
            for process in processes:
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _start(overrides: list[str], output: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        return subprocess.Popen([sys.executable, str(TRAIN), *overrides], stdout=file, stderr=subprocess.STDOUT)


def _wait_until(condition: Callable[[], bool], processes: "list[subprocess.Popen[bytes]]", patience: float) -> None:
    end = time.monotonic() + patience
    while not condition():
        if ended := [process for process in processes if process.poll() is not None]:
            raise NotMeasured(f"a run ended with status {ended[0].returncode}")
        if time.monotonic() > end:
            raise NotMeasured(f"{patience:g} s were not enough")
        time.sleep(0.1)


def _rate(run: RunDirectory, lines: int) -> float:
    """Epochs per second after the first `lines` log lines."""
    epochs = [
        seconds_per_epoch(record) for record in run.read_metrics()[lines:] for _ in range(record.get("epochs", 1))
    ]
    return len(epochs) / sum(epochs)


if __name__ == "__main__":
    sys.exit(main())
