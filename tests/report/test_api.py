"""Tests of `from nero import report`: frames of logged runs, tables and figures in Python."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from nero import report
from nero.plans.stores import COMMITTED
from nero.report import catalogue
from nero.report.api import UnknownName
from nero.report.tables.layout import print_table
from nero.runs.store import RunDirectory, Store
from support.fake_runs import ERROR, cells_of, write_run
from support.logged_stores import ADAM, NERO, REPARAM, write_whole

SECONDS = [2.0, 3.5, 1.5]


def rewrite(run: RunDirectory, **settings: Any) -> None:
    """Change settings of a run's task."""
    config = run.read_config()
    run.write_config({**config, "task": {**config["task"], **settings}})


@pytest.fixture
def filled(store: Store) -> Store:
    for depth, seed in ((100, 0), (5, 1)):
        run = write_whole(store, NERO, 0.01, seed, 0.75, curve=[0.25, float("nan"), 0.75])
        rewrite(run, depth=depth)
        for record in (lines := run.read_metrics()):
            record["seconds"] = SECONDS[record["epoch"] - 1]
        run.truncate_metrics(0)
        for record in lines:
            run.append_metrics(record)
    write_whole(store, ADAM, 0.001, 0, 0.5)
    write_whole(store, REPARAM, 0.01, 1, 0.5)
    return store


def test_settings_in_which_runs_of_a_task_differ_are_columns(filled: Store) -> None:
    found = report.runs(task="mnist_mlp100", store=filled)
    assert list(found.columns[:7]) == ["run_id", "task", "optim", "lr", "seed", "task.depth", "data"]
    assert found[["optim", "seed", "task.depth"]].values.tolist() == [
        ["adam", 0, 100],
        ["nero", 0, 100],
        ["nero", 1, 5],
    ]
    assert "task.depth" not in report.runs(task="mnist_mlp100", optim="adam", store=filled)


def test_columns_tell_all_committed_runs_apart() -> None:
    found = report.runs(store=COMMITTED)
    assert len(found) > 200
    settings = found.loc[:, "task":"data"].drop(columns="data").columns  # type: ignore[misc]
    assert not found.duplicated([*settings, "data", "epochs"]).any()


def test_settings_of_different_tasks_and_optimisers_are_not_columns(filled: Store) -> None:
    found = report.runs(store=filled)
    assert len(found) == 4
    assert [name for name in found if name.startswith(("task.", "optim."))] == ["task.depth"]
    assert found.set_index("task").loc["mnist_reparam", "task.depth"] == 5


def test_absent_setting_has_the_value_that_the_code_had_before(store: Store) -> None:
    runs = [write_whole(store, NERO, 0.01, seed) for seed in (0, 1, 2)]
    rewrite(runs[0], network={"fan_out": True})
    rewrite(runs[1], network={"fan_out": False})
    rewrite(runs[2], network={})
    assert report.runs(store=store)["task.network.fan_out"].tolist() == [True, False, False]


def test_lists_and_mixed_settings_are_text(store: Store) -> None:
    runs = [write_whole(store, NERO, 0.01, seed) for seed in (0, 1)]
    rewrite(runs[0], milestones=[1, 2], batch_size="all")
    rewrite(runs[1], milestones=[1, 3], batch_size=50)
    found = report.runs(store=store)
    assert found["task.milestones"].tolist() == ["[1, 2]", "[1, 3]"]
    assert found["task.batch_size"].tolist() == ["all", "50"]


def test_run_with_damaged_config_has_no_settings(filled: Store) -> None:
    run = next(run for run in filled.runs() if "-adam-" in run.run_id and "mlp100" in run.run_id)
    (run.path / "config.yaml").write_text("{")
    found = report.runs(task="mnist_mlp100", store=filled)
    assert found["task.depth"].isna().tolist() == [True, False, False]
    assert [name for name in found if name.startswith(("task.", "optim."))] == ["task.depth"]


def test_runs_of_an_experiment_exclude_others(filled: Store) -> None:
    run = write_whole(filled, NERO, 0.1, 2)
    stranger = filled.run("mnist_mlp100", "mnist_mlp100-nero-0.02-s7-00000000")
    stranger.path.mkdir()
    stranger.write_summary({**(run.read_summary() or {}), "run_id": stranger.run_id, "seed": 7, "lr": 0.02})
    assert stranger.run_id in set(report.runs(store=filled)["run_id"])
    assert stranger.run_id not in set(report.runs(experiment="mnist", store=filled)["run_id"])


def test_store_is_the_default_one_or_a_folder(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_RUNS", str(filled.root))
    pd.testing.assert_frame_equal(report.runs(), report.runs(store=filled.root))
    assert len(report.runs()) == 4


def test_empty_store_has_no_runs(store: Store) -> None:
    assert report.runs(store=store).empty
    with pytest.raises(UnknownName, match=r"^no logged run has the task 'pong_ppo'; none is logged$"):
        report.curves("pong_ppo", "train/entropy", store=store)


def test_curves_have_cumulative_seconds_and_settings(filled: Store) -> None:
    found = report.curves("mnist_mlp100", "train/accuracy", optim="nero", store=filled)
    heads = ["run_id", "optim", "lr", "seed", "task.depth", "epoch", "step", "seconds", "value"]
    assert list(found.columns) == heads
    for depth in (100, 5):
        curve = found[found["task.depth"] == depth]
        assert curve["epoch"].tolist() == [1, 2, 3]
        np.testing.assert_allclose(curve["seconds"], np.cumsum(SECONDS))
        np.testing.assert_array_equal(curve["value"], [0.25, np.nan, 0.75])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mnist_mlp10", "lr"), "no logged run has the task 'mnist_mlp10' (did you mean mnist_mlp100?); there are: "),
        (("mnist_mlp100", "accuracy"), "no run of mnist_mlp100 logs 'accuracy' (did you mean train/accuracy?); "),
        (("mnist_mlp100", "lr", "nerro"), "no logged run has the optimiser 'nerro' (did you mean nero?); there are: "),
    ],
)
def test_unknown_names_are_reported_with_known_ones(filled: Store, arguments: Any, message: str) -> None:
    with pytest.raises(UnknownName) as raised:
        report.curves(*arguments, store=filled)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_compare_shows_settings_that_differ_and_final_metrics(filled: Store) -> None:
    first, second = (run.run_id for run in filled.runs() if "-nero-" in run.run_id)
    found = report.compare(first, second.rpartition("-")[2], store=filled)
    assert list(found.columns) == [first, second]
    assert found.loc["settings that differ"].T.to_dict("list") == {"seed": ["0", "1"], "task.depth": ["100", "5"]}
    assert found.loc[("final metrics", "train/accuracy *")].tolist() == ["0.7500", "0.7500"]


def test_table_as_frame_has_the_numbers_of_its_csv(store: Store) -> None:
    cells = cells_of("table1")
    for seed, final in enumerate((0.11, 0.12, 0.10)):
        write_run(store, cells["cifar10_vgg11 nero"], 0.01, seed, final, metric=ERROR)
    write_run(store, cells["cifar10_vgg11 sgd"], 0.1, 0, None, metric=ERROR)
    table = report.table("table1", store)
    found, records = table.to_frame(), print_table(table).records
    paper = ("paper_mean", "paper_std", "paper_n", "paper_lr", "paper_rank")
    for column in ("mean", "std", "n", "lr", *paper, "difference"):
        expected = [float(record[column] or "nan") for record in records]
        np.testing.assert_allclose(found[column].astype(float), expected, rtol=1e-9, err_msg=column)
    for column in ("metric", "goal", "status", "verdict"):
        assert found[column].tolist() == [record[column] for record in records]
    row = found.set_index(["task", "optimizer"]).loc[("CIFAR-10 VGG-11", "Nero")]
    assert (row["mean"], row["n"], row["paper_mean"], row["verdict"]) == (pytest.approx(11.0), 3, 11.16, "agrees")
    assert row["low"] < row["difference"] < row["high"]


def test_short_representations(filled: Store) -> None:
    evidence = catalogue.gather("mnist", filled)
    table = catalogue.make_table(evidence)
    count, logged = len(table.entries), len(report.runs(experiment="mnist", store=filled))
    assert repr(table) == f"Table(mnist, {count} cells, 0 complete)"
    assert table._repr_markdown_().startswith(f"# {table.title}\n")
    assert repr(evidence) == f"Evidence(mnist, {count} cells, {logged} runs)"
    assert repr(filled).endswith("runs, 4 runs)")
    run = filled.runs()[0]
    assert repr(run) == f"RunDirectory({run.run_id}, done)"
    assert repr(filled.run("task", "none")) == "RunDirectory(none, no summary)"


def test_findings_are_of_the_store(store: Store) -> None:
    assert report.findings(store).leaders == "There is no task yet on which every optimiser has a result."


def test_figure_by_its_name(store: Store) -> None:
    assert isinstance(report.figure("figure1", store), Figure)
    assert report.numbers("figure1", store) == ""
    assert report.numbers("figure3", store).startswith("# Figure 3")
    with pytest.raises(UnknownName, match=r"^there is no figure 'figur1' \(did you mean figure1\?\); there are: "):
        report.figure("figur1", store)


def test_image_for_notebooks_is_small_and_reproducible() -> None:
    figure = Figure(figsize=(4, 2))
    figure.subplots().plot([1, 3, 2])
    shown = [report.show(figure, width=400) for _ in range(2)]
    assert shown[0].data == shown[1].data
    image = Image.open(io.BytesIO(shown[0].data))
    assert image.size == (500, 250)
    assert image.mode == "P"


def test_report_is_imported_without_its_functions() -> None:
    program = "import sys; from nero import report; print({'torch', 'wandb', 'pandas'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
    assert {"runs", "curves", "table", "figure"} <= set(dir(report))
