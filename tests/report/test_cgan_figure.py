"""Tests of Figure 4: FID curves by epoch, the paper's marks, and reports of missing runs."""

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import Cell
from nero.report import paper
from nero.report.cells import EmbeddedDataError
from nero.report.figures import style
from nero.report.figures.curves import learning_curves
from nero.report.figures.figure4 import figure4
from nero.runs.store import Store
from support.fake_runs import STAND_IN_FID, cells_of, evidence_of, write_generator
from support.read_figures import face, labels, lines

OPTIMS = {"nero": "Nero", "sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}
FINALS = {"nero": 15.0, "sgd": 33.0, "adam": 23.0, "lamb": 16.0}
SEEDS = np.array([0.0, 0.5, 1.0])  # offset of each seed
EPOCHS = tuple(range(10, 121, 10))  # epochs with a FID; the others are logged without one
QUIETLY = pytest.mark.filterwarnings("error")


def drawn(store: Store) -> Figure:
    return figure4(evidence_of(store, "table1"))


def panels_of(store: Store) -> list[Axes]:
    return drawn(store).axes


def cell_of(optim: str) -> Cell:
    return cells_of("table1")[f"{paper.CGAN} {optim}"]


def values(optim: str) -> np.ndarray:
    """FIDs that `fill` writes, with a row per measured epoch and a column per seed."""
    fall = 1 + 12 * np.exp(-np.arange(12) / 2)
    return np.outer(fall, np.full(3, FINALS[optim])) + SEEDS


def fill(store: Store) -> None:
    """Write all seeds of every optimiser at one learning rate; the rest of the grid is missing."""
    for optim in OPTIMS:
        for seed, column in enumerate(values(optim).T):
            write(store, optim, seed, column.tolist())


def write(store: Store, optim: str, seed: int, curve: Sequence[float | None]) -> None:
    by_epoch = dict(zip(EPOCHS, curve, strict=False))
    write_generator(store, cell_of(optim), 0.01, seed, curve[-1], by_epoch, status="done")


# our curves


def test_panel_titles_and_axis_labels(store: Store) -> None:
    fill(store)
    figure = drawn(store)
    assert "CIFAR-10 (Figure 4)" in figure.get_suptitle()
    arithmetic = style.PRECISIONS[cell_of("nero").setting("precision")]
    assert [style.record(axes).title for axes in figure.axes] == [
        f"BigGAN-like ({arithmetic}), training",
        f"BigGAN-like ({arithmetic}), validation",
        f"BigGAN-like ({arithmetic}), validation, plain FID",
    ]
    left, *others = figure.axes
    assert left.get_ylabel() == "FID against the training images"
    assert [axes.get_ylabel() for axes in others] == ["FID against the test images"] * 2
    for axes in figure.axes:
        assert axes.get_xlabel() == "epoch"
        assert axes.get_xticks().tolist() == [0, 30, 60, 90, 120]


def test_x_axis_ends_at_configured_epochs() -> None:
    assert cell_of("nero").run(0.01, 0).epochs == paper.CGAN_EPOCHS


# the paper's marks


@pytest.mark.parametrize("filled", [True, False])
def test_legend_lists_our_curves_and_paper_marks(store: Store, filled: bool) -> None:
    if filled:
        fill(store)
    figure = drawn(store)
    left, right, _ = figure.axes
    theirs = [str(bar.get_label()) for bar in right.containers]
    assert [text.get_text() for text in right.get_legend().get_texts()] == [*labels(right), *theirs]
    assert (left.get_legend() is not None) == filled
    panels = [axes.get_window_extent() for axes in figure.axes]
    assert not any(right.get_legend().get_window_extent().overlaps(panel) for panel in panels)


def test_runs_without_inception_raise_beside_paper_values(store: Store) -> None:
    write_generator(store, cell_of("adam"), 0.01, 0, 3.0, metric=STAND_IN_FID, data="embedded")
    with pytest.raises(EmbeddedDataError):
        drawn(store)


# missing and diverged runs


def test_seed_diverged_before_first_fid_is_reported(store: Store) -> None:
    write(store, "nero", 0, [60.0, 30.0, 20.0])
    run = write_generator(store, cell_of("nero"), 0.01, 1, None)
    (run.path / "metrics.jsonl").unlink()
    run.append_metrics({"epoch": 9, "train/g_loss": 0.5})
    for axes in panels_of(store):
        assert "diverged: Nero (seed 1)" in face(axes)
        assert "no log" not in face(axes)
        assert labels(axes) == ["Nero, η = 0.01, n = 1 of 3"]


def test_non_finite_fid_is_a_gap_in_the_curve(store: Store) -> None:
    write(store, "nero", 0, [60.0, 40.0, None, 25.0, 20.0])
    write(store, "nero", 1, [60.0, 40.0, 30.0, 25.0, 20.0])
    for axes, less in zip(panels_of(store), (2, 0, -1), strict=True):
        expected = [[10, 60], [20, 40], [30, np.nan], [40, 25], [50, 20]]
        np.testing.assert_array_equal(lines(axes)["Nero"], np.array(expected) - [0, less])


# y axis


def test_one_fid_unit_is_visible_at_last_epoch(store: Store) -> None:
    fill(store)
    figure = drawn(store)
    _, right, _ = figure.axes
    (_, sixteen), (_, fifteen) = right.transData.transform([(120, 16), (120, 15)])
    points = (sixteen - fifteen) * 72 / figure.dpi
    assert points > 2 * 1.2, "two lines beside each other, each 1.2 points wide"


@pytest.mark.slow
def test_y_scale_ignores_first_epochs(store: Store) -> None:
    fill(store)
    lowest = values("nero").min()
    for axes, less, least in zip(panels_of(store), (2, 0, -1), (lowest - 2, 15.43 - 0.37, lowest + 1), strict=True):
        low, high = axes.get_ylim()
        assert axes.get_yscale() == "log"
        assert low == pytest.approx(min(least, values("nero").min() - less) / 1.15)
        assert values("sgd")[0].max() - less > 400, "the first of them run out of the panel"
        assert values("sgd")[-1].max() - less < high <= 150


@pytest.mark.parametrize("final", [0.5, 4.0, 15.0, 70.0, 90.0, 280.0, 400.0, 2000.0])
@QUIETLY
def test_y_ticks_are_plain_numbers_within_limits(store: Store, final: float) -> None:
    write(store, "nero", 0, [final * factor for factor in (9.0, 4.0, 2.0, 1.5, 1.2, 1.1, 1.0)])
    for axes in panels_of(store):
        low, high = axes.get_ylim()
        ticks = axes.get_yticks()
        assert 3 <= len(ticks) <= 15 or final == 2000
        assert all(low <= tick <= high for tick in ticks)
        assert [float(text.get_text()) for text in axes.get_yticklabels()] == pytest.approx(ticks.tolist())
        assert not len(axes.get_yticks(minor=True))


# learning curves and markers


def test_learning_curves_use_only_epochs_with_fid(store: Store) -> None:
    fill(store)
    figure = learning_curves(evidence_of(store, "table1"))
    [axes] = [axes for axes in figure.axes if face(axes).startswith("CIFAR-10 cGAN")]
    assert axes.get_ylabel() == "FID"
    for optim, name in OPTIMS.items():
        np.testing.assert_array_equal(lines(axes)[name][:, 0], EPOCHS)
        np.testing.assert_allclose(lines(axes)[name][:, 1], values(optim).mean(axis=1))


def test_isolated_fid_points_have_markers(store: Store) -> None:
    write(store, "nero", 0, [60.0])
    write(store, "sgd", 0, [60.0, 50.0, None, 40.0, None, 30.0, 25.0])
    write(store, "lamb", 0, [60.0, 50.0])
    figure = drawn(store)
    dotted = {
        label.split(",")[0]: line for label, line in zip(labels(figure.axes[1]), figure.axes[1].lines, strict=False)
    }
    assert (dotted["Nero"].get_marker(), dotted["Nero"].get_markevery()) == (".", [0])
    assert (dotted["SGD"].get_marker(), dotted["SGD"].get_markevery()) == (".", [3])
    assert dotted["LAMB"].get_marker() == "None"
    assert style.render(figure, "svg")
