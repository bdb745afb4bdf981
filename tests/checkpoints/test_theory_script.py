"""Tests of `nero theory`: `measure`, `along` and `report`."""

import json
import re
from pathlib import Path

import pytest

from conftest import ROOT, exit_status
from nero.cli import theory
from nero.plans.config import compose
from nero.train.run import train

SMALL = ["data=embedded", "machine=cpu", "task=mnist_mlp100", "task.depth=1", "task.train_examples=100"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A store and the ids of two of its runs; the second kept no checkpoint."""
    store = tmp_path_factory.mktemp("runs")
    words = [*SMALL, "task.epochs=1", f"store={store}"]
    first = train(compose([*words, "optim=adam"]))["run_id"]
    return store, first, train(compose([*words, "optim=sgd", "machine.keep_checkpoint=false"]))["run_id"]


def test_run_is_measured_once_and_failures_do_not_stop_the_rest(
    runs: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, second = runs
    where = ["--store", str(store), "--records", str(tmp_path), "--device", "cpu", "--without", "robustness"]
    assert theory.main(["measure", second, str(store / "mnist_mlp100" / first), *where]) == 1
    streams = capsys.readouterr()
    assert f"not measured: {second} has no checkpoint; " in streams.err
    path = tmp_path / "networks" / f"{first}.json"
    assert f"[2/2] {path}" in streams.out
    assert "2 runs requested; 1 could not be measured" in streams.out
    before = path.stat().st_mtime_ns
    assert theory.main(["measure", first, *where]) == 0
    assert path.stat().st_mtime_ns == before
    assert theory.main(["measure", first, "--again", *where]) == 0
    assert path.stat().st_mtime_ns > before


def test_run_measured_before_it_finished_is_measured_again(runs: tuple[Path, str, str], tmp_path: Path) -> None:
    store, first, _ = runs
    measure = ["measure", first, "--store", str(store), "--records", str(tmp_path), "--device", "cpu"]
    measure += ["--without", "robustness"]
    assert theory.main(measure) == 0
    path = tmp_path / "networks" / f"{first}.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"epochs_done": 0.4}))
    assert theory.main(measure) == 0
    assert json.loads(path.read_text())["epochs_done"] == whole["epochs"] == 1


@pytest.mark.slow
def test_report_makes_tables_and_figures_and_check_detects_changes(
    runs: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = runs
    records, out = tmp_path / "theory", tmp_path / "out"
    assert theory.main(["measure", first, "--store", str(store), "--records", str(records), "--device", "cpu"]) == 0
    along = ["along", *SMALL, "task.depth=2", "task.epochs=1", "--probes", "2", "--records", str(records)]
    assert theory.main(along) == 0
    assert theory.main(["report", "--records", str(records), "--out", str(out)]) == 0
    made = {path.name for path in out.rglob("*.*")}
    assert {"theory_bound.md", "theory_robustness.csv", "theory_steps.tex", "theory_trust.png"} <= made
    assert "Embedded data" in (out / "tables" / "theory_bound.md").read_text()
    assert theory.main(["report", "--records", str(records), "--out", str(out), "--check"]) == 0
    (out / "tables" / "theory_bound.md").write_text("other")
    capsys.readouterr()
    assert theory.main(["report", "--records", str(records), "--out", str(out), "--check"]) == 1
    assert "theory_bound.md" in capsys.readouterr().out


def test_retrain_option_retrains_runs_without_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "experiments"
    folder.mkdir()
    settings = ["data=embedded", "task.depth=1", "task.train_examples=100", "task.epochs=1"]
    row = {"task": "mnist_mlp100", "optim": "sgd", "lr": [0.1], "overrides": settings}
    (folder / "tiny.yaml").write_text(json.dumps({"title": "Tiny", "rows": [row]}))
    load = theory.load_experiment
    monkeypatch.setattr(theory, "load_experiment", lambda name: load(name, folder=folder))
    store, again = tmp_path / "runs", tmp_path / "again"
    words = ["task=mnist_mlp100", "optim=sgd", "optim.lr=0.1", "machine=cpu", *settings, f"store={store}"]
    run_id = train(compose([*words, "machine.keep_checkpoint=false"]))["run_id"]
    asked = ["measure", "--experiment", "tiny", "--store", str(store), "--records", str(tmp_path / "theory")]
    asked += ["--without", "robustness", "--device", "cpu"]
    assert theory.main(asked) == 1
    assert theory.main([*asked, "--retrain", str(again), "machine=cpu"]) == 0
    assert (tmp_path / "theory" / "networks" / f"{run_id}.json").exists()
    assert list(again.glob(f"mnist_mlp100/{run_id}/checkpoint*.pt"))
    asked = ["measure", run_id, "--again", *asked[3:]]  # by its name, and not trained once more
    before = (again / "mnist_mlp100" / run_id / "summary.json").stat().st_mtime_ns
    assert theory.main(asked) == 1
    assert theory.main([*asked, "--retrain", str(again)]) == 0
    assert (again / "mnist_mlp100" / run_id / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure"], "name runs, or an --experiment"),
        (["measure", "x", "machine=cpu"], "machine=cpu: settings are those of --retrain"),
        (["along"], "give the settings of a training"),
        (["along", "nonsense"], "unknown argument nonsense"),
        (["report", "task=x"], "unknown argument task"),
        (["along", "task=nothing"], "there is no task=nothing"),
        (["measure", "--experiment", "nothing"], "there is no experiment 'nothing'"),
    ],
)
def test_invalid_arguments_are_rejected(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = theory.main(words)
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["measure", "along", "report"])
def test_help_shows_default_folders_relative_to_the_project(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("theory", [command, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"--records DIR +default: results/theory\n", text)
    assert str(ROOT) not in text


def test_report_rejects_mixed_embedded_and_real_records(
    runs: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, first, _ = runs
    where = ["--store", str(store), "--records", str(tmp_path), "--device", "cpu", "--without", "robustness"]
    assert theory.main(["measure", first, *where]) == 0
    path = tmp_path / "networks" / f"{first}.json"
    other = json.loads(path.read_text()) | {"run_id": "other", "data": "real"}
    (tmp_path / "networks" / "other.json").write_text(json.dumps(other))
    assert theory.main(["report", "--records", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "keep them apart" in capsys.readouterr().err


def test_committed_tables_match_committed_records(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "--check", "--records", str(ROOT / "results" / "theory"), "--out", str(ROOT / "results")]
    assert theory.main(arguments) == 0, capsys.readouterr().out
