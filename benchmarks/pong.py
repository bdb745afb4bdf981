#!/usr/bin/env python3
"""Environment steps per second of PPO on this machine, end to end: playing, learning, logging.

    python -m benchmarks.pong
    python -m benchmarks.pong --runs 1 4 --seconds 60 --out results/tables/bench_pong.md machine=gpu optim=nero

First the games alone, with random actions; then so many runs at once, each a process of scripts/train.py with a seed of
its own. Words with `=` are settings of every run. Runs at once all stop at the same moment; the lines of their logs up
to --warm-up seconds, in which they start and capture, do not count. Where `nvidia-cuda-mps-control` is there, it serves
several runs at once on a GPU, which would else give each of them all of itself in turn.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from nero.atomic import write_atomic
from nero.games.atari import AtariGames
from nero.games.base import GameError
from nero.plans.argparse_types import parse_with_settings
from nero.plans.config import ROOT, ConfigError, compose
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_in_words, versions
from nero.runs.store import Store

TASK = "pong_ppo"
GAMES_ALONE = (8, 64)
GAME_SECONDS = 5.0
HEAD = ["what", "steps per second, each", "in all"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 4], metavar="N", help="at once (default: 1 4)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that runs have, with their start (default: 60)")
    parser.add_argument("--warm-up", type=float, default=20.0, help="of those, not counted (default: 20)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table to write")
    options, words = parse_with_settings(parser, arguments)
    if min(options.runs) < 1 or not 0 <= options.warm_up < options.seconds:
        parser.error("--runs are from 1, and --warm-up is less than --seconds")
    try:
        lines = list(_table(options, words))
    except (ConfigError, GameError, RunFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.out:
        write_atomic(options.out, "\n".join([*lines, ""]).encode())
    return 0


class RunFailed(Exception):
    """A run came to no line of its log that could count."""


def _table(options: argparse.Namespace, words: list[str]) -> Iterator[str]:
    """Line by line, as they become known; each is printed too."""
    for line in _lines(options, words):
        print(line, flush=True)
        yield line


def _lines(options: argparse.Namespace, words: list[str]) -> Iterator[str]:
    from nero.train.run import choose_device, device_name

    config = compose([f"task={TASK}", *words])
    device = choose_device(config.cfg.machine.device)
    told = [
        device_name(device),
        f"{os.cpu_count()} CPU cores",
        *(f"{package} {version}" for package, version in versions(("torch", "ale-py")).items()),
        code_in_words(),
        *words,
    ]
    yield from ("# Environment steps per second", "", f"{config.cfg.task.game}; {', '.join(told)}.", "")
    yield from (markdown_line(HEAD), markdown_line(["---", "---:", "---:"]))
    if config.cfg.data == "real":
        for count in GAMES_ALONE:
            yield markdown_line([f"{count} games alone", "", f"{_games_alone(config.cfg.task.game, count):,.0f}"])
    for count in options.runs:
        with _shared_gpu(count > 1 and device.type == "cuda") as environment:
            rates = _runs_at_once(count, options.seconds, options.warm_up, words, environment)
        each = f"{min(rates):,.0f} - {max(rates):,.0f}" if count > 1 else f"{rates[0]:,.0f}"
        served = ", by MPS" if environment else ""
        yield markdown_line([f"{count} run{'s at once' if count > 1 else ''}{served}", each, f"{sum(rates):,.0f}"])


def _games_alone(game: str, count: int) -> float:
    games = AtariGames(game, count)
    games.reset(0)
    actions = np.random.default_rng(0).integers(0, games.actions, (1000, count))
    begun, steps = time.monotonic(), 0
    while time.monotonic() - begun < GAME_SECONDS:
        games.send(actions[steps % len(actions)])
        games.receive()
        steps += 1
    return steps * count / (time.monotonic() - begun)


def _runs_at_once(
    count: int, seconds: float, warm_up: float, words: list[str], environment: Mapping[str, str]
) -> list[float]:
    """Steps per second of each run."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as files:
        deadline = time.time() + seconds
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), f"task={TASK}", *words]
        settings = [f"store={folder}", "machine.checkpoint_seconds=1e9", f"machine.deadline={deadline}"]
        logs = [files.enter_context(open(Path(folder) / f"{seed}.txt", "w+")) for seed in range(count)]
        runs = [
            subprocess.Popen(
                [*command, *settings, f"seed={seed}"], env={**os.environ, **environment}, stdout=log, stderr=log
            )
            for seed, log in enumerate(logs)
        ]
        codes = [run.wait() for run in runs]
        for code, log in zip(codes, logs, strict=True):
            log.seek(0)
            if code:
                raise RunFailed(f"a run failed: {log.read()[-2000:]}")
        rates = [_rate(run.read_metrics(), warm_up) for run in Store(folder).runs()]
    if len(rates) < count or not all(rates):
        raise RunFailed(f"a run logged nothing between {warm_up:g} and {seconds:g} s; give it more --seconds")
    return rates


def _rate(records: Sequence[Mapping[str, float]], warm_up: float) -> float:
    """Over the lines of a log that begin after the warm-up."""
    clock = steps = seconds = 0.0
    before = 0.0
    for record in records:
        played = record["train/environment_steps"] - before
        if clock >= warm_up:
            steps, seconds = steps + played, seconds + record["seconds"]
        before, clock = record["train/environment_steps"], clock + record["seconds"]
    return steps / seconds if seconds else 0.0


@contextmanager
def _shared_gpu(wanted: bool) -> Iterator[dict[str, str]]:
    """NVIDIA's multi-process service for as long as it is needed: what to put into the environment of its clients."""
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in environment.values():
            Path(path).mkdir()
        if subprocess.run([control, "-d"], env={**os.environ, **environment}, check=False).returncode:
            yield {}  # it has said why, and runs do without
            return
        try:
            yield environment
        finally:
            subprocess.run([control], input="quit\n", text=True, env={**os.environ, **environment}, check=False)


if __name__ == "__main__":
    sys.exit(main())
