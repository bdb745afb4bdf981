"""What the tests of both language tasks do with whole runs."""

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nero.engine.loop import Loop
from nero.plans.config import RunConfig, compose
from nero.runs.store import RunDirectory, Store
from nero.train import train
from toy import without_times


def prepare(tmp_path: Path, task: str, *words: str) -> tuple[RunConfig, RunDirectory]:
    config = compose([f"task={task}", "data=embedded", "machine=cpu", f"store={tmp_path}", *words])
    return config, Store(tmp_path).run(task, config.run_id)


def final_weights(run: RunDirectory) -> list[Tensor]:
    data = run.load_checkpoint()
    assert data is not None
    return list(torch.load(io.BytesIO(data), weights_only=True)["networks"]["network"].values())


def assert_cut_runs_go_on(tmp_path: Path, task: str, *words: str) -> None:
    """Cut in the middle of its second epoch and at its end, a run logs and ends as one that was not."""
    config, whole = prepare(tmp_path / "whole", task, *words)
    train(config)
    records = whole.read_metrics()
    steps = records[0]["step"]
    assert steps > 2

    class Cut(Exception):
        pass

    save = Loop.checkpoint
    for step in (steps + steps // 2, 2 * steps):

        def save_and_fail(self: Loop, step: int = step) -> None:
            save(self)
            if self.position.total_steps == step:
                raise Cut

        config, run = prepare(tmp_path / str(step), task, *words, "machine.checkpoint_seconds=0")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loop, "checkpoint", save_and_fail)
            assert train(config)["status"] == "failed"
        assert train(config)["status"] == "done"
        assert without_times(run.read_metrics()) == without_times(records)
        for ours, theirs in zip(final_weights(run), final_weights(whole), strict=True):
            assert torch.equal(ours, theirs)


RATES = {"nero": 1e-3, "sgd": 1e-3, "adam": 1e-4, "lamb": 1e-3}
"""So small that a rounding error stays one."""


def assert_follows_the_cpu(tmp_path: Path, task: str, optim: str, *words: str, compiled: bool = False) -> None:
    """Weights at the end, in units of how far they have come: a step that is left out or stale would show.

    Four epochs: the graph of a shape that an epoch has once is captured in the third.
    """
    shared = [*words, f"optim={optim}", "precision=fp32", "task.network.dropout=0", "task.epochs=4"]
    ends = {}
    for machine, lr in (("start", 1e-12), ("cpu", RATES[optim]), ("gpu", RATES[optim])):
        where = ["machine=gpu", f"machine.compile={str(compiled).lower()}"] if machine == "gpu" else ["machine=cpu"]
        config, run = prepare(tmp_path / machine, task, *shared, *where, f"optim.lr={lr}")
        assert train(config)["status"] == "done"
        ends[machine] = torch.cat([weight.double().flatten().cpu() for weight in final_weights(run)])
    way, difference = (ends["cpu"] - ends["start"]).norm(), (ends["gpu"] - ends["cpu"]).norm()
    assert way > 1e-5 * ends["start"].norm(), "far beyond rounding"
    assert difference < 0.04 * way, f"{difference / way:.3g} of the way"
