"""Tests of what all figures share: texts within the figure, captions, empty panels, covered curves, same bytes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.stores import COMMITTED
from nero.report import catalogue, paper
from nero.report.evidence import Evidence
from nero.report.figures import curves, style
from nero.report.figures.cifar import figure5
from nero.report.figures.finishing import finish
from nero.report.figures.language import figure7
from nero.report.figures.scales import LogScale, plain_ticks
from nero.report.figures.texts import text_width, wrap
from nero.report.theory import report as theory
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, fill_cell, plausible, write_language_model

NOISE = 1e-12  # relative: more than the means of different processors differ
EDGE = 0.02  # inches


def panels(count: int = 2, title: str = "Title") -> tuple[Figure, list[Axes]]:
    with style.house_style():
        return style.panels(1, count, title)


def draw(axes: Axes, values: list[list[float]], label: str = "Nero", linestyle: str = style.OURS) -> None:
    """A curve over as many seeds as there are lists."""
    frame = pd.DataFrame([(seed, x, y) for seed, of in enumerate(values) for x, y in enumerate(of)])
    frame.columns = pd.Index(["seed", "epoch", "value"])
    curves.draw(axes, frame, "epoch", 1.0, "#D55E00", label, label, linestyle)


def finished(figure: Figure, **options: bool) -> Figure:
    with style.house_style():
        return finish(figure, **options)


def overhang(figure: Figure) -> float:
    """Inches by which anything lies outside the figure."""
    with style.house_style():
        drawn, whole = figure.get_tightbbox(), figure.bbox_inches
    return max(whole.x0 - drawn.x0, whole.y0 - drawn.y0, drawn.x1 - whole.x1, drawn.y1 - whole.y1)


def all_figures(store: Store) -> Iterator[tuple[str, Figure]]:
    summaries = store.summaries()
    for name in catalogue.CATALOGUE:
        yield from catalogue.make_figures(catalogue.gather(name, store, summaries)).items()


# ------------------------------------------------------------------------------------------------ titles and captions


@pytest.mark.slow
def test_figures_of_committed_runs_have_everything_inside() -> None:
    found = {name: overhang(figure) for name, figure in all_figures(Store(COMMITTED))}
    found |= {name: overhang(figure) for name, figure in theory.make_figures(Path(COMMITTED).parent / "theory").items()}
    assert {name: over for name, over in found.items() if over > EDGE} == {}


@pytest.mark.slow
def test_figures_of_an_empty_store_have_everything_inside(store: Store, tmp_path: Path) -> None:
    found = dict(all_figures(store)) | theory.make_figures(tmp_path / "none")
    assert {name for name, figure in found.items() if overhang(figure) > EDGE} == set()
    for figure in found.values():
        for axes in figure.axes:
            assert axes.texts or style.record(axes).series, "a panel without curves says why"


def test_long_titles_stay_inside_and_have_two_lines_at_most() -> None:
    figure, (axes,) = panels(1, "A title of a single panel with more words than would fit into one line of it, or so")
    long = ", ".join(["a task with many settings = 1"] * 5)
    style.set_title(axes, long, ["a note (in brackets)"])
    draw(axes, [[1, 2]])
    finished(figure)
    assert overhang(figure) <= EDGE
    assert "\n" in figure.get_suptitle()
    shown = axes.get_title(loc="left").splitlines()
    assert len(shown) == 2
    assert shown[1].endswith(" …")
    caption = " ".join(figure.get_supxlabel().split())
    assert caption == f"{long}; a note (in brackets)"


def test_notes_name_their_panels_unless_they_are_of_all() -> None:
    figure, axes = panels(3)
    for panel, notes in zip(axes, (["one", "all"], ["one", "all"], ["all"]), strict=True):
        style.set_title(panel, "panel", notes)
        draw(panel, [[1, 2]])
    assert finished(figure).get_supxlabel().splitlines() == ["(a, b) one", "all"]
    assert [panel.get_title(loc="left") for panel in axes] == ["(a) panel", "(b) panel", "(c) panel"]


def test_lines_are_as_wide_as_allowed_and_remarks_stay_whole() -> None:
    text = "search incomplete: Adam, LAMB (1 of 5 rates); missing: Nero at lr = 0.01 (seeds 1, 2)"
    for width in (60.0, 120.0, 200.0):
        lines = wrap(text, width, 8)
        assert " ".join(lines) == text
        assert all(line.count("(") == line.count(")") and not line.endswith("=") for line in lines)
        words = [line for line in lines if text_width(line, 8) > width]
        assert all(" " not in line or "(" in line or "=" in line for line in words)


def test_range_over_seeds_is_mentioned_only_if_there_is_one() -> None:
    for seeds, words in (([[1.0, 2.0]], "Title"), ([[1.0, 2.0], [2.0, 3.0]], "Title: mean and range over seeds")):
        figure, (axes,) = panels(1)
        draw(axes, seeds)
        assert finished(figure).get_suptitle() == words
        assert len(axes.collections) == len(seeds) - 1


# ------------------------------------------------------------------------------------------------------------- panels


def test_panel_without_curves_says_so() -> None:
    figure, (left, right) = panels()
    style.set_title(left, "left", ["missing: Nero (seed 0)"])
    draw(right, [[1, 2]])
    finished(figure)
    [text] = left.texts
    assert text.get_text() == "no runs logged yet\nmissing: Nero (seed 0)"
    assert not len(left.get_xticks())
    assert not right.texts
    assert not figure.get_supxlabel(), "it is in the panel"


def test_panel_with_the_papers_results_alone_keeps_its_axes(store: Store) -> None:
    left, right, *_ = figure5(evidence_of(store, "table1")).axes
    assert len(right.get_yticks())
    assert not len(left.get_yticks())
    for axes in (left, right):
        assert any("no runs logged yet" in text.get_text() for text in axes.texts)


def test_covered_curve_is_wider_than_the_one_on_top() -> None:
    figure, (axes,) = panels(1)
    chance, learning = [10.0] * 10, [*range(10, 20)]
    for label, values in (("SGD", chance), ("Adam", [y + 0.01 for y in chance]), ("LAMB", learning)):
        draw(axes, [[float(y) for y in values]], label)
    draw(axes, [chance], "authors", style.THEIRS)
    finished(figure)
    sgd, adam, lamb, authors = (line.get_linewidth() for line in axes.lines)
    assert sgd > adam == lamb == authors, "a dashed curve shows what is below it"


def test_paper_deviation_beyond_the_axis_has_an_arrow(store: Store) -> None:
    cell = cells_of("table1")["multi30k_transformer nero"]
    write_language_model(store, cell, 0.001, 0, 11.0)
    _, right = figure7(evidence_of(store, "table1")).axes
    low, _ = right.get_ylim()
    published = paper.table1().results
    cut = {key for key, found in published.items() if key[0] == paper.MULTI30K and found.mean - found.std < low}
    arrows = [line for line in right.lines if line.get_marker() == "v"]
    assert len(arrows) == len(cut) == 1
    assert all(line.get_ydata()[0] == low for line in arrows)


def test_log_scale_of_generic_figures_needs_errors_that_differ_much() -> None:
    for values, scale in (([90.0, 30.0, 10.0], "log"), ([12.0, 11.0, 10.0], "linear"), ([3.0, -1.0, 2.0], "linear")):
        _, (axes,) = panels(1)
        draw(axes, [values])
        curves.fit_log_scale(axes)
        assert axes.get_yscale() == scale


@pytest.mark.parametrize(("low", "high"), [(10.0, 12.0), (1.0, 9.0), (3.0, 2000.0), (1e-2, 1e6)])
def test_plain_ticks_cover_any_range_with_a_few(low: float, high: float) -> None:
    shown = [tick for tick in plain_ticks(low, high) if low <= tick <= high]
    assert 2 <= len(shown) <= 12
    assert plain_ticks(low, high)[-1] > high


# ------------------------------------------------------------------------------------------------------ reproducibility


def perturbed(evidence: Evidence) -> Evidence:
    """The same runs as another processor would average them."""
    for frame in (evidence.curves, evidence.traces):
        frame["value"] *= 1 + NOISE * np.random.default_rng(0).uniform(-1, 1, len(frame))
    return evidence


@pytest.mark.parametrize("file_format", ["pdf", "svg"])
def test_last_digits_of_data_do_not_change_a_file(store: Store, file_format: str) -> None:
    for optim in ("nero", "lamb"):
        fill_cell(store, cells_of("mnist")[f"mnist_mlp100 {optim}"], plausible)
    make = catalogue.CATALOGUE["mnist"].figures["figure3"]
    one, other = (make(evidence) for evidence in (evidence_of(store), perturbed(evidence_of(store))))
    assert style.render(one, file_format) == style.render(other, file_format)


@pytest.mark.parametrize("file_format", ["pdf", "svg"])
def test_last_digits_of_positions_do_not_change_a_file(file_format: str) -> None:
    def rendered(noise: float) -> bytes:
        figure, (axes,) = panels(1)
        draw(axes, [[1.0, 3.0, 2.0], [2.0, 4.0, 2.5]])
        finished(figure)
        axes.set_position([*np.array(axes.get_position().bounds) * (1 + noise)])
        return style.render(figure, file_format)

    assert rendered(0.0) == rendered(1e-14) == rendered(-1e-14)
    assert rendered(0.0) != rendered(1e-3)


def test_svg_keeps_text_as_text_and_unique_ids() -> None:
    figure, (axes,) = panels(1)
    draw(axes, [[1.0, 2.0], [2.0, 3.0]], "a label of 0.123456789")
    style.legend_below(axes)
    text = style.render(finished(figure), "svg").decode()
    assert "a label of 0.123456789" in text
    defined = [part.split('"')[0] for part in text.split(' id="')[1:]]
    assert len(defined) == len(set(defined))
    for used in (part.split(")")[0] for part in text.split("url(#")[1:]):
        assert used in defined


def test_scale_fits_what_follows_the_first_epochs() -> None:
    _, (axes,) = panels(1)
    draw(axes, [[1e6, 50.0, 20.0, 10.0, 10.0]])
    LogScale(plain_ticks, (1.0, 100.0), 4, 1).fit([axes])
    low, high = axes.get_ylim()
    assert low < 10
    assert 20 <= high < 1000
