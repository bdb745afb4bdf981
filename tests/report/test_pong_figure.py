"""Tests of Figure 8: reward curves by environment steps, the paper's marks, and reports of missing runs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.config import compose
from nero.plans.plan import Cell, load_experiment
from nero.report import catalogue, paper
from nero.report.figures import panels, style
from nero.report.figures.figure8 import REWARD, against, figure8
from nero.report.tables.entries import published_text
from nero.runs.store import Store
from support.fake_runs import PLAYED, cells_of, evidence_of, write_player, write_run
from support.read_figures import face, labels, lines, marks

MOMENTUM = "LAMB with β₁ = 0.9"
PUBLISHED = {"nero": "Nero", "sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}
OPTIMS = {**PUBLISHED, "lamb_momentum": MOMENTUM}
FINALS = {"nero": 16.0, "sgd": 10.0, "adam": 12.0, "lamb": -20.0, "lamb_momentum": 14.0}
SEEDS = np.array([0.0, 0.5, 4.0])  # offset of each seed
EPOCHS = (10, 20, 2440, 4880, 4882)  # logged epochs; an epoch is one update


def drawn(store: Store) -> Figure:
    return figure8(evidence_of(store, "pong"))


def panel_of(store: Store) -> Axes:
    [axes] = drawn(store).axes
    return axes


def cell_of(optim: str) -> Cell:
    return cells_of("pong")[f"{paper.PONG} {optim}"]


def values(optim: str) -> np.ndarray:
    """Rewards that `fill` writes, with a row per logged epoch and a column per seed."""
    return np.array([-21, -20, 0, 1, 1])[:, None] + np.outer([0, 0, 0.5, 1, 1], FINALS[optim] + SEEDS)


def fill(store: Store) -> None:
    """Write all seeds of every optimiser at one learning rate; the rest of the grid is missing."""
    for optim in OPTIMS:
        for seed, column in enumerate(values(optim).T):
            curve = dict(zip(EPOCHS, column.tolist(), strict=True))
            write_player(store, cell_of(optim), 0.001, seed, curve[4882], curve)


def in_millions(epoch: int) -> float:
    return epoch * 8 * 128 / 1e6


# planned runs


def test_figure_uses_the_same_runs_as_table_1() -> None:
    table1 = {cell.optim: cell for cell in load_experiment("table1").cells if cell.task == paper.PONG}
    for optim in PUBLISHED:
        mine, theirs = cell_of(optim), table1[optim]
        assert (mine.lrs, mine.seeds) == (theirs.lrs, theirs.seeds)
        assert all(mine.run(lr, 2).run_id == theirs.run(lr, 2).run_id for lr in mine.lrs)


def test_lamb_momentum_differs_from_lamb_only_in_beta1() -> None:
    rate = paper.table1().results[paper.PONG, (), "lamb"].lr
    cell = cell_of("lamb_momentum")
    assert (cell.lrs, cell.seeds) == ((rate,), (0, 1, 2))
    without, with_momentum = (compose(cell_of(o).run(rate, 0).overrides).identity for o in ("lamb", "lamb_momentum"))
    assert without.pop("optim_name") != with_momentum.pop("optim_name")
    assert (without["optim"].pop("betas"), with_momentum["optim"].pop("betas")) == ([0.0, 0.999], [0.9, 0.999])
    assert without == with_momentum


def test_x_axis_ends_at_configured_environment_steps() -> None:
    config = compose([f"task={paper.PONG}"])
    assert config.epochs == EPOCHS[-1]
    assert config.cfg.task.environments * config.cfg.task.steps == PLAYED
    assert in_millions(config.epochs) == pytest.approx(paper.PONG_MILLIONS, abs=0.001)


# our curves


def test_line_starts_once_every_seed_has_finished_a_game(store: Store) -> None:
    first: Mapping[int, float | None] = {10: None, 20: -21.0, 30: -20.0}
    second: Mapping[int, float | None] = {10: None, 20: None, 30: -18.0}
    for seed, curve in enumerate((first, second)):
        write_player(store, cell_of("nero"), 0.01, seed, curve[30], curve)
    axes = panel_of(store)
    assert lines(axes)["Nero"].tolist() == [[in_millions(30), -19.0]]


def test_shorter_log_of_a_seed_truncates_mean_curve(store: Store) -> None:
    write_player(store, cell_of("sgd"), 0.1, 0, 10.0, {10: -20.0, 20: -18.0, 30: 10.0})
    write_player(store, cell_of("sgd"), 0.1, 1, 10.0, {10: -10.0, 20: -8.0, 25: 10.0})
    assert lines(panel_of(store))["SGD"].tolist() == [[in_millions(10), -15.0], [in_millions(20), -13.0]]


def test_records_without_x_value_are_dropped() -> None:
    whose = {"run_id": "a", "seed": 0}
    records = [
        (10, "reward", -20.0),
        (10, "steps", 5e5),
        (20, "reward", -19.0),
        (30, "reward", 3.0),
        (30, "steps", None),
    ]
    frame = pd.DataFrame([{**whose, "epoch": epoch, "key": key, "value": value} for epoch, key, value in records])
    other = frame.assign(run_id="b", value=frame.value * 2)
    found = against(pd.concat([frame, other], ignore_index=True), "reward", "steps", 1e6)
    assert found[["run_id", "epoch", "value", "steps"]].to_numpy().tolist() == [
        ["a", 10, -20.0, 0.5],
        ["b", 10, -40.0, 1.0],
    ]


def test_panel_title_and_axis_labels(store: Store) -> None:
    figure = drawn(store)
    [axes] = figure.axes
    assert "Pong (Figure 8)" in figure.get_suptitle()
    arithmetic = style.PRECISIONS[cell_of("nero").setting("precision")]
    assert face(axes).split(" search incomplete: ")[0] == f"Vanilla CNN ({arithmetic}), training games"
    assert axes.get_xlabel() == "environment steps (millions)"
    window = cell_of("nero").setting("task.window")
    assert axes.get_ylabel() == f"reward\n(mean of the last {window} finished games)"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "2", "3", "4", "5"]


def test_y_scale_covers_reward_range_of_the_game(store: Store) -> None:
    empty = panel_of(store).get_ylim()
    fill(store)
    axes = panel_of(store)
    assert axes.get_ylim() == empty
    assert axes.get_yticks().tolist() == [-21, -14, -7, 0, 7, 14, 21]
    low, high = axes.get_ylim()
    assert -25 <= low < -21 < 21 < high <= 25


# the paper's marks


def test_paper_strip_has_room_only_for_published_optimisers(store: Store) -> None:
    axes = panel_of(store)
    width = axes.get_xlim()[1] - paper.PONG_MILLIONS
    assert width == pytest.approx((len(PUBLISHED) + 0.5) * panels.MARK_SPACING * paper.PONG_MILLIONS)


def test_paper_label_does_not_overlap_marks(store: Store) -> None:
    figure = drawn(store)
    figure.draw_without_rendering()
    [axes] = figure.axes
    [word] = [text for text in axes.texts if text.get_text() == "paper"]
    _, highest = axes.transData.transform((0, max(high for *_, high in marks(axes).values())))
    assert word.get_window_extent().y0 > highest


@pytest.mark.parametrize("filled", [True, False])
def test_legend_lists_our_curves_and_paper_marks(store: Store, filled: bool) -> None:
    if filled:
        fill(store)
    figure = drawn(store)
    [axes] = figure.axes
    legend = axes.get_legend()
    theirs = [str(bar.get_label()) for bar in axes.containers]
    written = [text.get_text() for text in legend.get_texts()]
    assert written == ([*labels(axes), *theirs, " "] if filled else theirs)
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_longest_labels_stay_within_figure(store: Store) -> None:
    for optim in OPTIMS:
        write_player(store, cell_of(optim), 0.0001 if optim != "lamb_momentum" else 0.001, 0, 3.0)
    figure = drawn(store)
    [axes] = figure.axes
    assert labels(axes)[-1] == f"{MOMENTUM}, η = 0.001, n = 1 of 3"
    around = axes.get_tightbbox()
    assert around is not None
    assert figure.bbox.x0 <= around.x0 < around.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= around.y0 < around.y1 <= figure.bbox.y1


def test_table_has_paper_values_only_for_published_optimisers(store: Store) -> None:
    [row] = catalogue.make_table(catalogue.gather("pong", store)).rows
    theirs = {optim: published_text(entry).value for optim, entry in row.entries.items()}
    assert theirs == {
        "nero": "20.62 ± 0.05",
        "sgd": "11.99 ± 8.65",
        "adam": "15.92 ± 3.40",
        "lamb": "-19.46 ± 0.10",
        "lamb_momentum": "",
    }


# missing and diverged runs


def test_log_without_environment_steps_is_reported(store: Store) -> None:
    metric = {"key": REWARD, "goal": "max", "label": "reward"}
    write_run(store, cell_of("lamb_momentum"), 0.001, 0, 3.0, metric=metric)
    axes = panel_of(store)
    assert f"{MOMENTUM} (no log of seed 0)" in face(axes)
    assert not lines(axes)
