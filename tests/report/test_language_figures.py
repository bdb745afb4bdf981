"""Tests of Figures 6 and 7: our curves, the paper's marks, the authors' curves, missing runs, and the y axis."""

import csv
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.plans.plan import Cell
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.language import figure6, figure7
from nero.report.figures.panels import LogScale
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, write_language_model
from support.read_figures import AUTHORS, band_at, bands, colours, face, labels, lines, marks

OPTIMS = {"nero": "Nero", "sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}
FINALS = {"nero": 12.0, "sgd": 90.0, "adam": 13.0, "lamb": 16.0}
SEEDS = np.array([0.0, 0.5, 4.0])  # offset of each seed

FIGURES: dict[str, tuple[str, int, Callable[..., Figure]]] = {
    "figure6": (paper.WIKITEXT2, paper.WIKITEXT2_EPOCHS, figure6),
    "figure7": (paper.MULTI30K, paper.MULTI30K_EPOCHS, figure7),
}
EVERY_FIGURE = pytest.mark.parametrize("name", FIGURES)
QUIETLY = pytest.mark.filterwarnings("error")


def drawn(store: Store, name: str) -> Figure:
    return FIGURES[name][2](evidence_of(store, "table1"))


def cell_of(name: str, optim: str) -> Cell:
    return cells_of("table1")[f"{FIGURES[name][0]} {optim}"]


def fill(store: Store, name: str, lr: float = 0.001) -> None:
    """Write all seeds of every optimiser at one learning rate; the rest of the grid is missing."""
    for optim, final in FINALS.items():
        for seed, added in enumerate(SEEDS):
            write_language_model(store, cell_of(name, optim), lr, seed, final + added)


# our curves


@EVERY_FIGURE
def test_panel_titles_and_axis_labels(store: Store, name: str) -> None:
    figure = drawn(store, name)
    left, right = figure.axes
    seen = {"figure6": "dropout on", "figure7": "label smoothing 0.1, dropout on"}[name]
    assert left.get_ylabel() == f"training perplexity during the epoch\n({seen})"
    assert right.get_ylabel() == "validation perplexity"
    arithmetic = style.PRECISIONS[cell_of(name, "nero").setting("precision")]
    assert [face(axes).split(" search incomplete: ")[0] for axes in figure.axes] == [
        f"Transformer ({arithmetic}), training",
        f"Transformer ({arithmetic}), validation",
    ]
    assert {"figure6": "Wikitext-2", "figure7": "Multi30k"}[name] in figure.get_suptitle()
    assert f"(Figure {name[-1]})" in figure.get_suptitle()


# the paper's marks and the authors' curves


def logged(optim: str, lr: float, metric: str) -> list[float]:
    """The authors' mean over seeds for each epoch, read directly from their log."""
    with (paper.PAPER / "multi30k_perplexity.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["optimizer"], float(row["lr"])) == (optim, lr)]
    by_epoch: dict[int, list[float]] = {}
    for row in rows:
        if row["metric"] == metric:
            by_epoch.setdefault(int(row["epoch"]), []).append(float(row["value"]))
    assert sorted(by_epoch) == list(range(100))
    assert {len(values) for values in by_epoch.values()} == {3}
    return [statistics.fmean(by_epoch[epoch]) for epoch in range(100)]


AUTHORS_RATES = {"nero": 0.001, "sgd": 0.0001, "adam": 0.0001, "lamb": 0.01}


def test_authors_curves_match_their_logs_with_epochs_from_one(store: Store) -> None:
    for axes, metric in zip(drawn(store, "figure7").axes, ("train", "val"), strict=True):
        found = lines(axes, AUTHORS)
        assert list(found) == list(OPTIMS.values())
        for optim, lr in AUTHORS_RATES.items():
            epochs, values = found[OPTIMS[optim]].T
            np.testing.assert_array_equal(epochs, range(1, 101))
            np.testing.assert_allclose(values, logged(optim, lr, metric))
            assert colours(axes, AUTHORS)[OPTIMS[optim]] == style.darker(style.COLOURS[optim])
    assert labels(axes, AUTHORS)[0] == "Nero, authors, η = 0.001, n = 3"


def test_authors_curves_end_at_paper_marks(store: Store) -> None:
    _, right = drawn(store, "figure7").axes
    for name, (_, mean, _, _) in marks(right).items():
        assert lines(right, AUTHORS)[name][-1, 1] == pytest.approx(mean, abs=0.0051)


def test_figure_6_has_no_authors_curves(store: Store) -> None:
    assert not any(lines(axes, AUTHORS) for axes in drawn(store, "figure6").axes)


def test_legend_entry_combines_authors_curve_and_paper_mark(store: Store) -> None:
    fill(store, "figure7")
    left, right = drawn(store, "figure7").axes
    for axes, theirs in (
        (left, labels(left, AUTHORS)),
        (right, [str(bar.get_label()) for bar in right.containers]),
    ):
        legend = axes.get_legend()
        assert [text.get_text() for text in legend.get_texts()] == [*labels(axes), *theirs]
        dashes = [line for line in legend.findobj(Line2D) if line.get_linestyle() == AUTHORS]
        assert len(dashes) == len(OPTIMS)


# non-finite and huge values


def panels_of(store: Store, name: str = "figure6", **curves: Sequence[Sequence[float | None]]) -> list[Axes]:
    """The panels of a figure with one run per curve; the figure is also rendered, which must not warn."""
    for optim, seeds in curves.items():
        for seed, curve in enumerate(seeds):
            write_language_model(store, cell_of(name, optim), 0.01, seed, curve[-1], curve=curve, status="done")
    figure = drawn(store, name)
    style.render(figure, "svg")
    return figure.axes


@QUIETLY
def test_non_finite_perplexity_is_a_gap_in_the_curve(store: Store) -> None:
    _, right = panels_of(store, nero=[[400, 300, None, 200, 180]])
    np.testing.assert_array_equal(lines(right)["Nero"], [[1, 400], [2, 300], [3, np.nan], [4, 200], [5, 180]])


@QUIETLY
def test_non_finite_seed_is_a_gap_in_mean_and_band(store: Store) -> None:
    left, right = panels_of(store, nero=[[400, None, 200, 180], [500, 250, 220, 190]])
    for axes, factor in ((left, 2), (right, 1)):
        np.testing.assert_array_equal(lines(axes)["Nero"][:, 1], factor * np.array([450, np.nan, 210, 185]))
        [band] = bands(axes)
        assert 2 not in band[:, 0]
        assert band_at(band, 3) == (factor * 200, factor * 220)


@QUIETLY
def test_run_ending_in_non_finite_perplexity_is_drawn_until_then(store: Store) -> None:
    _, right = panels_of(store, nero=[[400, 300, 250, 240], [400, 310, None, None]])
    assert lines(right)["Nero"].tolist() == [[1, 400], [2, 305]]
    assert "diverged: Nero (seed 1)" in face(right)


@QUIETLY
@pytest.mark.parametrize("huge", [1e5, 1e20, 1e300])
def test_huge_values_are_clipped_by_y_limits(store: Store, huge: float) -> None:
    tame = [500, 300, 250, 220, 200, 190, 185, 182]
    wild = [500, huge, 300, 260, huge, 240, 230, 225]
    for axes, factor in zip(panels_of(store, nero=[tame], sgd=[wild]), (2, 1), strict=True):
        low, high = axes.get_ylim()
        assert axes.get_yscale() == "log"
        assert low < factor * 182
        assert factor * 300 <= high <= 1000
        assert len(axes.get_yticks()) >= 3


@QUIETLY
def test_exploding_seed_does_not_stretch_y_limits(store: Store) -> None:
    tame = [500, 300, 250, 220, 200, 190, 185, 182]
    _, right = panels_of(store, sgd=[tame, tame, [1e6] * 8], nero=[tame])
    assert right.get_ylim()[1] == 1000


@QUIETLY
@pytest.mark.parametrize("high", [2e3, 4e7, 8e307])
def test_y_scale_is_valid_for_constant_high_perplexity(store: Store, high: float) -> None:
    left, _ = panels_of(store, sgd=[[high] * 8])
    low, top = left.get_ylim()
    assert 0 < low < top
    assert len(left.get_yticks()) >= 3
    assert left.get_xlim()[1] < 21, "there are no marks"


# y axis


def test_y_scale_ignores_first_epochs(store: Store) -> None:
    curve = [9000, 280, 240, 220, 210, 205, 200, 195]
    _, right = panels_of(store, nero=[curve])
    low, high = right.get_ylim()
    assert low == pytest.approx(172.99 / 1.15), "the least that is drawn is the paper's Nero"
    assert high == 250, "the tick above three quarters of what follows"
    assert [text.get_text() for text in right.get_yticklabels()] == ["160", "180", "200", "220", "250"]


def test_log_scale_ignores_non_finite_values() -> None:
    axes = Figure().subplots()
    axes.plot(range(1, 9), [900, 650, 640, np.nan, 630, np.inf, 200, 190])
    LogScale(lambda low, high: (200, 250, 300, 700, 1000), (1, 1e6), epochs=20, start=1, share=0.5).fit([axes])
    assert axes.get_ylim() == (pytest.approx(190 / 1.15), 700)


def test_y_limits_include_end_of_rising_curve(store: Store) -> None:
    _, right = panels_of(store, nero=[[400, 300, 200, 190, 190, 190, 190, 190, 190, 600]])
    assert right.get_ylim()[1] == 700


def test_y_limits_include_end_of_truncated_curve(store: Store) -> None:
    _, right = panels_of(store, nero=[[400, 300, 200, 190]], lamb=[[900, 600]])
    assert right.get_ylim()[1] == 700


def test_large_paper_standard_deviation_does_not_stretch_y_limits(store: Store) -> None:
    _, right = drawn(store, "figure7").axes
    assert marks(right)["SGD"][2] < 3
    least = min(points[:, 1].min() for points in lines(right, AUTHORS).values())
    assert right.get_ylim()[0] == pytest.approx(min(11.35, least) / 1.15)
    assert right.get_ylim()[1] <= 1000
