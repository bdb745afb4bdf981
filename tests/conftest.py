"""Fixtures, helpers and marks shared by all tests."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest

# Tests are small and may run in parallel, where more threads would only compete. Set before torch is imported, because
# its matrix library reads the number of threads only once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

from nero.cli.main import main as nero_main
from nero.runs.store import Store

# Property tests draw the same examples every time and have no deadline.
settings.register_profile("nero", deadline=None, derandomize=True)
settings.load_profile("nero")

# Not the folder of whoever runs the tests, and none at first.
os.environ["NERO_LOCAL"] = str(Path(tempfile.gettempdir()) / f"nero-tests-{os.getpid()}" / "local")

# Without a GPU, kernels are tested in Triton's interpreter. Set before Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]  # the documentation
# Overrides for the smallest run that still trains. Tests never share a store, so run ids may repeat.
SMALL = (
    "data=embedded",
    "task.train_examples=300",
    "task.batch_size=50",
    "task.epochs=2",
    "task.depth=3",
    "machine=cpu",
)
# Overrides for a small run of Pong; no game ends within these few steps.
SMALL_PONG = (
    "machine=cpu",
    "task.environments=2",
    "task.steps=4",
    "task.update_epochs=1",
    "task.minibatches=1",
    "task.network.hidden=4",
)


# Folders in which every test is slow: complete pipelines, kills and full disks, a browser.
SLOW_FOLDERS = {"integration", "faults", "browser"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = None if torch.cuda.is_available() else pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker(pytest.mark.slow)
        if no_gpu and "gpu" in item.keywords:
            item.add_marker(no_gpu)


def slow_after(fast: int, values: Iterable[object]) -> list[object]:
    """Parameter values: `make test` uses only the first `fast` of them, `make test-all` uses all."""
    return [
        value if place < fast else pytest.param(value, marks=pytest.mark.slow) for place, value in enumerate(values)
    ]


@pytest.fixture
def small() -> list[str]:
    return list(SMALL)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "runs")


@pytest.fixture
def nero_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Function that runs `nero` with the test's own store and data: nero_command("train", "seed=1")."""

    def run(name: str, *words: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nero.cli.main", name, *words],
            cwd=ROOT,
            env=script_environment(tmp_path) | env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def script_environment(tmp_path: Path) -> dict[str, str]:
    own = {"NERO_RUNS": str(tmp_path / "runs"), "NERO_DATA": str(tmp_path / "data")}
    own["NERO_LOCAL"] = str(tmp_path / "local")
    return {**os.environ, **own}


def tracked_yaml(folder: str) -> set[str] | None:
    """Names of a folder's YAML files that git tracks, since users may add their own; None outside a git checkout."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
    found = {Path(path).stem for path in listed.stdout.splitlines() if path.endswith(".yaml")}
    return found if listed.returncode == 0 else None


def bench_module(name: str) -> ModuleType:
    """A file of benchmarks/ as a new module, which a test may modify: bench_module("optim")."""
    return _module(f"bench_{name}", ROOT / "benchmarks" / f"{name}.py")


def script_module(name: str) -> ModuleType:
    """A file of scripts/ as a new module: script_module("report")."""
    return _module(name, ROOT / "scripts" / f"{name}.py")


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exit_status(name: str, words: list[str]) -> object:
    """Exit status of a benchmark or `nero` command: argparse raises SystemExit for its errors, ours are returned."""
    try:
        own = name.startswith("benchmarks.")
        return bench_module(name.removeprefix("benchmarks.")).main(words) if own else nero_main([name, *words])
    except SystemExit as stop:
        return stop.code
