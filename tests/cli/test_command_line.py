"""Tests of the command line: clear errors, subcommands, and sweeps that log to one store and skip finished runs."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT, exit_status
from nero.cli.main import COMMANDS
from nero.runs.store import Store

SHORT = ("task.epochs=1", "machine=cpu")
# One game and one optimiser step: the loss is that of the initial weights, so no learning rate can make a run diverge.
# Hydra first validates overrides against the config without an experiment, so the task with these keys is named here.
ONE_GAME = (
    "task=pong_ppo",
    "data=embedded",
    *(f"task.{name}=1" for name in ("environments", "update_epochs", "minibatches")),
    "task.steps=58",
    "task.network.hidden=8",
)
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(name, ["--help"]) == 0
    assert re.search(rf"^ *nero {name} ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["optim=nerro"], ["error: there is no optim=nerro (did you mean nero?); there are: ", "nero", "sgd"]),
        (["optim=torch.optim.NAdam"], ["there is no optim=torch", "; for a class: nero compare torch.optim.NAdam\n"]),
        (["mnist"], ["error: mnist is an experiment: nero sweep mnist\n"]),
        (["task=mnits"], ["error: there is no task=mnits", "mnist_mlp100", "mnist_reparam"]),
        (["optim.lrr=0.1"], ["error: there is no optim.lrr (did you mean lr?); there are: "]),
        (["optim.lr=-0.1"], ["error: optim.lr must be a positive number, not -0.1"]),
        (["machine=gpu", "data=embedded"], ["error: machine=gpu needs a CUDA GPU"]),
        (["machine=cpu"], ["error: mnist:", "nero data mnist"]),
        (["experiment=mnist"], ["error: experiment=NAME is a sweep: nero sweep mnist"]),
        (["only.optim=sgd"], ["error: only.task and only.optim choose a part of an experiment: nero sweep EXPERIMENT"]),
        (
            ["--multirun", "experiment=mnist", "only.optim=sdg"],
            ["error: only.optim: mnist has no 'sdg' (did you mean sgd?); it has: adam"],
        ),
        (
            ["--multirun", "machine.deadline=tomorrow"],
            ["error: machine.deadline must be null or Unix seconds, not 'tomorrow'"],
        ),
        (
            ["--multirun", "machine.budget_seconds=long"],
            ["error: machine.budget_seconds must be null or a non-negative number", "'long'"],
        ),
        (["--multirun", "machine.mps=maybe"], ["error: machine.mps must be auto, true or false, not 'maybe'"]),
        (["--multirun", "experiment=nope"], ["error: there is no experiment 'nope'; there are: ", "table1"]),
    ],
)
def test_invalid_arguments_give_clear_error_without_traceback(
    nero_command: Command, words: list[str], expected: list[str]
) -> None:
    result = nero_command("train", *words, CUDA_VISIBLE_DEVICES="")
    assert result.returncode != 0
    for text in expected:
        assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_multirun_logs_to_store_survives_failures_and_skips_finished_runs(
    nero_command: Command, small: list[str], tmp_path: Path
) -> None:
    words = ["--multirun", *small, "optim=nero,sgd"]
    first = nero_command("train", *words)
    assert first.returncode == 0, first.stderr
    summaries = Store(tmp_path / "runs").summaries()
    assert sorted((s["optim"], s["status"]) for s in summaries.values()) == [("nero", "done"), ("sgd", "done")]
    # A depth that is not a number is refused, and nothing of such a run is written.
    again = nero_command("train", *words, "task.depth=three,3")
    assert again.returncode == 1
    assert again.stderr.count("done (already)") == 2
    assert "2 of 4 runs failed" in again.stderr
    assert Store(tmp_path / "runs").summaries() == summaries


@pytest.mark.slow
def test_sweep_goes_on_after_optimiser_that_calls_sys_exit(
    nero_command: Command, small: list[str], tmp_path: Path
) -> None:
    text = (ROOT / "configs" / "optim" / "sgd.yaml").read_text().replace("torch.optim.SGD", "support.deadly.Leaving")
    folder = tmp_path / "local" / "configs" / "optim"
    folder.mkdir(parents=True)
    (folder / "leaving.yaml").write_text(text)
    words = ["--multirun", *small, "optim=leaving,sgd"]
    result = nero_command("train", *words, PYTHONPATH=str(ROOT / "tests"))
    assert result.returncode == 1
    assert "1 of 2 runs failed" in result.stderr
    summaries = Store(tmp_path / "runs").summaries().values()
    assert {summary["optim"]: summary["status"] for summary in summaries} == {"leaving": "failed", "sgd": "done"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "launcher", "searched", "repeats", "other_seeds"),
    [
        (["smoke", *SHORT], [], 25, 4, 4),
        (["pong", *SHORT, *ONE_GAME], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], 23, 8, 10),
    ],
    ids=["basic", "joblib"],
)
def test_experiment_runs_until_nothing_is_pending(
    nero_command: Command,
    tmp_path: Path,
    experiment: list[str],
    launcher: list[str],
    searched: int,
    repeats: int,
    other_seeds: int,
) -> None:
    """Cells with a single learning rate need no search, so their other seeds are pending from the start."""
    name, *small = experiment
    words = ["--multirun", f"experiment={name}", *small, *launcher]
    planned = nero_command("plan", name, *small)
    assert planned.stdout.count("pending  ") == searched
    assert f"{searched} pending; {repeats} repeats to follow" in planned.stdout
    first = nero_command("train", *words)
    assert first.returncode == 0, first.stderr
    summaries = Store(tmp_path / "runs").summaries()
    assert len(summaries) == searched + repeats
    assert {s["status"] for s in summaries.values()} == {"done"}
    assert sum(s["seed"] != 0 for s in summaries.values()) == other_seeds
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json*")}
    second = nero_command("train", *words)
    assert second.returncode == 0
    assert f"{searched + repeats} runs done; 0 pending" in second.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json*")} == stamps


@pytest.mark.slow
def test_comma_separated_experiments_both_run(nero_command: Command, tmp_path: Path) -> None:
    small = ("data=embedded", "task.train_examples=100", "task.depth=2", "only.task=mnist_mlp100", "only.optim=sgd")
    both = nero_command("train", "--multirun", "experiment=smoke,mnist", *SHORT, *small)
    assert both.returncode == 0, both.stderr
    assert "smoke: All tasks on embedded data, only.task=mnist_mlp100 only.optim=sgd\n" in both.stderr
    assert "mnist: MNIST perceptrons (Figure 3), only.task=mnist_mlp100 only.optim=sgd\n" in both.stderr
    summaries = Store(tmp_path / "runs").summaries().values()
    assert {(s["task"], s["optim"]) for s in summaries} == {("mnist_mlp100", "sgd")}
    assert {s["lr"] for s in summaries} == {0.0001, 0.001, 0.01, 0.1}, (
        "two of smoke, which are mnist's here, and two more"
    )


@pytest.mark.slow
def test_sweep_stops_cleanly_when_time_budget_is_used_up(nero_command: Command, tmp_path: Path) -> None:
    words = ["--multirun", "experiment=smoke", *SHORT, "task.epochs=100000"]
    for budget in (6, 20, 60):  # on a busy machine the imports alone may use up the first budget
        stopped = nero_command("train", *words, f"machine.budget_seconds={budget}")
        assert stopped.returncode == 0, stopped.stderr
        assert "interrupted" in stopped.stderr
        assert "the same command continues" in stopped.stderr
        if statuses := {s["status"] for s in Store(tmp_path / "runs").summaries().values()}:
            break
    assert statuses == {"running"}
