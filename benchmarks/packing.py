#!/usr/bin/env python3
"""When it pays to have several runs share a GPU: epochs per second of all of them together, alone and side by side.

    python -m benchmarks.packing --task mnist_mlp100 cifar10_vgg11 --jobs 1 4 8 machine=gpu
    python -m benchmarks.packing --mps off on --out results/tables/bench_packing.md machine=gpu
    python -m benchmarks.packing --task cifar10_cgan --jobs 1 --beside "4 pong_ppo" machine=gpu

Words with `=` are settings of every run, as scripts/train.py takes them. Each run is a process of its own, with a seed
of its own. Once every one of them has logged its first epochs, which compile and capture, they are watched for some
seconds, and then asked to stop. Of each the rate is that of the epochs that it finished meanwhile; their sum, over that
of a run alone, is the gain. With --beside, one run of each task is also watched beside so many of another, which are
watched alone first: how much of its rate alone each keeps. With MPS the sweep's own daemon is started and stopped, as
`make table1 LAUNCHER=joblib` does. A file that is there already keeps its other lines, if its head is the same, and is
else replaced.
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

from benchmarks.kept_lines import kept_lines
from nero.atomic import write_atomic
from nero.plans.argparse_types import parse_with_settings
from nero.plans.config import ROOT, ConfigError, compose
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_in_words, versions
from nero.runs.store import RunDirectory, Store
from nero.runs.tracking import seconds_per_epoch
from nero.sweep.mps import served

FIRST_LINES = 3
"""Lines of the log that are not timed: the graph of a shape that an epoch has once is captured in the third."""

ENDLESS = 100_000
TRAIN = ROOT / "scripts" / "train.py"
HEAD = ["task", "runs at a time", "MPS", "epochs/s of all", "s per epoch of one", "gain over one after the other"]


KEY = 3  # the first columns, which say what was measured
MACHINE = "machine"


class NotMeasured(Exception):
    """A run ended instead of going on, or never got going."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", default=["mnist_mlp100"])
    parser.add_argument("--jobs", nargs="+", default=["1", "4"], metavar="N", help="runs at a time (default: 1 4)")
    parser.add_argument("--mps", nargs="+", default=["on"], help="on, off or both, for more than one at a time")
    parser.add_argument(
        "--beside", metavar="WORDS", help='in quotes, a number of runs, their task, and further settings: "4 pong_ppo"'
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="to watch (default: 20)")
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds for all runs to get going (default: 120)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table to write")
    options, words = parse_with_settings(parser, arguments, lists=("task", "jobs", "mps"))
    if not all(job.isdigit() and int(job) > 0 for job in options.jobs):
        parser.error(f"--jobs takes whole numbers from 1, not {' '.join(options.jobs)}")
    if options.beside is not None:
        count, *others = options.beside.split()
        if not count.isdigit() or int(count) < 1 or not others or "=" in others[0]:
            parser.error(
                f'--beside takes a number of runs, their task and settings, such as "4 pong_ppo": {options.beside}'
            )
    if set(options.mps) - {"on", "off"}:
        parser.error(f"--mps takes on and off, not {' '.join(options.mps)}")
    try:
        _report(options, words)
    except (ConfigError, NotMeasured) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(options: argparse.Namespace, words: list[str]) -> None:
    from nero.train.run import choose_device, device_name

    device = device_name(choose_device(compose([f"task={options.task[0]}", *words]).cfg.machine.device))
    packages = [f"{package} {version}" for package, version in versions(("torch", "triton")).items()]
    lines = [
        "# Several runs on one device",
        "",
        f"{', '.join([device, f'{os.cpu_count()} CPU cores', *packages])}; {code_in_words()}. Settings: "
        f"{' '.join(words) or 'the defaults'}; optimiser Nero unless they say otherwise; {options.seconds:g} s each."
        f"{f' Runs that others go beside: {options.beside}.' if options.beside else ''}",
        "",
        markdown_line(HEAD),
        markdown_line(["---"] + ["---:"] * 5),
    ]
    print("\n".join(lines), flush=True)
    measured = (kept_lines(options.out, lines, KEY) if options.out else None) or {}
    for row in _rows(options, words):
        line = markdown_line(row)
        measured[tuple(row[:KEY])] = line
        print(line, flush=True)
        if options.out:
            write_atomic(options.out, "\n".join([*lines, *measured.values(), ""]).encode())


def _rows(options: argparse.Namespace, words: list[str]) -> Iterator[list[str]]:
    beside = _Beside.of(options.beside, words) if options.beside else None
    others_alone: float | None = None
    if beside is not None:
        others = [_seeded(beside.words, beside.count)]
        others_alone = yield from _measured(f"`{beside.task}`", beside.count, "on", others, options, None)
    for task in options.task:
        alone: float | None = None
        for jobs in sorted({int(job) for job in options.jobs}):
            for mps in dict.fromkeys(options.mps) if jobs > 1 else ["off"]:
                rates = yield from _measured(
                    f"`{task}`", jobs, mps, [_seeded([f"task={task}", *words], jobs)], options, alone
                )
                alone = rates if jobs == 1 else alone
        if beside is not None:
            yield from _beside_rows([f"task={task}", *words], task, beside, options, (alone, others_alone))


@dataclass(frozen=True)
class _Beside:
    """Runs that another is to go beside of."""

    count: int
    task: str
    words: list[str]

    @classmethod
    def of(cls, text: str, words: Sequence[str]) -> "_Beside":
        """Their settings are their own; the machine is the same."""
        count, task, *others = text.split()
        machine = [word for word in words if word.startswith(f"{MACHINE}=")]
        return cls(int(count), task, [f"task={task}", *machine, *others])


def _beside_rows(
    words: list[str],
    task: str,
    beside: _Beside,
    options: argparse.Namespace,
    without: tuple[float | None, float | None],
) -> Iterator[list[str]]:
    """Each kind beside the other, in one go; `without`: epochs per second of either kind alone."""
    names = f"`{task}` beside {beside.count} `{beside.task}`", f"{beside.count} `{beside.task}` beside `{task}`"
    try:
        with served(True):
            groups = _rates([_seeded(words, 1), _seeded(beside.words, beside.count)], options.seconds, options.patience)
    except NotMeasured as error:
        yield [names[0], "1", "on", f"not measured: {error}", "", ""]
        return
    for name, rates, before in zip(names, groups, without, strict=True):
        kept = f"{sum(rates) / before:.2f} of its rate without" if before else ""
        yield [name, str(len(rates)), "on", f"{sum(rates):.3f}", f"{len(rates) / sum(rates):.3f}", kept]


def _measured(
    name: str, jobs: int, mps: str, groups: list[list[list[str]]], options: argparse.Namespace, alone: float | None
) -> Generator[list[str], None, float | None]:
    """A line, and epochs per second of all."""
    try:
        with served(mps == "on"):
            [rates] = _rates(groups, options.seconds, options.patience)
    except NotMeasured as error:
        yield [name, str(jobs), mps, f"not measured: {error}", "", ""]
        return None
    together = sum(rates)
    gain = 1.0 if jobs == 1 else together / alone if alone else None
    yield [name, str(jobs), mps, f"{together:.3f}", f"{jobs / together:.3f}", "" if gain is None else f"{gain:.2f}"]
    return together


def _seeded(words: list[str], jobs: int) -> list[list[str]]:
    return [[*words, f"seed={seed}"] for seed in range(jobs)]


def _rates(groups: list[list[list[str]]], seconds: float, patience: float) -> list[list[float]]:
    """Epochs per second of each of several groups of runs, all of which go on side by side."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stop = Path(folder, "stop")
        own = [
            f"store={folder}",
            f"task.epochs={ENDLESS}",
            "machine.checkpoint_seconds=1e9",
            f"machine.stop_file={stop}",
        ]
        settings = [[*words, *own] for group in groups for words in group]
        configs = [compose(setting) for setting in settings]
        runs = [Store(folder).run(config.task_name, config.run_id) for config in configs]
        processes = [_start(setting, Path(folder, f"said-{number}")) for number, setting in enumerate(settings)]
        try:
            _wait_until(lambda: all(len(run.read_metrics()) >= FIRST_LINES for run in runs), processes, patience)
            before = [len(run.read_metrics()) for run in runs]
            # Two whole epochs of each at least: none is told by where the window happens to begin.
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


def _start(words: list[str], said: Path) -> "subprocess.Popen[bytes]":
    with said.open("wb") as file:
        return subprocess.Popen([sys.executable, str(TRAIN), *words], stdout=file, stderr=subprocess.STDOUT)


def _wait_until(condition: Callable[[], bool], processes: "list[subprocess.Popen[bytes]]", patience: float) -> None:
    end = time.monotonic() + patience
    while not condition():
        if ended := [process for process in processes if process.poll() is not None]:
            raise NotMeasured(f"a run ended with status {ended[0].returncode}")
        if time.monotonic() > end:
            raise NotMeasured(f"{patience:g} s were not enough")
        time.sleep(0.1)


def _rate(run: RunDirectory, lines: int) -> float:
    """Epochs per second after the first `lines` of the log."""
    epochs = [
        seconds_per_epoch(record) for record in run.read_metrics()[lines:] for _ in range(record.get("epochs", 1))
    ]
    return len(epochs) / sum(epochs)


if __name__ == "__main__":
    sys.exit(main())
