"""NVIDIA's Multi-Process Service during a sweep: runs side by side on a GPU then compute at the same time.

Without it they take turns. Each sweep has a daemon of its own in a folder of its own, which processes find by an
environment variable.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omegaconf import DictConfig

from nero.plans.config import ConfigError

CONTROL = "nvidia-cuda-mps-control"
QUIT_SECONDS = 10  # how long the daemon waits for its last processes before it ends them
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# Launchers whose jobs run side by side on this machine. Jobs of a cluster have their own GPUs.
ON_THIS_MACHINE = ("JoblibLauncher", "LocalLauncher", "RayLauncher")


def is_wanted(machine: DictConfig, launcher: DictConfig, side_by_side: bool = False) -> bool:
    """Raises ConfigError if it is asked for and not available.

    side_by_side:  whether several runs share a GPU, whatever the launcher
    """
    available = shutil.which(CONTROL) is not None
    if machine.mps is True:
        if not available:
            raise ConfigError(f"machine.mps=true needs {CONTROL}, which comes with NVIDIA's driver, on PATH")
        return True
    side_by_side |= launcher._target_.endswith(ON_THIS_MACHINE) and launcher.get("n_jobs") != 1
    return bool(machine.mps) and side_by_side and machine.device != "cpu" and available


@contextmanager
def daemon(wanted: bool) -> Iterator[None]:
    """Run the daemon, if `wanted` and none is running, for processes that are started meanwhile."""
    if not wanted or PIPES in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="nero-mps-", ignore_cleanup_errors=True) as folder, ExitStack() as held:
        for variable, name in ((PIPES, "pipes"), (LOGS, "logs")):
            Path(folder, name).mkdir()
            os.environ[variable] = str(Path(folder, name))
            held.callback(os.environ.pop, variable, None)
        if _control("-d", problem="did not start: runs take turns on a GPU"):
            held.callback(_control, stdin=f"quit -t {QUIT_SECONDS}\n", problem="did not end")
        else:
            held.close()
        yield


def _control(*arguments: str, stdin: str = "", problem: str) -> bool:
    """Run NVIDIA's program; prints `problem` if it fails."""
    try:
        subprocess.run([CONTROL, *arguments], input=stdin, text=True, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        print(f"{CONTROL} {problem}", file=sys.stderr)
        return False
    return True
