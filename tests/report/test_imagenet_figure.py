"""Tests of Figure 9 and its table: a curve per setting, the target line, and reports of missing runs."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from conftest import slow_after
from nero.plans.config import compose
from nero.plans.plan import Cell, survey
from nero.report import catalogue, paper
from nero.report.cells import EmbeddedDataError, require_real
from nero.report.figures import style
from nero.report.figures.figure9 import figure9
from nero.report.tables.listings import curve_name as name_of
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, loaded, states_of, without_task, write_classifier
from support.markdown_rows import markdown_rows
from support.read_figures import AUTHORS, band_at, bands, colours, face, labels, lines, marks
from support.tables import to_csv, to_latex, to_markdown

NAMES = {"Nero OOTB": "nero", "Nero tuned": "nero_tuned", "SGD": "sgd 0.0", "SGD + weight decay": "sgd 0.0001"}
FINALS = {"nero": 0.254, "nero_tuned": 0.238, "sgd 0.0": 0.268, "sgd 0.0001": 0.235}
RATES = {"nero": 0.01, "nero_tuned": 0.02, "sgd 0.0": 0.1, "sgd 0.0001": 0.1}
TARGET = 23.7
QUIETLY = pytest.mark.filterwarnings("error")


def cell_of(words: str) -> Cell:
    return cells_of("imagenet")[f"{paper.IMAGENET} {words}"]


def run(store: Store, words: str, final: float | None, **others: Any) -> None:
    """Log all seeds of a setting with the same values."""
    for seed in cell_of(words).seeds:
        write_classifier(store, cell_of(words), RATES[words], seed, final, **others)


def fill(store: Store) -> None:
    for words, final in FINALS.items():
        run(store, words, final)


def drawn(store: Store, further: Sequence[Cell] = ()) -> Figure:
    """Figure 9 with the experiment's cells and the cells in `further`."""
    _, states = states_of(store, "imagenet")
    summaries = store.summaries()
    return figure9(evidence_of(store, "imagenet", [*states, *(survey(cell, summaries) for cell in further)]))


def target_of(axes: Axes) -> np.ndarray:
    [line] = [line for line in axes.lines if line.get_linestyle() == "-."]
    return np.asarray(line.get_xydata())


# planned runs


def test_experiment_cells_match_paper_settings() -> None:
    sgd = [cell_of(words) for words in ("sgd 0.0", "sgd 0.0001")]
    assert [(c.setting("optim.momentum"), c.setting("optim.weight_decay")) for c in sgd] == [(0.9, 0.0), (0.9, 0.0001)]
    assert cell_of("nero_tuned").setting("optim.sigma_b") == 1.0
    assert cell_of("nero_tuned").setting("optim.gain_penalty") > 0
    assert not cell_of("nero").setting("optim.gain_penalty")
    assert {words: cell_of(words).lrs for words in FINALS} == {words: (lr,) for words, lr in RATES.items()}
    assert len(loaded("imagenet").cells) == len(FINALS)


def test_x_axis_ends_at_configured_epochs() -> None:
    assert compose([f"task={paper.IMAGENET}"]).epochs == paper.IMAGENET_EPOCHS == 90


# our curves


def test_lines_are_errors_in_per_cent_for_each_setting(store: Store) -> None:
    fill(store)
    left, right = drawn(store).axes
    for axes, factor in ((left, 1 / 5), (right, 1)):
        found = lines(axes)
        assert list(found) == list(NAMES)
        for name, words in NAMES.items():
            errors = np.array([90, 200 * FINALS[words], 100 * FINALS[words]])  # as `write_classifier` logs them
            np.testing.assert_array_equal(found[name][:, 0], [1, 2, 3])
            np.testing.assert_allclose(found[name][:, 1], factor * errors)
    assert labels(right) == [
        "Nero OOTB, η = 0.01, n = 3",
        "Nero tuned, η = 0.02, n = 3",
        "SGD, η = 0.1, n = 3",
        "SGD + weight decay, η = 0.1, n = 3",
    ]


def test_each_setting_has_its_own_colour_and_base_ones_use_house_colours(store: Store) -> None:
    fill(store)
    left, right = drawn(store).axes
    found = colours(right)
    assert colours(left) == found
    assert len(set(found.values())) == 4
    assert found["Nero OOTB"] == style.COLOURS["nero"]
    assert found["SGD"] == style.COLOURS["sgd"]


def test_names_and_colours_do_not_depend_on_cell_order(store: Store) -> None:
    fill(store)
    _, states = states_of(store, "imagenet")
    _, right = figure9(evidence_of(store, "imagenet", states[::-1])).axes
    _, usual = drawn(store).axes
    assert colours(right) == colours(usual)
    assert {name: line[-1, 1] for name, line in lines(right).items()} == {
        name: pytest.approx(100 * FINALS[words]) for name, words in NAMES.items()
    }


def test_several_seeds_are_drawn_as_mean_and_range(store: Store) -> None:
    for seed, final in enumerate((0.23, 0.234, 0.25)):
        write_classifier(store, cell_of("sgd 0.0001"), 0.1, seed, final)
    _, right = drawn(store).axes
    assert lines(right)["SGD + weight decay"][-1, 1] == pytest.approx(23.8)
    [band] = bands(right)
    assert band_at(band, 3) == (pytest.approx(23), pytest.approx(25))


def test_panel_titles_and_axis_labels(store: Store) -> None:
    fill(store)
    figure = drawn(store)
    assert "ImageNet (Figure 9)" in figure.get_suptitle()
    left, right = figure.axes
    arithmetic = style.PRECISIONS[cell_of("nero").setting("precision")]
    assert face(left).split(" missing: ")[0] == f"ResNet-50 ({arithmetic}), training"
    assert face(right).split(" missing: ")[0] == f"ResNet-50 ({arithmetic}), validation"
    assert left.get_ylabel() == "training top-1 error (%) during the epoch\n(augmented)"
    assert right.get_ylabel() == "validation top-1 error (%)"
    for axes in (left, right):
        assert axes.get_xlabel() == "epoch"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "15", "30", "45", "60", "75", "90"]


# target line


@pytest.mark.parametrize("final", [None, 0.6, 0.235, 0.05])
def test_validation_panel_shows_target_line_within_limits(store: Store, final: float | None) -> None:
    if final is not None:
        run(store, "sgd 0.0001", final, curve=[0.99, *[final] * 89])
    left, right = drawn(store).axes
    assert target_of(right).tolist() == [[0, TARGET], [90, TARGET]]
    low, high = right.get_ylim()
    assert low < TARGET < high
    assert not [line for line in left.lines if line.get_linestyle() == "-."]
    assert not marks(right), "the paper prints no final error"
    assert not lines(right, AUTHORS), "the authors' runs are not logged"


def test_target_label_is_placed_just_below_its_line(store: Store) -> None:
    fill(store)
    figure = drawn(store)
    _, right = figure.axes
    figure.draw_without_rendering()
    [words] = right.texts
    assert (
        words.get_text().replace("\n", " ") == "target: 23.7 % (76.3 % top-1), passed by the paper's SGD + weight decay"
    )
    place, around = words.get_window_extent(), right.get_window_extent()
    _, line = right.transData.transform((0, TARGET))
    assert line - 10 < place.y1 < line
    assert around.x0 <= place.x0 < place.x1 <= around.x1
    assert around.y0 <= place.y0


def test_target_is_not_in_the_legend(store: Store) -> None:
    fill(store)
    for axes in drawn(store).axes:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == labels(axes)


# additional rows


def sgd(*overrides: str, **swept: float) -> Cell:
    variant = tuple((f"optim.{key}", value) for key, value in swept.items())
    return Cell(paper.IMAGENET, "sgd", (0.1,), 0, (), variant, overrides)


def nero(*overrides: str, optim: str = "nero", lr: float = 0.01, **swept: float) -> Cell:
    return replace(sgd(*overrides, **swept), optim=optim, lrs=(lr,))


OTHERS = {
    "Adam": Cell(paper.IMAGENET, "adam", (0.001,), 0, ()),
    "LAMB": Cell(paper.IMAGENET, "lamb", (0.01, 0.1), 0, ()),
    "SGD at momentum = 0.0": sgd("optim.momentum=0.0"),
    "SGD + weight decay at momentum = 0.5": sgd("optim.momentum=0.5", weight_decay=0.0001),
    "SGD at weight decay = 0.0005": sgd("optim.momentum=0.9", weight_decay=0.0005),
    "SGD at weight decay = 0.001": sgd("optim.momentum=0.9", "optim.weight_decay=0.001"),
    "SGD at nesterov = on": sgd("optim.momentum=0.9", "+optim.nesterov=true"),
    "Nero at gain penalty = 0.01": nero("+optim.gain_penalty=0.01"),
    "Nero": nero(lr=0.02),
    "Nero tuned at gain penalty = 0.001": nero(optim="nero_tuned", lr=0.02, gain_penalty=0.001),
    "Nero tuned at sigma b = 0.5": nero("optim.sigma_b=0.5", optim="nero_tuned", lr=0.02),
    "Nero tuned at precision = fp32": replace(nero(optim="nero_tuned"), variant=(("precision", "fp32"),)),
}
"""Additional cells, by their expected names."""


def test_cells_are_named_by_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {**{name: cell_of(words) for name, words in NAMES.items()}, **OTHERS}
    assert [name_of(cell) for cell in expected.values()] == list(expected)
    without_task(monkeypatch, paper.IMAGENET)
    assert [name_of(cell) for cell in expected.values()] == list(expected), "what it is called is known before"


BESIDE = [name for name in OTHERS if name != "Nero"]  # a table has each unswept optimiser only once


@pytest.mark.parametrize("name", slow_after(3, BESIDE))
def test_additional_row_is_drawn_without_changing_other_colours(store: Store, name: str) -> None:
    fill(store)
    cell = OTHERS[name]
    write_classifier(store, cell, cell.lrs[0], 0, 0.3)
    usual = colours(drawn(store).axes[0])
    for axes, final in zip(drawn(store, [cell]).axes, (6, 30), strict=True):
        found = colours(axes)
        assert found.keys() == {*NAMES, name}
        assert found.items() >= usual.items()
        assert len(set(found.values())) == 5
        assert lines(axes)[name][-1, 1] == pytest.approx(final)


def test_additional_row_without_runs_is_reported_missing(store: Store) -> None:
    fill(store)
    for axes in drawn(store, [OTHERS["Nero tuned at gain penalty = 0.001"]]).axes:
        assert face(axes).endswith("missing: Nero tuned at gain penalty = 0.001 (seed 0)")


@pytest.mark.parametrize("further", [0, 1, len(BESIDE)])
def test_legends_stay_within_figure_and_do_not_overlap_panels(store: Store, further: int) -> None:
    fill(store)
    others = [OTHERS[name] for name in BESIDE[:further]]
    for cell in others:
        write_classifier(store, cell, cell.lrs[0], 0, 0.3)
    figure = drawn(store, others)
    panels = [axes.get_window_extent() for axes in figure.axes]
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)
    for legend in (first, second):
        assert not any(legend.overlaps(panel) for panel in panels)
        assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= legend.y0
    for panel in panels:  # legends do not shrink the panels
        assert panel.width > 0.35 * figure.bbox.width
        assert panel.height > 2 * figure.dpi


def test_two_cells_for_one_curve_raise(store: Store) -> None:
    again = replace(cell_of("sgd 0.0"), overrides=("optim.momentum=0.9", "task.epochs=30"))
    with pytest.raises(ValueError, match="a panel has sgd twice"):
        drawn(store, [again])


def test_cells_of_other_tasks_are_not_drawn(store: Store) -> None:
    fill(store)
    other = replace(cell_of("nero"), task=paper.RESNET18)
    assert list(lines(drawn(store, [other]).axes[0])) == list(NAMES)


# missing and diverged runs


def test_missing_and_diverged_runs_are_reported(store: Store) -> None:
    run(store, "sgd 0.0", 0.27)
    run(store, "nero", None, curve=[0.99, 0.98])
    for axes in drawn(store).axes:
        assert "missing: Nero tuned, SGD + weight decay (seeds 0, 1, 2)" in face(axes)
        assert "diverged: Nero OOTB (seeds 0, 1, 2)" in face(axes)
        assert lines(axes).keys() == {"Nero OOTB", "SGD"}
        assert lines(axes)["Nero OOTB"][:, 0].tolist() == [1, 2]


def test_figure_reports_unavailable_task(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    without_task(monkeypatch, paper.IMAGENET)
    for axes in drawn(store).axes:
        assert "missing: Nero OOTB, Nero tuned, SGD, SGD + weight decay (task imagenet_resnet50 is" in face(axes)
        assert not lines(axes)
        assert axes.get_legend() is None


@pytest.mark.parametrize("words", FINALS)
def test_table_refuses_embedded_data(store: Store, words: str) -> None:
    run(store, words, 0.3, data="embedded")
    with pytest.raises(EmbeddedDataError):
        catalogue.make_table(catalogue.gather("imagenet", store))


def test_embedded_cell_is_named_before_its_runs(store: Store) -> None:
    states = states_of(store, "smoke")[1]
    with pytest.raises(EmbeddedDataError, match=r"^mnist_mlp100 with nero uses embedded data: not comparable"):
        require_real([replace(states[0], search={0.01: {"run_id": "x", "data": "embedded"}})])


# y axis


def test_y_scale_ignores_first_epochs_and_has_plain_ticks(store: Store) -> None:
    for words, final in FINALS.items():
        run(store, words, final, curve=[0.95, 0.9, 0.8, 0.75, 0.7, *np.linspace(0.58, final, 85)])
    left, right = drawn(store).axes
    assert right.get_ylim()[1] == 60
    assert left.get_ylim()[1] == 12, "a fifth of the validation's 58 %"
    for axes in (left, right):
        assert axes.get_yscale() == "log"
        ticks = axes.get_yticks()
        assert len(ticks) >= 3
        assert [float(text.get_text()) for text in axes.get_yticklabels()] == ticks.tolist()
        assert axes.get_ylim()[0] < min(ticks)
        assert not len(axes.get_yticks(minor=True))
    assert {22, 25, 30} <= set(right.get_yticks()), "where the settings end"


def test_wide_scale_has_coarser_ticks(store: Store) -> None:
    run(store, "nero", 0.1, curve=[*[0.95] * 50, *[0.1] * 40])
    ticks = drawn(store).axes[1].get_yticks()
    assert ticks.tolist() == [10, 15, 20, 25, 30, 40, 50, 60, 80, 100]


# table


LISTED = ["SGD", "SGD + weight decay", "Nero OOTB", "Nero tuned"]  # in the experiment's order


def table_of(store: Store) -> list[list[str]]:
    return markdown_rows(to_markdown(catalogue.make_table(catalogue.gather("imagenet", store))))


def test_table_has_a_row_per_setting_and_ranks_them(store: Store) -> None:
    fill(store)
    penalty = cell_of("nero_tuned").setting("optim.gain_penalty")
    heads, _, *body = table_of(store)
    assert heads == ["curve", "settings", "top-1 error (%) ↓, ours"], "the paper has no numbers for a column"
    assert body == [
        ["SGD", "momentum = 0.9, weight decay = 0.0", "26.80 ± 0.00 (n = 3, η = 0.1)"],
        ["SGD + weight decay", "momentum = 0.9, weight decay = 0.0001", "**23.50 ± 0.00** (n = 3, η = 0.1)"],
        ["Nero OOTB", "beta = 0.999", "25.40 ± 0.00 (n = 3, η = 0.01)"],
        [
            "Nero tuned",
            f"beta = 0.999, sigma b = 1.0, gain penalty = {penalty}",
            "<u>23.80 ± 0.00</u> (n = 3, η = 0.02)",
        ],
    ]


def test_table_reports_missing_runs_and_paper_target(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_markdown(catalogue.make_table(catalogue.gather("imagenet", store)))
    assert "its SGD with weight decay surpassed 76.3 % top-1 accuracy, an error of 23.7 %." in text
    assert "paper: float32" not in text, "nothing of the paper's stands beside ours"
    assert [(words[0], words[-1]) for words in table_of(store)[2:]] == [(name, "missing") for name in LISTED]
    without_task(monkeypatch, paper.IMAGENET)
    assert [(words[0], words[-1]) for words in table_of(store)[2:]] == [(name, "missing") for name in LISTED]


def test_table_in_latex_and_csv(store: Store) -> None:
    fill(store)
    table = catalogue.make_table(catalogue.gather("imagenet", store))
    latex = to_latex(table)
    assert latex.isascii()
    assert r"SGD + weight decay & momentum = 0.9, weight decay = 0.0001 & \textbf{23.50 $\pm$ 0.00}" in latex
    found = {(line["optim"], line["variant"]): line for line in csv.DictReader(io.StringIO(to_csv(table)))}
    assert {key: float(line["mean"]) for key, line in found.items()} == {
        ("sgd", "weight_decay = 0.0"): 26.8,
        ("sgd", "weight_decay = 0.0001"): 23.5,
        ("nero", ""): 25.4,
        ("nero_tuned", ""): 23.8,
    }
    assert {line["paper_mean"] for line in found.values()} == {""}


# CIFAR-10 in ImageNet's place


def test_pipeline_has_imagenets_settings_on_another_task_with_three_seeds() -> None:
    stand_ins = {cell.optim + str(cell.variant): cell for cell in loaded("pipeline").cells}
    for cell in loaded("imagenet").cells:
        ours = stand_ins.pop(cell.optim + str(cell.variant))
        assert (ours.task, ours.lrs, ours.repeat_seeds) == (paper.IMAGENET_STAND_IN, cell.lrs, (1, 2))
        for key in ("epochs", "batch_size", "network", "schedule"):
            assert ours.setting(f"task.{key}") == cell.setting(f"task.{key}"), key
        assert ours.setting("optim") == cell.setting("optim")
    assert not stand_ins


@QUIETLY
def test_pipeline_figure_has_the_same_curves_and_no_target(store: Store) -> None:
    planned = cells_of("pipeline")
    for words, final in FINALS.items():
        for seed in (0, 1, 2):
            write_classifier(store, planned[f"{paper.IMAGENET_STAND_IN} {words}"], RATES[words], seed, final / 3)
    evidence = catalogue.gather("pipeline", store)
    left, right = catalogue.make_figures(evidence)["pipeline"].axes
    for axes in (left, right):
        assert list(lines(axes)) == list(NAMES)
        assert [line for line in axes.lines if line.get_linestyle() == "-."] == []
    assert [name.partition(", ")[2] for name in labels(right)] == [
        f"η = {RATES[words]:g}, n = 3" for words in NAMES.values()
    ]
    table = catalogue.make_table(evidence)
    assert [row[0] for row in markdown_rows(to_markdown(table))[2:]] == ["SGD", "SGD + weight decay", *list(NAMES)[:2]]
    assert "paper" not in to_markdown(table).replace("(not in the paper)", "")
