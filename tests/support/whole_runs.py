"""What tests of tasks do with whole runs."""

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
"""At which a language task's run on a GPU can be compared with one on a CPU."""


def prepare(tmp_path: Path, task: str, *words: str) -> tuple[RunConfig, RunDirectory]:
    config = compose([f"task={task}", "data=embedded", "machine=cpu", f"store={tmp_path}", *words])
    return config, Store(tmp_path).run(task, config.run_id)


def final_weights(run: RunDirectory) -> list[Tensor]:
    """Of all networks."""
    data = run.load_checkpoint()
    assert data is not None
    networks = torch.load(io.BytesIO(data), weights_only=True)["networks"]
    return [weight for state in networks.values() for weight in state.values()]


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


def train_until(config: RunConfig, updates: int) -> None:
    """Stop a run that looks between its epochs alone after so many of them."""
    looks = iter(range(1000))  # one before the first, and one after each
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nero.engine.loop.stop_reason", lambda deadline: "enough" if next(looks) == updates else None)
        assert train(config)["status"] == "interrupted"


def assert_follows_the_cpu(
    tmp_path: Path, task: str, rate: float, words: Sequence[str], gpu: Sequence[str] = ()
) -> None:
    """Weights at the end, in units of how far they have come: a step that is left out or stale would show.

    rate:  so small that a rounding error stays one
    gpu:   words for the GPU alone
    Four epochs: the graph of a shape that an epoch has once is captured in the third.
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
    """An invalid setting is refused in one line, when it is composed or when the run is built; nothing is logged."""
    with pytest.raises(ConfigError, match=message) as error:
        train(prepare(tmp_path, task, *words)[0])
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("summary.json"))


def trained(store: Path, words: Sequence[str]) -> RunDirectory:
    """A run that is done and kept its checkpoint."""
    config = compose([*words, f"store={store}"])
    assert train(config)["status"] == "done"
    return Store(store).run(config.task_name, config.run_id)


def assert_only_runs_of_a_kind(
    main: Callable[[list[str]], int], run: RunDirectory, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that looks at trained runs says so of one of another task, and of one without a checkpoint."""
    other = RunDirectory(tmp_path / "other")
    other.path.mkdir()
    config = run.read_config()
    target = {"_target_": "nero.tasks.translation.Translation"}
    other.write_config({**config, "task_name": "multi30k_transformer", "task": target})
    assert main([str(other.path)]) == 2
    assert f"is a run of multi30k_transformer, not of a {kind} task" in capsys.readouterr().err
    other.write_config(config)
    assert main([str(other.path)]) == 2
    assert "other kept no checkpoint" in capsys.readouterr().err
