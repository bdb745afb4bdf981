"""Runs leave no state behind in their process, neither for later runs nor for the user's program."""

import gc
import random
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ROOT, SMALL
from nero.engine.capture import no_garbage_collection
from nero.plans.config import compose
from nero.runs.store import Store
from nero.tasks.classification import Classification
from nero.train.run import train
from support.toy import without_times


def switches() -> dict[str, object]:
    cudnn = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "products": torch.get_float32_matmul_precision(),
        "cudnn": (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@pytest.mark.parametrize("end", ["done", "diverged", "failed", "skipped", "interrupted"])
def test_train_restores_global_torch_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    words = [*SMALL, f"store={tmp_path}", "precision=tf32", "machine.threads=2", "task.epochs=1"]
    words += {"diverged": ["optim=sgd", "optim.lr=1e30"], "interrupted": ["machine.deadline=1"]}.get(end, [])
    if end == "skipped":
        train(compose(words))
    evaluate = Classification.evaluate

    def meddling(self: Classification) -> dict[str, float]:
        """Changes global state, as a user's task might."""
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        if end == "failed":
            raise RuntimeError("no")
        return evaluate(self)

    monkeypatch.setattr(Classification, "evaluate", meddling)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = False
    before = switches()
    try:
        outcome = train(compose(words))
        assert switches() == before
    finally:
        torch.set_float32_matmul_precision("highest")
    assert outcome["status"] == ("done" if end == "skipped" else end)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_run_does_not_depend_on_earlier_runs_in_process(tmp_path: Path, precision: str) -> None:
    wanted = [*SMALL, "precision=fp32", "seed=1"]
    others = [
        [f"precision={precision}", "optim=sgd"],
        ["optim=sgd", "optim._target_=support.deadly.Leaving"],
        ["optim=sgd", "optim.lr=1e30"],
    ]
    logs = []
    for place, before in (("alone", []), ("after", others)):
        for words in before:
            train(compose([*SMALL, *words, f"store={tmp_path / place}"]))
        config = compose([*wanted, f"store={tmp_path / place}"])
        assert train(config)["status"] == "done"
        logs.append(without_times(Store(tmp_path / place).run(config.task_name, config.run_id).read_metrics()))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_collection_is_disabled_during_capture(was_on: bool) -> None:
    """Collecting the CUDA graphs of an earlier run during a capture would invalidate the capture."""
    (gc.enable if was_on else gc.disable)()
    try:
        with no_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        with pytest.raises(RuntimeError), no_garbage_collection():
            raise RuntimeError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


def test_failed_run_is_not_kept_alive_by_its_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = []

    def fail(self: Classification) -> dict[str, float]:
        tasks.append(weakref.ref(self))
        raise RuntimeError("no")

    monkeypatch.setattr(Classification, "evaluate", fail)
    gc.disable()  # only the run's own clean-up may free the task
    try:
        assert train(compose([*SMALL, f"store={tmp_path}"]))["status"] == "failed"
        assert tasks[0]() is None
    finally:
        gc.enable()


SPOILING = """
import sys, torch
from nero.plans.config import compose
from nero.tasks.classification import Classification
from nero.train.run import train

words = [*sys.argv[2:], f"store={sys.argv[1]}", "machine=gpu"]
evaluate = Classification.evaluate
def out_of_range(self):
    torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")].sum().item()
Classification.evaluate = out_of_range
print(train(compose(words))["status"])
Classification.evaluate = evaluate
outcome = train(compose([*words, "seed=1"]))
print(outcome["status"], outcome["message"])
"""


@pytest.mark.gpu
def test_run_after_cuda_context_loss_is_interrupted_not_failed(tmp_path: Path) -> None:
    words = [word for word in SMALL if word != "machine=cpu"]
    command = [sys.executable, "-c", SPOILING, str(tmp_path), *words]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "failed"
    assert said[1].startswith("interrupted mnist_mlp100-")
    assert said[1].endswith("failed and left this process without its GPU")


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_memory_is_released_after_run(tmp_path: Path, compiled: bool) -> None:
    """Libraries may keep some memory after the first run, but further runs must not add to it."""
    words = [word for word in SMALL if word != "machine=cpu"]
    kept = []
    for seed in range(20):
        machine = ["machine=gpu", f"machine.compile={compiled}"]
        train(compose([*words, f"store={tmp_path}", *machine, "precision=fp32", f"seed={seed}"]))
        torch.cuda.synchronize()
        kept.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(kept[1:])) == 1
    assert kept[-1] <= kept[0]
