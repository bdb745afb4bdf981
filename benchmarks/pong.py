#!/usr/bin/env python3
"""Environment steps per second of PPO on this machine, end to end: playing, learning, logging.

    python -m benchmarks.pong
    python -m benchmarks.pong --runs 1 4 --seconds 60 --out results/tables/bench_pong.md machine=gpu optim=nero

First the games alone, with random actions; then several runs at once, each a process of scripts/train.py with its own
seed. Arguments with `=` are overrides of every run. Concurrent runs all stop at the same time; log lines of the first
--warm-up seconds, in which they start and capture, do not count. If `nvidia-cuda-mps-control` is installed, concurrent
runs share a GPU through MPS; otherwise they take turns.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.tables import (
    NotMeasured,
    benchmark_parser,
    code_in_words,
    exit_status,
    parse_with_overrides,
    print_lines,
    table_head,
    with_versions,
)
from nero.games.atari import AtariGames
from nero.plans.config import ROOT, compose
from nero.report.tables.sheets import markdown_line
from nero.runs.store import Store
from nero.sweep.mps import CONTROL, PIPES, daemon

TASK = "pong_ppo"
GAMES_ALONE = (8, 64)
GAME_SECONDS = 5.0
HEAD = ["what", "steps per second, each", "in all"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 4], metavar="N", help="at once (default: 1 4)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration of runs, with their start-up (default: 60)"
    )
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds that do not count (default: 20)")
    options, overrides = parse_with_overrides(parser, arguments)
    if min(options.runs) < 1 or not 0 <= options.warm_up < options.seconds:
        parser.error("--runs must be positive, and --warm-up less than --seconds")
    return exit_status(lambda: print_lines(_lines(options, overrides), options.out))


def _lines(options: argparse.Namespace, overrides: list[str]) -> Iterator[str]:
    from nero.train.build import choose_device, device_name

    config = compose([f"task={TASK}", *overrides])
    device = choose_device(config.cfg.machine.device)
    machine = with_versions(device_name(device), f"{os.cpu_count()} CPU cores", packages=("torch", "ale-py"))
    about = f"{config.cfg.task.game}; {', '.join([machine, code_in_words(), *overrides])}."
    yield from table_head("Environment steps per second", about, HEAD, numbers=(1, 2))
    if config.cfg.data == "real":
        for count in GAMES_ALONE:
            yield markdown_line([f"{count} games alone", "", f"{_games_alone(config.cfg.task.game, count):,.0f}"])
    for count in options.runs:
        wanted = count > 1 and device.type == "cuda" and shutil.which(CONTROL) is not None
        with daemon(wanted):
            mps = ", by MPS" if wanted and PIPES in os.environ else ""
            rates = _concurrent_rates(count, options.seconds, options.warm_up, overrides)
        each = f"{min(rates):,.0f} - {max(rates):,.0f}" if count > 1 else f"{rates[0]:,.0f}"
        yield markdown_line([f"{count} run{'s at once' if count > 1 else ''}{mps}", each, f"{sum(rates):,.0f}"])


def _games_alone(game: str, count: int) -> float:
    games = AtariGames(game, count)
    games.reset(0)
    actions = np.random.default_rng(0).integers(0, games.actions, (1000, count))
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < GAME_SECONDS:
        games.send(actions[steps % len(actions)])
        games.receive()
        steps += 1
    return steps * count / (time.monotonic() - start)


def _concurrent_rates(count: int, seconds: float, warm_up: float, overrides: list[str]) -> list[float]:
    """Steps per second of each of `count` concurrent runs."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        deadline = time.time() + seconds
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"task={TASK}", *overrides]
        settings = [f"store={folder}", "machine.checkpoint_seconds=1e9", f"machine.deadline={deadline}"]
        logs = [files.enter_context(open(Path(folder) / f"{seed}.txt", "w+")) for seed in range(count)]
        runs = [
            subprocess.Popen([*command, *settings, f"seed={seed}"], stdout=log, stderr=log)
            for seed, log in enumerate(logs)
        ]
        codes = [run.wait() for run in runs]
        for code, log in zip(codes, logs, strict=True):
            log.seek(0)
            if code:
                raise NotMeasured(f"a run failed: {log.read()[-2000:]}")
        rates = [_rate(run.read_metrics(), warm_up) for run in Store(folder).runs()]
    if len(rates) < count or not all(rates):
        raise NotMeasured(f"a run logged nothing between {warm_up:g} and {seconds:g} s; give it more --seconds")
    return rates


def _rate(records: Sequence[Mapping[str, float]], warm_up: float) -> float:
    """Environment steps per second over the log lines that begin after the warm-up."""
    clock = steps = seconds = before = 0.0
    for record in records:
        played = record["train/environment_steps"] - before
        if clock >= warm_up:
            steps, seconds = steps + played, seconds + record["seconds"]
        before, clock = record["train/environment_steps"], clock + record["seconds"]
    return steps / seconds if seconds else 0.0


if __name__ == "__main__":
    sys.exit(main())
