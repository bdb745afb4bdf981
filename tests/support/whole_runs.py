"""Helpers for tests of tasks that train complete runs."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nero.engine.loop import Loop
from nero.plans.config import ConfigError, RunConfig, compose
from nero.runs.store import RunDirectory, Store
from nero.train.run import train
from support.toy import without_times

LANGUAGE_RATES = {"nero": 1e-3, "sgd": 1e-3, "adam": 1e-4, "lamb": 1e-3}
"""Learning rates at which GPU and CPU runs of language tasks are comparable."""


def prepare(tmp_path: Path, task: str, *words: str) -> tuple[RunConfig, RunDirectory]:
    config = compose([f"task={task}", "data=embedded", "machine=cpu", f"store={tmp_path}", *words])
    return config, Store(tmp_path).run(task, config.run_id)


def final_weights(run: RunDirectory) -> list[Tensor]:
    """The weights of all networks in the last checkpoint."""
    data = run.load_checkpoint()
    assert data is not None
    networks = torch.load(io.BytesIO(data), weights_only=True)["networks"]
    return [weight for state in networks.values() for weight in state.values()]


def assert_cut_runs_go_on(tmp_path: Path, task: str, *words: str) -> None:
    """A run that is interrupted within or after its second epoch must log and end like an uninterrupted one."""
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


def train_until(config: RunConfig, updates: int) -> None:
    """Interrupt a run after `updates` epochs; its task must allow stops only between epochs."""
    looks = iter(range(1000))  # one check before the first epoch, and one after each
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nero.engine.loop.stop_reason", lambda deadline: "enough" if next(looks) == updates else None)
        assert train(config)["status"] == "interrupted"


def assert_follows_the_cpu(
    tmp_path: Path, task: str, rate: float, words: Sequence[str], gpu: Sequence[str] = ()
) -> None:
    """Final weights on GPU and CPU must agree to 4% of the distance trained; a skipped or stale step would show.

    rate:  learning rate, small enough that rounding errors do not grow
    gpu:   overrides for the GPU run only
    It trains for four epochs, because the graph of a shape that occurs once per epoch is captured in the third.
    """
    ends = {}
    for machine, lr in (("start", 1e-12), ("cpu", rate), ("gpu", rate)):
        where = ["machine=gpu", *gpu] if machine == "gpu" else []
        settings = ["precision=fp32", f"optim.lr={lr}", "task.epochs=4"]
        config, run = prepare(tmp_path / machine, task, *words, *settings, *where)
        assert train(config)["status"] == "done"
        ends[machine] = torch.cat([weight.double().flatten().cpu() for weight in final_weights(run)])
    way, difference = (ends["cpu"] - ends["start"]).norm(), (ends["gpu"] - ends["cpu"]).norm()
    assert way > 1e-5 * ends["start"].norm(), "far beyond rounding"
    assert difference < 0.04 * way, f"{difference / way:.3g} of the way"


def assert_one_line(tmp_path: Path, task: str, words: Sequence[str], message: str) -> None:
    """An invalid setting must raise a one-line `ConfigError` before the run starts; nothing may be logged."""
    with pytest.raises(ConfigError, match=message) as error:
        train(prepare(tmp_path, task, *words)[0])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("summary.json"))


def trained(store: Path, words: Sequence[str]) -> RunDirectory:
    """Train a run to its end and return its directory."""
    config = compose([*words, f"store={store}"])
    assert train(config)["status"] == "done"
    return Store(store).run(config.task_name, config.run_id)


def assert_only_runs_of_a_kind(
    main: Callable[[list[str]], int], run: RunDirectory, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script for trained runs must report a run of another task and a run without a checkpoint."""
    other = RunDirectory(tmp_path / "other")
    other.path.mkdir()
    config = run.read_config()
    target = {"_target_": "nero.tasks.translation.Translation"}
    other.write_config({**config, "task_name": "multi30k_transformer", "task": target})
    assert main([str(other.path)]) == 2
    assert f"is a run of multi30k_transformer, not of a {kind} task" in capsys.readouterr().err
    other.write_config(config)
    assert main([str(other.path)]) == 2
    assert "other has no checkpoint" in capsys.readouterr().err
