"""Two lanes on one GPU machine: runs that are bound by the CPU go beside those that are bound by the GPU.

A lane is a sweep of its own in a child process: the same command with `machine.lane=gpu` or `machine.lane=cpu`, which
leaves out the runs of the other lane. Both lanes share the store, so neither ever waits for a run of the other.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import FrameType

from omegaconf import DictConfig

from nero.plans.config import LANES, ConfigError
from nero.plans.plan import Cell, Experiment

AUTO, ALL = "auto", "all"
CHILD = "NERO_LANE_OF"
"""Environment variable of a lane: the number of the process that started it."""

POLL_SECONDS = 0.2


def check_lane(lane: object) -> None:
    if lane not in (AUTO, ALL, *LANES):
        raise ConfigError(f"machine.lane must be one of {', '.join((AUTO, ALL, *LANES))}, not {lane!r}")


def of_lane(experiment: Experiment, lane: str) -> Experiment:
    """The part of an experiment whose runs go in a lane; all of it for `auto` and `all`."""
    if lane not in LANES:
        return experiment
    cells = tuple(cell for cell in experiment.cells if cell.bound_by == lane)
    return replace(experiment, title=f"{experiment.title}, {lane.upper()} lane", cells=cells)


def are_possible(machine: DictConfig, launcher: DictConfig) -> bool:
    """Whether this is a GPU machine whose sweep has no launcher or ranks of the user's choice."""
    if machine.lane != AUTO or machine.device == "cpu" or "RANK" in os.environ:
        return False
    return launcher._target_.endswith("BasicLauncher") and has_gpu()


def has_gpu() -> bool:
    """Asked of NVIDIA's management library: CUDA itself would, once started, no longer find MPS."""
    import torch

    return torch.cuda.device_count() > 0


def jobs_at_a_time(cells: Iterable[Cell], cores: int) -> int:
    """Runs of these cells that so many CPU cores can carry side by side: at least one."""
    return max(1, cores // max(cell.cores for cell in cells))


def describe(gpu_bound: int, cpu_bound: int, cells: Iterable[Cell], cores: int) -> str:
    """How many runs go in which lane, in one line or two.

    cells:  those of the CPU lane
    """
    cells = list(cells)
    names, needed = ", ".join(dict.fromkeys(cell.task for cell in cells)), max(cell.cores for cell in cells)
    jobs = jobs_at_a_time(cells, cores)
    at_a_time = f"{jobs} at a time on {cores} CPU cores" if jobs > 1 else "one at a time"
    beside = f"{cpu_bound} runs of {names}, {at_a_time}"
    if gpu_bound:
        beside = f"two lanes: {gpu_bound} runs one after another on the GPU, and beside them {beside}"
    lines = [f"{beside} (machine.lane=all for a single lane)"]
    if needed > cores:
        lines.append(f"a run of {names} keeps {needed} CPU cores busy, and this machine has {cores}: one at a time")
    return "\n".join(lines)


def command(lane: str, jobs: int, words: Sequence[str]) -> list[str]:
    """What starts a lane: this program with its own arguments and these words."""
    dropped = ("hydra/launcher=", "machine.lane=")
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith(dropped)]
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if lane == "cpu" else []
    return [sys.executable, sys.argv[0], *arguments, f"machine.lane={lane}", *launcher, *words]


def run_side_by_side(commands: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Run the lanes to their ends and return their exit statuses; a signal to this process is one to all of them.

    Signals are passed on as SIGTERM: Ctrl-C in a terminal reaches the lanes by itself as well, and a second SIGINT
    would end them at once instead of having them checkpoint.
    """
    environment = {**os.environ, CHILD: str(os.getpid())}
    children: dict[str, subprocess.Popen[bytes]] = {}
    asked = threading.Event()

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.set()
        for child in children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    own_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGINT) if own_thread else ()
    before = {number: signal.signal(number, pass_on) for number in signals}
    try:
        for lane, words in commands.items():
            if not asked.is_set():
                children[lane] = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
        _wait(children)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # A lane that is asked to stop before it listens has not begun any run.
    as_asked = -signal.SIGTERM if asked.is_set() else 0
    return {lane: 0 if child.returncode == as_asked else child.returncode for lane, child in children.items()}


def _wait(children: Mapping[str, "subprocess.Popen[bytes]"]) -> None:
    going = dict(children)
    while going:
        time.sleep(POLL_SECONDS)
        for lane in [lane for lane, child in going.items() if child.poll() is not None]:
            status = going.pop(lane).returncode
            if status and going:
                rest = " and ".join(going)
                print(
                    f"the {lane} lane ended with status {status}; the {rest} lane goes on", file=sys.stderr, flush=True
                )


def stop_with_parent() -> None:
    """In a lane: have this process checkpoint and stop when the process that started it is gone, however it ended."""
    if os.environ.get(CHILD) != str(os.getppid()):
        return

    def watch() -> None:
        while os.read(0, 1):  # standard input is a pipe from the parent, which never writes
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch the sweep that started this lane", daemon=True).start()
