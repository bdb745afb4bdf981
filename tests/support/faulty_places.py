"""Helpers of the fault tests: half-second runs, the logs of undisturbed runs, small disks and other hosts."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from conftest import SMALL
from nero.plans.config import RunConfig, compose
from nero.runs.store import Record, RunDirectory, Store
from nero.train.run import train
from support.killed_children import in_store
from support.toy import without_times

# A checkpoint after every step, so that kills hit every stage of writing one.
WORDS = (*SMALL, "task.depth=2", "machine.threads=1", "machine.checkpoint_seconds=0")
PLAN: tuple[tuple[str, ...], ...] = tuple(
    (f"optim={optim}", f"seed={seed}") for optim in ("nero", "sgd") for seed in (0, 1)
)
"""Overrides that identify each run."""

EXPERIMENT = f"""title: "Runs that are killed"
overrides: {json.dumps(WORDS)}
rows:
  - {{task: mnist_mlp100, optim: nero, lr: [0.01], repeat_seeds: [1]}}
  - {{task: mnist_mlp100, optim: sgd, lr: [0.1], repeat_seeds: [1]}}
"""
"""The same runs as PLAN."""

Properties = Callable[[str, object], None]
"""pytest's `record_property`."""


def run_of(store: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    config = in_store(_composed(*words), store)
    return config, Store(store).run(config.task_name, config.run_id)


@cache
def _composed(*words: str) -> RunConfig:
    return compose([*WORDS, *words])


def plan_of(store: Path) -> list[RunDirectory]:
    return [run_of(store, *words)[1] for words in PLAN]


@cache
def undisturbed(*words: str) -> list[Record]:
    """The log of a run without faults, without its times."""
    with tempfile.TemporaryDirectory() as folder:
        config, run = run_of(Path(folder), *words, "machine.checkpoint_seconds=3600")
        assert train(config)["status"] == "done"
        return without_times(run.read_metrics())


def is_as_undisturbed(run: RunDirectory, *words: str) -> bool:
    """Whether the run is done and its log and final metrics equal those of an undisturbed run exactly."""
    summary = run.read_summary()
    if summary is None or summary["status"] != "done":
        return False
    expected = undisturbed(*words)
    final = {key: value for key, value in expected[-1].items() if "/" in key}
    ended = {key: summary["final_metrics"].get(key) for key in final}
    return without_times(run.read_metrics()) == expected and ended == final


def contents(run: RunDirectory) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file of a run except the lock, keyed by relative path."""
    files = (path for path in sorted(run.path.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(run.path)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def assert_in_order(run: RunDirectory) -> None:
    """Check what must hold after any fault: log lines in order and unique, no partial files, and no held lock."""
    epochs = [record["epoch"] for record in run.read_metrics()]
    assert epochs == list(range(1, 1 + len(epochs)))
    assert not list(run.path.rglob("*.part"))
    assert not run.is_held()


def repetitions(default: int, share: float = 1.0) -> int:
    """The number of repetitions: this share of NERO_FAULT_REPETITIONS if it is set, else `default`."""
    given = os.environ.get("NERO_FAULT_REPETITIONS")
    return max(1, round(share * int(given))) if given else default


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a small tmpfs that a test can fill or make read-only; skip the test where this is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    folder.mkdir()
    mounted = mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *words], capture_output=True, text=True)


def fill(disk: Path, left: int) -> Path:
    """Write a file that leaves `left` bytes free, rounded to pages."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)
    return ballast


def other_host(command: Sequence[str], name: str = "elsewhere") -> list[str]:
    """The command, wrapped to run under another host name; skips the test where this is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be a host of another name")
    tried = subprocess.run(["unshare", "--uts", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no host of another name can be made here: {tried.stderr.strip()}")
    return ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh", *command]
