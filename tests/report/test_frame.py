"""Tests of loading a store as pandas frames."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np

import nero.report
from nero.report.frame import RUN_COLUMNS, load_curves, load_runs, load_traces
from nero.runs.store import Store
from support.fake_runs import STEPS, cells_of, write_run

WHOSE = ["run_id", "task", "optim", "lr", "seed"]
NERO, REPARAM = "mnist_mlp100 nero", "mnist_reparam adam 100"


def test_empty_store_gives_empty_frames_with_all_columns(store: Store) -> None:
    assert list(load_runs(store).columns) == list(RUN_COLUMNS)
    assert load_runs(store).empty
    assert list(load_curves(store).columns) == [*WHOSE, "epoch", "step", "key", "value"]
    assert list(load_traces(store).columns) == [*WHOSE, "key", "iteration", "value"]
    assert load_curves(store).empty
    assert load_traces(store).empty


def test_load_runs_has_one_row_per_run(store: Store) -> None:
    cells = cells_of("mnist")
    write_run(store, cells[NERO], 0.001, 0, 0.75)
    write_run(store, cells[NERO], 0.1, 2, None)
    frame = load_runs(store).set_index("run_id")
    done = frame.loc[cells[NERO].run(0.001, 0).run_id]
    assert (done.task, done.optim, done.lr, done.seed, done.status) == ("mnist_mlp100", "nero", 0.001, 0, "done")
    assert (done.final, done["train/accuracy"], done.metric, done.goal) == (0.75, 0.75, "train/accuracy", "max")
    diverged = frame.loc[cells[NERO].run(0.1, 2).run_id]
    assert math.isnan(diverged.final)
    assert (diverged.status, diverged.diverged_epoch, diverged.diverged_step) == ("diverged", 2, STEPS + 1)


def test_curves_are_tidy_and_null_is_nan(store: Store) -> None:
    run = write_run(store, cells_of("mnist")[NERO], 0.01, 1, 0.75, curve=[0.25, float("nan"), 0.75])
    frame = load_curves(store)
    accuracy = frame[frame.key == "train/accuracy"]
    assert accuracy.epoch.tolist() == [1, 2, 3]
    assert accuracy.step.tolist() == [STEPS, 2 * STEPS, 3 * STEPS]
    np.testing.assert_array_equal(accuracy.value, [0.25, math.nan, 0.75])
    assert set(frame.run_id) == {run.run_id}
    assert set(frame.key) == {"train/accuracy", "lr", "seconds"}


def test_load_curves_and_traces_filter_by_run_id(store: Store) -> None:
    cell = cells_of("mnist")[NERO]
    chosen = write_run(store, cell, 0.01, 1, 0.75)
    write_run(store, cell, 0.01, 2, 0.75)
    assert set(load_curves(store, {chosen.run_id}).run_id) == {chosen.run_id}
    assert set(load_traces(store, {chosen.run_id}).run_id) == {chosen.run_id}
    assert load_curves(store, set()).empty


def test_trace_iterations_count_from_one_across_epochs(store: Store) -> None:
    write_run(store, cells_of("mnist")[REPARAM], 0.01, 0, 0.75, curve=[0.25, 0.5])
    frame = load_traces(store)
    assert frame.iteration.tolist() == list(range(1, 2 * STEPS + 1))
    assert frame.value.tolist() == [0.25] * STEPS + [0.5] * STEPS


def test_damaged_line_loses_only_its_epoch(store: Store) -> None:
    run = write_run(store, cells_of("mnist")[REPARAM], 0.01, 0, 0.75, curve=[0.25, 0.5, 0.75])
    metrics = run.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([lines[0], lines[1][:20], lines[2], '{"step": 9}', lines[2][:7]]))
    curves = load_curves(store)
    assert curves[curves.key == "train/accuracy"].epoch.tolist() == [1, 3]
    assert load_traces(store).iteration.tolist() == [*range(1, STEPS + 1), *range(2 * STEPS + 1, 3 * STEPS + 1)]


def test_run_with_damaged_summary_is_skipped(store: Store) -> None:
    run = write_run(store, cells_of("mnist")[NERO], 0.01, 0, 0.75)
    (run.path / "summary.json").write_text('{"run_id": ')
    assert load_runs(store).empty
    assert load_curves(store).empty


def test_report_does_not_import_torch_or_wandb() -> None:
    folder = Path(nero.report.__file__).parent
    modules = [".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")]
    assert {"catalogue", "tables.table", "figures.figure3"} <= set(modules)
    imports = ", ".join(f"nero.report.{module}".removesuffix(".__init__") for module in modules)
    program = f"import sys, {imports}; print([name for name in ('torch', 'wandb') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
