"""`nero compare`: an optimiser of the user's own beside the shipped ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, exit_status
from nero.plans.comparison import cells_on, embedded_cells_on, shipped_cells
from nero.plans.config import names
from nero.plans.plan import Cell, load_experiment, survey
from nero.runs.store import Store

MODULE = """
import torch


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, decay=0.0):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["decay"]).sub_(param.grad.sign(), alpha=group["lr"])


class OfMatrices(SignDescent):
    def __init__(self, params, lr):
        params = list(params)
        if any(param.ndim < 2 for param in params):
            raise ValueError("only matrices")
        super().__init__(params, lr)


class WithoutRate(SignDescent):
    def __init__(self, params, rate):
        pass


class WithRequired(SignDescent):
    def __init__(self, params, rho, lr=0.1):
        super().__init__(params, lr)


NUMBER = 3
"""
TINY = ("task.epochs=1", "task.train_examples=100", "task.batch_size=50", "task.depth=2", "machine=cpu")


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of a test, which runs in a folder with a module of the user's."""
    (tmp_path / "own_optim.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "argv", ["nero"])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    monkeypatch.delenv("NERO_RUNS", raising=False)
    monkeypatch.delitem(sys.modules, "own_optim", raising=False)
    return tmp_path / "local"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.Lion"], "cannot import nowhere.Lion: No module named 'nowhere' in the current folder ("),
        (["own_optim.py"], "own_optim.py is a file: name a class in it, such as own_optim.MyOptimizer"),
        (["own_optim.WithRequired"], "own_optim.WithRequired needs an argument rho: give it as --set rho=VALUE"),
        (["own_optim.Lion"], "cannot import own_optim.Lion: module 'own_optim' has no attribute 'Lion'"),
        (["own_optim.NUMBER"], "own_optim.NUMBER is neither a class nor a function"),
        (["own_optim.WithoutRate"], "own_optim.WithoutRate takes no lr; it takes: params, rate; wrap it in a "),
        (
            ["adm"],
            "unknown optimiser adm (did you mean adam?); give a class, such as my_package.MyOptimizer, or ",
        ),
        (["adam", "--tasks", "mnist_mpl100"], "unknown task mnist_mpl100 (did you mean mnist_mlp100?); there are: "),
        (["lamb", "--baselines", "adm"], "unknown baseline adm (did you mean adam?); there are: "),
        (["adam", "--lr"], "there must be at least one learning rate"),
        (["adam", "--lr", "0.1", "1e-1"], "the learning rate 0.1 is given twice"),
        (["adam", "--lr", "0"], "learning rates must be positive numbers, not '0'"),
        (["adam", "--lr", "-1"], "learning rates must be positive numbers, not '-1'"),
        (["adam", "--lr", "inf"], "learning rates must be positive numbers, not 'inf'"),
        (["adam", "--lr", "nan"], "learning rates must be positive numbers, not 'nan'"),
        (["adam", "--set", "betas=[0,1]"], "--set is for a class; the settings of adam are in "),
        (["own_optim.SignDescent", "--set", "decay=["], "--set decay=[: "),
        (["own_optim.SignDescent", "--name", "a-b"], "--name must be made of letters, digits and _, not 'a-b'"),
        (
            ["torch.optim.Adam"],
            f"adam is the name of {ROOT}/configs/optim/adam.yaml, which has other settings: add --name NAME, or run ",
        ),
        (
            ["own_optim.SignDescent", "--set", "lr=0.1"],
            "--set lr=0.1 has no effect, since learning rates are searched: ",
        ),
        (["adam", "lr=0.1"], "lr=0.1: the learning rates of your optimiser are given by --lr 0.1"),
        (["adam", "optim.lr=0.1"], "optim.lr=0.1: the learning rates of your optimiser are given by --lr 0.1"),
        (["adam", "+optim.eps=1"], "+optim.eps=1 would change the baselines too: give it as --set eps=1"),
        (
            ["adam", "betas=1"],
            "there is no setting betas (did you mean task?); an argument of your optimiser is given ",
        ),
        (["adam", "machine.devic=cpu"], "there is no machine.devic (did you mean device?); there are: device, "),
        (["adam", "task.epoch=1"], "there is no task.epoch (did you mean epochs?); there are: display, epochs, "),
        ([], "name an optimiser: a class such as my_package.MyOptimizer, or one of: adam, "),
        (["adam", "--embeded"], "unknown option --embeded (did you mean --embedded?); see nero compare --help"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    local: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("compare", words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {message}")
    assert (said.err.count("\n"), said.out) == (1, "")
    assert not local.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["own_optim.OfMatrices"],
            "of_matrices on mnist_mlp100: optim: only matrices; for an optimiser of some parameters alone see "
            "nero.optim.Split in docs/your_optimiser.md\n",
        ),
        (["own_optim.SignDescent", "--set", "beta=1"], "sign_descent on mnist_mlp100: "),
    ],
)
def test_optimiser_that_refuses_a_network_is_reported_before_anything_is_written(
    local: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("compare", [*words, "--tasks", "mnist_mlp100"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
    assert ("nero.optim.Split" in said) == ("OfMatrices" in words[0]), "the hint is about parameters"
    assert not local.exists()


def test_plan_counts_logged_runs_of_the_baselines(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summaries = Store(ROOT / "results" / "runs").summaries()
    cells = [cell for cell in load_experiment("mnist").cells if cell.task == "mnist_mlp100" and not cell.variant]
    logged = {run_id for cell in cells for run_id in survey(cell, summaries).logged}
    assert exit_status("compare", ["torch.optim.NAdam", "--lr", "1e-3", "0.01", "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["wrote local/configs/optim/nadam.yaml", "wrote local/experiments/compare_nadam.yaml"]
    assert [line.split()[1].rpartition("-")[0] for line in lines if line.startswith("  pending")] == [
        "mnist_mlp100-nadam-0.001-s0",
        "mnist_mlp100-nadam-0.01-s0",
    ]
    assert f"baselines: {len(logged)} of {len(logged)} runs are logged and reused" in lines
    assert not any("roughly" in line for line in lines), "the times are those of the baselines"
    settings = {"_target_": "torch.optim.NAdam", "_partial_": True, "lr": 0.002, "display_name": "NAdam"}
    assert yaml.safe_load((local / "configs/optim/nadam.yaml").read_text()) == settings
    assert not (local / "runs").exists()
    # The same again writes nothing, and by its name neither; another setting is refused.
    for word in ("torch.optim.NAdam", "nadam"):
        assert exit_status("compare", [word, "--lr", "0.001", "0.01", "--plan"]) == 0
        assert "wrote" not in capsys.readouterr().out
    for word in ("hydra/launcher=joblib", "machine=cpu", "machine.budget_seconds=9"):
        assert exit_status("compare", ["nadam", "--lr", "0.001", "0.01", "--plan", word]) == 0, word
        assert "wrote" not in capsys.readouterr().out, "a setting of the sweep is no setting of runs"
    assert exit_status("compare", ["torch.optim.NAdam", "--set", "eps=1e-6", "--plan"]) == 2
    said = (
        "error: local/configs/optim/nadam.yaml has other settings: add --name NAME to keep both, or edit it and run "
        "nero compare nadam\n"
    )
    assert capsys.readouterr().err == said


def test_edited_experiment_is_not_overwritten(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("compare", ["madam", "--plan"]) == 0
    path = local / "experiments" / "compare_madam.yaml"
    assert exit_status("compare", ["madam", "--plan", "--lr", "0.1"]) == 0, "one of ours is"
    path.write_text("# mine\n" + path.read_text().partition("\n")[2])
    before = path.read_text()
    assert exit_status("compare", ["madam", "--plan"]) == 2
    assert "compare_madam.yaml has changes of your own: run nero sweep compare_madam, or use --name\n" in (
        capsys.readouterr().err
    )
    assert path.read_text() == before
    assert exit_status("compare", ["madam", "--plan", "--name", "other"]) == 0
    assert (local / "experiments" / "compare_other.yaml").is_file()


def test_baselines_have_the_cells_of_shipped_experiments() -> None:
    table1 = {(cell.task, cell.optim): cell for cell in load_experiment("table1").cells}
    for task in {task for task, _ in table1}:
        own, *others = cells_on(task, "mine", ("nero", "sgd", "adam", "lamb"), None)
        assert others == [table1[task, optim] for optim in ("nero", "sgd", "adam", "lamb")]
        assert (own.optim, own.lrs, own.repeat_seeds) == ("mine", others[0].lrs, (1, 2))
        assert own.overrides == table1[task, "nero"].overrides, "Adam's float32 on VGG-11 is the exception"
    own, nero = cells_on("mnist_mlp100", "mine", ("nero",), [0.5])
    assert nero in load_experiment("mnist").cells
    assert own == Cell("mnist_mlp100", "mine", (0.5,), 0, (1, 2))
    assert cells_on("mnist_mlp100", "nero", ("nero", "sgd"), None)[0] == nero, "once, with its logged runs"


def test_task_of_no_experiment_gets_the_grid_of_table1() -> None:
    assert shipped_cells("waves") == {}
    own, adam = cells_on("waves", "mine", ("adam",), None)
    assert own == Cell("waves", "mine", (0.0001, 0.001, 0.01, 0.1, 1.0), 0, (1, 2))
    assert (adam.optim, adam.lrs) == ("adam", own.lrs)


def test_embedded_cells_have_the_sizes_of_smoke() -> None:
    for task in names("task"):
        smoke = next(cell for cell in load_experiment("smoke").cells if cell.task == task)
        own, nero = embedded_cells_on(task, "mine", ("nero",), [0.5])
        assert own.overrides == nero.overrides == smoke.overrides
        assert (own.lrs, len(nero.lrs)) == ((0.5,), 3)
    assert embedded_cells_on("waves", "mine", (), None)[0].overrides == ("data=embedded",)


def git_status() -> str:
    done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""  # an archive without git


@pytest.mark.slow
def test_embedded_comparison_ends_in_a_page_and_leaves_no_trace_in_the_project(
    local: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = git_status()
    words = ["own_optim.SignDescent", "--embedded", "--baselines", "sgd", "--lr", "0.01", "--set", "decay=0.001"]
    assert exit_status("compare", [*words, *TINY]) == 0
    said = capsys.readouterr().out
    summaries = Store(local / "runs").summaries().values()
    assert sorted((run["optim"], run["status"]) for run in summaries) == [
        *[("sgd", "done")] * 4,
        *[("sign_descent", "done")] * 2,
    ], "a search and a repeat of each"
    assert "](" not in said, "the table has no links to runs"
    table = (local / "compare/sign_descent_embedded/tables/compare_sign_descent_embedded.md").read_text()
    assert "](../../../runs/" in table
    page = local / "compare" / "sign_descent_embedded" / "report.html"
    assert "everything on one page: local/compare/sign_descent_embedded/report.html\n" in said
    assert "mnist_mlp100-sign_descent-0.01-s0-" in page.read_text()
    assert git_status() == before
    # The same command has nothing left to train.
    assert exit_status("compare", [*words, *TINY]) == 0
    assert "6 runs done; 0 pending" in capsys.readouterr().err


@pytest.mark.slow
def test_changed_file_of_the_class_gives_other_runs(local: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", "mnist_mlp100", "--lr", "0.1", "--plan"]

    def planned(given: str) -> str:
        sys.modules.pop("own_optim", None)
        assert exit_status("compare", [given, *words]) == 0
        text = capsys.readouterr().out
        [run_id] = [word for word in text.split() if word.startswith("mnist_mlp100-sign_descent-0.1-s0-")]
        assert ("has changed: its runs are trained anew" in text) == (file.read_text() != known)
        return run_id

    file = local.parent / "own_optim.py"
    known = file.read_text()
    first = planned("own_optim.SignDescent")
    path = local / "configs" / "optim" / "sign_descent.yaml"
    path.write_text(f"{path.read_text()}# mine\n")
    assert planned("sign_descent") == first
    file.write_text(f"{known}\n# another version\n")
    second = planned("sign_descent")
    known = file.read_text()
    assert planned("own_optim.SignDescent") == second != first
    assert path.read_text().endswith("# mine\n")
