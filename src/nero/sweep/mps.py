"""NVIDIA's Multi-Process Service for the time of a sweep: runs side by side on a GPU then compute at the same time.

Without it they take turns. It is a daemon of one's own, told apart from any other by its folder, which processes find
by an environment variable.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from nero.plans.config import ConfigError

CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 10
"""Seconds that the daemon waits for its last processes before it ends them."""

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
ON_THIS_MACHINE = ("JoblibLauncher", "LocalLauncher", "RayLauncher")
"""Launchers whose jobs run side by side where the sweep is; those of a cluster's have their own GPUs."""


def is_wanted(machine: DictConfig, launcher: DictConfig, side_by_side: bool = False) -> bool:
    """ConfigError where it is asked for and cannot be.

    side_by_side:  whether several runs share a GPU whatever the launcher says
    """
    if machine.mps not in (True, False, "auto"):
        raise ConfigError(f"machine.mps must be auto, true or false, not {machine.mps!r}")
    if machine.mps is True:
        if shutil.which(CONTROL) is None:
            raise ConfigError(f"machine.mps=true needs {CONTROL}, which comes with NVIDIA's driver, on PATH")
        return True
    side_by_side |= launcher._target_.endswith(ON_THIS_MACHINE) and launcher.get("n_jobs") != 1
    return bool(machine.mps) and side_by_side and machine.device != "cpu" and shutil.which(CONTROL) is not None


@contextmanager
def served(wanted: bool) -> Iterator[None]:
    """Have processes that are started within share their GPUs, if `wanted`; where someone serves already, by that."""
    if not wanted or PIPES in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="nero-mps-", ignore_cleanup_errors=True) as folder:
        own = {PIPES: str(Path(folder, "pipes")), LOGS: str(Path(folder, "logs"))}
        for path in own.values():
            Path(path).mkdir()
        os.environ.update(own)
        started = False
        try:
            started = _control("-d")
            if not started:
                print(f"{CONTROL} did not start: runs take turns on a GPU", file=sys.stderr)
                _forget(own)
            yield
        finally:
            if started and not _control(said=f"quit -t {PATIENCE}\n"):
                print(f"{CONTROL} did not end", file=sys.stderr)
            _forget(own)


def _forget(names: Iterable[str]) -> None:
    for name in names:
        os.environ.pop(name, None)


def _control(*words: str, said: str = "") -> bool:
    try:
        done = subprocess.run([CONTROL, *words], input=said, text=True, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
