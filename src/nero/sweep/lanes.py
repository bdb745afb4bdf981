"""Two lanes on one GPU machine: CPU-bound runs go beside GPU-bound ones.

A lane is a sweep in a child process: the same command with `machine.lane=gpu` or `machine.lane=cpu`, which leaves out
the runs of the other lane. The lanes share the store and never wait for a run of the other.
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

from nero.plans.plan import Cell, Experiment
from nero.plans.schema import LANES
from nero.sweep.launching import signal_handler

PARENT = "NERO_LANE_OF"  # environment variable of a lane: the id of the process that started it
POLL_SECONDS = 0.2


def restrict(experiment: Experiment, lane: str) -> Experiment:
    """The part of an experiment whose runs go in a lane; all of it for `auto` and `all`."""
    if lane not in LANES:
        return experiment
    cells = tuple(cell for cell in experiment.cells if cell.bound_by == lane)
    return replace(experiment, title=f"{experiment.title}, {lane.upper()} lane", cells=cells)


def are_enabled(machine: DictConfig, launcher: DictConfig) -> bool:
    """Whether the user has chosen neither a CPU nor a lane nor a launcher nor ranks."""
    if machine.lane != "auto" or machine.device == "cpu" or "RANK" in os.environ:
        return False
    return bool(launcher._target_.endswith("BasicLauncher"))


def has_gpu() -> bool:
    """From NVIDIA's management library: once CUDA itself is initialised, it would no longer find MPS."""
    import torch

    return torch.cuda.device_count() > 0


def jobs_at_a_time(cells: Iterable[Cell], cores: int) -> int:
    """How many runs of these cells fit side by side on the CPU cores: at least one."""
    return max(1, cores // max(cell.cores for cell in cells))


def describe(gpu_bound: int, cpu_bound: int, cells: Sequence[Cell], cores: int) -> str:
    """The number of runs in each lane; `cells` are those of the CPU lane."""
    names, needed = ", ".join(dict.fromkeys(cell.task for cell in cells)), max(cell.cores for cell in cells)
    jobs = jobs_at_a_time(cells, cores)
    at_a_time = f"{jobs} at a time on {cores} CPU cores" if jobs > 1 else "one at a time"
    text = f"{cpu_bound} runs of {names}, {at_a_time}"
    if gpu_bound:
        text = f"two lanes: {gpu_bound} runs one after another on the GPU, and beside them {text}"
    text += " (machine.lane=all for a single lane)"
    if needed > cores:
        text += f"\na run of {names} keeps {needed} CPU cores busy, and this machine has {cores}: one at a time"
    return text


def command(lane: str, jobs: int, overrides: Sequence[str]) -> list[str]:
    """The command that starts a lane: this program with its own arguments and these overrides."""
    dropped = ("hydra/launcher=", "machine.lane=")
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith(dropped)]
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={jobs}"] if lane == "cpu" else []
    return [sys.executable, sys.argv[0], *arguments, f"machine.lane={lane}", *launcher, *overrides]


def run_side_by_side(commands: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Run the lanes to their ends and return their exit statuses. SIGTERM and SIGINT are passed on to all of them.

    They are passed on as SIGTERM: Ctrl-C in a terminal reaches the lanes by itself as well, and a second SIGINT would
    end them at once instead of letting them checkpoint.
    """
    environment = {**os.environ, PARENT: str(os.getpid())}
    children: dict[str, subprocess.Popen[bytes]] = {}
    stopping = threading.Event()

    def pass_on(number: int, frame: FrameType | None) -> None:
        stopping.set()
        for child in children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)

    with signal_handler(pass_on):
        for lane, words in commands.items():
            if not stopping.is_set():
                children[lane] = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
        running = dict(children)
        while running:
            time.sleep(POLL_SECONDS)
            for lane in [lane for lane, child in running.items() if child.poll() is not None]:
                status = running.pop(lane).returncode
                if status and running:
                    message = f"the {lane} lane ended with status {status}; the {' and '.join(running)} lane continues"
                    print(message, file=sys.stderr, flush=True)
    # A lane that got SIGTERM before it handled signals had not started any run.
    stopped = -signal.SIGTERM if stopping.is_set() else 0
    return {lane: 0 if child.returncode == stopped else child.returncode for lane, child in children.items()}


def stop_with_parent() -> None:
    """In a lane: checkpoint and stop when the process that started it is gone, however it ended."""
    if os.environ.get(PARENT) != str(os.getppid()):
        return

    def watch() -> None:
        while os.read(0, 1):  # standard input is a pipe from the parent, which never writes
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="watch the sweep that started this lane", daemon=True).start()
