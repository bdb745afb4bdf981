"""Which store a run goes to, and the user's own folder."""

import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, exit_status
from nero.cli.train import choices
from nero.plans import stores
from nero.plans.config import compose, config_file, names
from nero.plans.plan import load_experiment
from nero.plans.stores import store_of_experiment, store_of_run

PLANNED = ("task=mnist_mlp100", "optim=nero", "optim.lr=0.01")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with an optimiser, its settings for one task, and an experiment."""
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path))
    monkeypatch.delenv("NERO_RUNS", raising=False)
    files = {
        "configs/optim/own.yaml": "# Mine\n_target_: torch.optim.NAdam\n_partial_: true\nlr: 0.001\n",
        "configs/task_optim/mnist_mlp100/own.yaml": "eps: 0.5\n",
        "experiments/own.yaml": "title: mine\nrows: [{task: mnist_mlp100, optim: own, lr: [0.5], repeat_seeds: [3]}]\n",
        "experiments/broken.yaml": "title: [",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_configs_and_experiments_of_the_user_are_found(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["optim=own"])
    assert (config.optim_name, config.cfg.optim.eps) == ("own", 0.5)
    assert "own" in names("optim")
    assert config_file("optim", "own") == local / "configs/optim/own.yaml"
    assert config_file("optim", "adam") == ROOT / "configs/optim/adam.yaml"
    assert "  own                     Mine\n" in choices()
    assert "  own                     mine\n" in f"{choices()}\n"
    [cell] = load_experiment("own").cells
    assert cell.missing_config is None
    assert not load_experiment("own").is_shipped
    (local / "configs/task_optim/mnist_mlp100/own.yaml").write_text("eps: 0.25\n")
    assert compose(["optim=own"]).cfg.optim.eps == 0.25, "the cache of configs looks at these files too"
    monkeypatch.setenv("NERO_LOCAL", str(local / "nowhere"))
    assert "own" not in names("optim")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (PLANNED, "results/runs"),
        ((*PLANNED, "seed=1"), "results/runs"),  # a repeat
        (("optim=own", "optim.lr=0.5", "seed=3"), "results/runs"),  # of the user's experiment
        ((*PLANNED, "seed=77"), "local"),
        ((*PLANNED, "task.epochs=1"), "local"),
        (("optim=own", "optim.lr=0.25"), "local"),
        ((*PLANNED, "data=embedded"), "local"),
        ((*PLANNED, "data=embedded", "store=elsewhere"), "elsewhere"),
    ],
)
def test_runs_of_experiments_are_committed_and_trials_are_not(local: Path, words: tuple[str, ...], folder: str) -> None:
    expected = {"results/runs": ROOT / "results" / "runs", "local": local / "runs"}.get(folder, Path(folder))
    assert store_of_run(compose(words)).root == expected


def test_environment_variable_names_the_store(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_RUNS", "given")
    assert store_of_run(compose(PLANNED)).root == Path("given")
    assert store_of_experiment(load_experiment("smoke")).root == Path("given")
    assert store_of_experiment(load_experiment("smoke"), "other").root == Path("other")


def test_run_that_is_committed_already_stays_there(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "COMMITTED", local / "committed")
    config = compose([*PLANNED, "task.epochs=1"])
    assert store_of_run(config).root == local / "runs"
    (local / "committed" / "mnist_mlp100" / config.run_id).mkdir(parents=True)
    assert store_of_run(config).root == local / "committed"


def test_embedded_experiments_are_trials(local: Path) -> None:
    assert store_of_experiment(load_experiment("smoke")).root == local / "runs"
    assert store_of_experiment(load_experiment("mnist")).root == ROOT / "results" / "runs"
    assert store_of_experiment(load_experiment("mnist", ["data=embedded"])).root == local / "runs"


def test_git_ignores_the_users_folder() -> None:
    done = subprocess.run(["git", "check-ignore", "local/runs/x"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 1, "128: not a clone"


def test_report_of_own_experiment_stays_out_of_results(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("report", ["own", "--check"]) == 1
    assert f"{local / 'results' / 'tables' / 'own.md'} is missing" in capsys.readouterr().err
    trial = (local / "experiments" / "own.yaml").read_text() + "overrides: [data=embedded]\n"
    (local / "experiments" / "trial.yaml").write_text(trial)
    assert exit_status("report", ["trial", "own"]) == 2
    assert capsys.readouterr().err.startswith("error: these experiments have their runs in different stores: trial in ")
