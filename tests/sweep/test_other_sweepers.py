"""Sweepers of others, such as Optuna's: each job returns the run's final metric as a number, or raises."""

import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from conftest import SMALL
from nero.cli import train as command
from nero.engine import interrupt
from nero.plans.config import compose
from nero.runs.store import RunDirectory, Store
from nero.sweep.library_internals import register_sweeper


class ThirdParty(Sweeper):
    """Tries learning rates in turn, as sweepers that search do: by `job.return_value`, which raises if a job failed."""

    found: list[float]  # of the last sweep

    def __init__(self, rates: list[float], direction: str) -> None:
        self.rates = rates

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments: list[str]) -> None:
        ThirdParty.found = []
        for number, rate in enumerate(self.rates):
            [job] = self.launcher.launch([[*arguments, f"optim.lr={rate}"]], initial_job_idx=number)
            ThirdParty.found.append(float(job.return_value))


def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: str, *words: str) -> list[float]:
    node = {"_target_": f"{__name__}.ThirdParty", "rates": [], "direction": "maximize"}
    ConfigStore.instance().store(group="hydra/sweeper", name="third_party", node=node)
    register_sweeper(ThirdParty)
    monkeypatch.setattr(sys, "argv", sys.argv)
    own = ["hydra/sweeper=third_party", f"hydra.sweeper.rates=[{rates}]", f"hydra.sweep.dir={tmp_path / 'outputs'}"]
    assert command.start(["--multirun", *own, *SMALL, f"store={tmp_path / 'runs'}", *words]) == 0
    return ThirdParty.found


def runs(tmp_path: Path) -> dict[str, dict[str, Any]]:
    return Store(tmp_path / "runs").summaries()


def test_sweeper_gets_final_metric_also_of_logged_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sweep(tmp_path, monkeypatch, "0.01,0.02")
    logged = runs(tmp_path)
    finals = {summary["lr"]: summary["final"] for summary in logged.values()}
    assert found == [finals[0.01], finals[0.02]]
    assert found[0] != found[1]
    assert sweep(tmp_path, monkeypatch, "0.01,0.02") == found
    assert runs(tmp_path) == logged


def test_diverged_run_has_the_worst_value_and_the_sweep_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sweep(tmp_path, monkeypatch, "1e30,0.01", "optim=sgd")
    assert first == -math.inf  # of an accuracy
    assert math.isfinite(second)
    diverged = {"run_id": "x", "status": "diverged", "final": None, "metric": {"key": "val/error", "goal": "min"}}
    assert command.objective(diverged) == math.inf


def test_failed_run_raises_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nero.tasks.classification.Classification.evaluate", lambda self: 1 / 0)
    with pytest.raises(SystemExit, match=r"^error: mnist_mlp100-nero-0.01-\S+: ZeroDivisionError: division by zero$"):
        sweep(tmp_path, monkeypatch, "0.01,0.02")
    assert "Traceback" in capsys.readouterr().err
    assert [summary["status"] for summary in runs(tmp_path).values()] == ["failed"]


def test_refused_run_raises_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"^error: .*: optim: beta must be in \[0, 1\), not 2"):
        sweep(tmp_path, monkeypatch, "0.01", "optim.beta=2")


def test_busy_run_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*SMALL, "optim.lr=0.01"])
    run = RunDirectory(tmp_path / "runs" / config.task_name / config.run_id)
    with run.exclusive(), pytest.raises(SystemExit, match="is being written by process"):
        sweep(tmp_path, monkeypatch, "0.01")


def test_interrupted_run_ends_the_sweep_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "_requested", "SIGINT")
    with pytest.raises(SystemExit, match=r"^mnist_mlp100-nero-0.01-\S+ stopped \(SIGINT\), and the sweep with it$"):
        sweep(tmp_path, monkeypatch, "0.01,0.02")
    assert ThirdParty.found == []


def test_run_without_its_metric_raises() -> None:
    metric = {"key": "fid", "goal": "min"}
    outcome = {"run_id": "x", "status": "done", "final": None, "final_metrics": {"loss": 1.0}, "metric": metric}
    with pytest.raises(command.RunFailed, match="x: it ended without its metric"):
        command.objective(outcome)


def test_wrong_direction_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"train/accuracy needs hydra\.sweeper\.direction=maximize"):
        sweep(tmp_path, monkeypatch, "0.01", "hydra.sweeper.direction=minimize")


@pytest.mark.parametrize("word", ["experiment=mnist", "only.optim=sgd"])
def test_experiments_are_not_for_other_sweepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    with pytest.raises(SystemExit, match=r"error: .*experiment"):
        sweep(tmp_path, monkeypatch, "0.01", word)
    assert runs(tmp_path) == {}


def test_learning_rates_that_print_alike_have_ids_of_their_own() -> None:
    rates = [0.015676677195506, 0.0156766771955061, 0.01567667719550607]
    ids = {compose([*SMALL, f"optim.lr={rate!r}"]).run_id for rate in rates}
    assert len(ids) == len(rates)
    assert len({run_id.rpartition("-")[0] for run_id in ids}) == 1


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("hydra_plugins.hydra_optuna_sweeper") is None, reason="needs Hydra's plugin hydra-optuna-sweeper"
)
def test_optuna_searches_the_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    sweeper = {"n_trials": 3, "direction": "maximize", "sampler.seed": 0}
    words = ["--multirun", "hydra/sweeper=optuna", *(f"hydra.sweeper.{key}={value}" for key, value in sweeper.items())]
    words += ["optim.lr=tag(log, interval(1e-4, 1))", f"hydra.sweep.dir={tmp_path / 'outputs'}"]
    words += [*SMALL, f"store={tmp_path / 'runs'}"]
    assert command.start(words) == 0
    logged = runs(tmp_path)
    best = yaml.safe_load((tmp_path / "outputs" / "optimization_results.yaml").read_text())
    assert len(logged) == 3
    assert best["best_value"] == max(summary["final"] for summary in logged.values())
    assert command.start(words) == 0  # the same seed draws the same learning rates
    assert runs(tmp_path) == logged
