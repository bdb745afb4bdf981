"""Tests of Figures 1, 2 and 5: our curves, the paper's marks, reports of missing runs, and the y axis."""

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from nero.plans.plan import Cell, survey
from nero.plans.schema import PRECISIONS
from nero.report import paper
from nero.report.figures import cifar, panels, style
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, in_words, loaded, states_of, write_classifier
from support.read_figures import band_at, bands, colours, face, labels, lines, marks

CELLS = {in_words(cell): cell for cell in loaded("ablation").cells}
NERO = ["nero 0 0", "nero 1 0", "nero 0 1", "nero 1 1"]
WITHOUT = {"Nero": "nero 0 0", "LAMB": "lamb", "Madam": "madam"}
WITH = {"Nero": "nero 1 1", "LAMB": "lamb_constrained", "Madam": "madam_constrained"}
FINALS = {name: 0.08 + 0.01 * place for place, name in enumerate(CELLS)}
SEEDS = np.array([0.0, 0.002, 0.01])  # offset of each seed

FIGURES: dict[str, tuple[str, Callable[..., Figure]]] = {
    "figure1": ("ablation", cifar.figure1),
    "figure2": ("ablation", cifar.figure2),
    "figure5": ("table1", cifar.figure5),
}
EVERY_FIGURE = pytest.mark.parametrize("name", FIGURES)


def drawn(store: Store, name: str) -> Figure:
    experiment, figure = FIGURES[name]
    return figure(evidence_of(store, experiment))


def seeds_at(store: Store, cell: Cell, lr: float, final: float, seeds: int = 3) -> None:
    for seed in range(seeds):
        write_classifier(store, cell, lr, seed, final + SEEDS[seed])


def fill_ablation(store: Store, lr: float = 0.02) -> None:
    """Write all seeds of every cell at one learning rate; the rest of the grid is missing."""
    for name, cell in CELLS.items():
        seeds_at(store, cell, lr, FINALS[name])


TABLE1_FINALS = {paper.VGG11: 0.12, paper.RESNET18: 0.06}


def fill_table1(store: Store, lr: float = 0.01) -> None:
    """Write all seeds at one learning rate of the Table 1 cells that Figure 5 shows."""
    for task, final in TABLE1_FINALS.items():
        for optim in ("nero", "sgd", "adam", "lamb"):
            seeds_at(store, cells_of("table1")[f"{task} {optim}"], lr, final)


def expected(final: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, minimum and maximum validation error (%) of the runs of `seeds_at`, for each epoch."""
    seeds = 100 * np.array([[0.9, 2 * (final + s), final + s] for s in SEEDS])
    return seeds.mean(axis=0), seeds.min(axis=0), seeds.max(axis=0)


# our curves


def test_figure_1_has_a_curve_per_nero_constraint_combination(store: Store) -> None:
    fill_ablation(store)
    left, right = drawn(store, "figure1").axes
    for axes, factor in ((left, 1 / 5), (right, 1)):
        found = lines(axes)
        assert list(found) == ["neither", "mean", "norm", "both"]
        for label, name in zip(found, NERO, strict=True):
            mean, _, _ = expected(FINALS[name])
            np.testing.assert_array_equal(found[label][:, 0], [1, 2, 3])
            np.testing.assert_allclose(found[label][:, 1], factor * mean)
    assert len(set(colours(right).values())) == 4
    assert colours(right)["both"] == style.COLOURS["nero"], "that is Nero as all other figures have it"


def test_bands_span_seed_minimum_to_maximum(store: Store) -> None:
    fill_ablation(store)
    _, right = drawn(store, "figure1").axes
    first, *others = bands(right)
    assert len(others) == 3
    _, low, high = expected(FINALS["nero 0 0"])
    for epoch in (1, 2, 3):
        assert band_at(first, epoch) == (pytest.approx(low[epoch - 1]), pytest.approx(high[epoch - 1]))


def test_figure_2_compares_optimisers_without_and_with_constraints(store: Store) -> None:
    fill_ablation(store)
    panels = drawn(store, "figure2").axes
    for row, cells in ((panels[:2], WITHOUT), (panels[2:], WITH)):
        for axes, factor in zip(row, (1 / 5, 1), strict=True):
            assert {name: line[-1, 1] for name, line in lines(axes).items()} == {
                name: pytest.approx(factor * expected(FINALS[cell])[0][-1]) for name, cell in cells.items()
            }
            assert colours(axes) == {name: style.COLOURS[name.lower()] for name in cells}
    assert [face(axes).split(",")[0] for axes in panels[::2]] == [
        "Without constraints (bf16)",
        "With both constraints (bf16)",
    ]


def test_rows_of_figure_2_share_y_limits(store: Store) -> None:
    fill_ablation(store)
    panels = drawn(store, "figure2").axes
    assert panels[0].get_ylim() == panels[2].get_ylim() != panels[1].get_ylim() == panels[3].get_ylim()


def test_figure_5_has_vgg_in_top_row_and_resnet_in_bottom_row(store: Store) -> None:
    fill_table1(store)
    panels = drawn(store, "figure5").axes
    assert [face(axes).split(" (")[0] for axes in panels] == ["VGG-11", "VGG-11", "ResNet-18", "ResNet-18"]
    for axes, final in zip(panels[1::2], TABLE1_FINALS.values(), strict=True):
        found = lines(axes)
        assert list(found) == ["Nero", "SGD", "Adam", "LAMB"]
        np.testing.assert_allclose(found["Adam"][:, 1], expected(final)[0])


@EVERY_FIGURE
def test_y_labels_describe_metric(store: Store, name: str) -> None:
    panels = drawn(store, name).axes
    assert all("training error (%) during the epoch" in axes.get_ylabel() for axes in panels[::2])
    assert all("augmented" in axes.get_ylabel() for axes in panels[::2])
    assert "dropout on" in panels[0].get_ylabel()
    assert all(axes.get_ylabel() == "validation error (%)" for axes in panels[1::2])
    if name == "figure5":
        assert "dropout" not in panels[2].get_ylabel(), "ResNet-18 has none"


def test_panel_titles_state_precision(store: Store) -> None:
    said = {name: [face(axes).split(" search incomplete: ")[0] for axes in drawn(store, name).axes] for name in FIGURES}
    assert said["figure1"] == [f"Nero's constraints (bf16), {which}" for which in ("training", "validation")]
    assert said["figure2"][3] == "With both constraints (bf16), validation"
    assert said["figure5"][1] == "VGG-11 (TF32), validation"
    assert said["figure5"][2] == "ResNet-18 (bf16), training"
    assert style.PRECISIONS.keys() == set(PRECISIONS)


# precision and labels


def test_legend_states_precision_where_it_differs_from_panel(store: Store) -> None:
    adam = cells_of("table1")["cifar10_vgg11 adam"]
    seeds_at(store, cells_of("table1")["cifar10_vgg11 nero"], 0.01, 0.11)
    seeds_at(store, adam, 0.001, 0.13)
    assert adam.setting("precision") == "fp32"
    figure = drawn(store, "figure5")
    for axes in figure.axes[:2]:
        assert face(axes).startswith("VGG-11 (TF32), ")
        assert labels(axes) == ["Nero, η = 0.01, n = 3", "Adam, η = 0.001, float32, n = 3"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("figure1", "cifar10_vgg11 nero True True"),
        ("figure2", "cifar10_vgg11 lamb"),
        ("figure5", "cifar10_resnet18 sgd"),
    ],
)
def test_labelled_row_has_its_own_curves(store: Store, name: str, words: str) -> None:
    experiment, figure = FIGURES[name]
    cell = cells_of(experiment)[words]
    other = replace(cell, label="another start", overrides=(*cell.overrides, "task.batch_size=100"))
    seeds_at(store, cell, 0.01, 0.11)
    seeds_at(store, other, 0.01, 0.12)
    _, states = states_of(store, experiment)
    panels = figure(evidence_of(store, experiment, [*states, survey(other, store.summaries())])).axes
    [(one, two)] = {tuple(labels(axes)) for axes in panels if labels(axes)}
    first = one.partition(",")[0]
    assert two == f"{first}, another start, η = 0.01, n = 3"
    for axes in panels:
        if labels(axes):
            ours = [line for line in axes.lines if line.get_linestyle() == "-"]
            assert len({line.get_color() for line in ours}) == 2
            assert sum(str(bar.get_label()).startswith(f"{first},") for bar in axes.containers) <= 1


# the paper's marks


def test_paper_final_values_of_table_1_are_marked(store: Store) -> None:
    panels = drawn(store, "figure5").axes
    with (paper.PAPER / "table1.csv").open(newline="") as file:
        printed = list(csv.DictReader(file))
    for axes, model in zip(panels[1::2], ("VGG11", "ResNet-18"), strict=True):
        rows = {style.name(row["optimizer"]): row for row in printed if row["model"] == model}
        found = marks(axes)
        assert found.keys() == rows.keys()
        for name, (_, mean, low, high) in found.items():
            std = float(rows[name]["std"])
            assert mean == float(rows[name]["mean"])
            assert (low, high) == (pytest.approx(mean - std), pytest.approx(mean + std))
    assert not marks(panels[0])
    assert not marks(panels[2])


def test_paper_final_values_of_ablation_are_marked(store: Store) -> None:
    _, right = drawn(store, "figure1").axes
    assert {name: mark[1] for name, mark in marks(right).items()} == {
        "neither": 12.17,
        "mean": 11.99,
        "norm": 10.03,
        "both": 8.61,
    }
    panels = drawn(store, "figure2").axes
    assert {name: mark[1] for name, mark in marks(panels[1]).items()} == {"Nero": 12.17, "LAMB": 12.73, "Madam": 12.77}
    assert {name: mark[1] for name, mark in marks(panels[3]).items()} == {"Nero": 8.61, "LAMB": 8.88, "Madam": 12.60}


@EVERY_FIGURE
def test_paper_marks_do_not_overlap_curves_or_each_other(store: Store, name: str) -> None:
    for axes in drawn(store, name).axes[1::2]:
        epochs = [x for x, *_ in marks(axes).values()]
        assert min(epochs) > paper.CIFAR10_EPOCHS
        assert max(epochs) < axes.get_xlim()[1]
        assert np.diff(sorted(epochs)).min() >= panels.MARK_SPACING * paper.CIFAR10_EPOCHS
        assert max(axes.get_xticks()) == paper.CIFAR10_EPOCHS, "there is no epoch in the paper's strip"


def test_paper_mark_has_curve_colour_and_label(store: Store) -> None:
    _, right = drawn(store, "figure1").axes
    both = right.containers[-1]
    assert both.get_label() == "both, paper: 8.61 ± 0.22, η = 0.02"
    nero = style.COLOURS["nero"]
    assert to_hex(both[0].get_color()) == style.darker(nero)
    assert to_hex(both[2][0].get_color()[0]) == nero.lower()


# missing and diverged runs, legends


def test_partial_search_is_drawn_and_reported_incomplete(store: Store) -> None:
    seeds_at(store, CELLS["nero 1 1"], 0.02, 0.09)
    seeds_at(store, CELLS["nero 0 1"], 0.04, 0.10, seeds=1)
    for axes in drawn(store, "figure1").axes:
        assert labels(axes) == ["norm, η = 0.04, n = 1 of 3", "both, η = 0.02, n = 3"]
        assert "search incomplete: neither, mean (0 of 6 rates); norm, both (1 of 6 rates)" in face(axes)


def test_better_lr_is_drawn_with_its_available_seeds(store: Store) -> None:
    seeds_at(store, CELLS["nero 1 1"], 0.02, 0.09)
    seeds_at(store, CELLS["nero 1 1"], 0.06, 0.08, seeds=2)
    _, right = drawn(store, "figure1").axes
    assert labels(right) == ["both, η = 0.06, n = 2 of 3"]
    assert "both (2 of 6 rates)" in face(right)


def test_panels_report_diverged_runs(store: Store) -> None:
    for lr in CELLS["madam"].lrs:
        write_classifier(store, CELLS["madam"], lr, 0, None)
    for lr in CELLS["lamb"].lrs:
        write_classifier(store, CELLS["lamb"], lr, 0, 0.12 if lr == 0.02 else None)
    write_classifier(store, CELLS["lamb"], 0.02, 1, None)
    write_classifier(store, CELLS["lamb"], 0.02, 2, 0.13)
    for axes in drawn(store, "figure2").axes[:2]:
        assert "search incomplete: Nero (0 of 6 rates)" in face(axes)
        assert "diverged: LAMB (seed 1); Madam (every learning rate)" in face(axes)
        assert lines(axes).keys() == {"LAMB"}
        assert lines(axes)["LAMB"][:, 0].tolist() == [1], "the seed that diverged has one epoch"


def test_legend_rows_pair_our_curve_with_paper_mark(store: Store) -> None:
    seeds_at(store, CELLS["nero 1 1"], 0.02, 0.09)
    seeds_at(store, CELLS["nero 0 0"], 0.02, 0.12)
    _, right = drawn(store, "figure1").axes
    texts = [text.get_text() for text in right.get_legend().get_texts()]
    beside = dict(zip(texts[4:], texts[:4], strict=True))
    assert [ours for ours in beside.values() if ours.strip()] == labels(right)
    assert {theirs.split(",")[0] for theirs, ours in beside.items() if not ours.strip()} == {"mean", "norm"}
    assert all(ours.split(",")[0] == theirs.split(",")[0] for theirs, ours in beside.items() if ours.strip())


# y axis


def long_curve(last: float) -> list[float]:
    """Ten epochs of errors that fall from 95 %, to 20 % in the first epoch after the five that the scale ignores."""
    return [0.95, 0.8, 0.6, 0.5, 0.3, 0.2, 0.19, 0.18, 0.17, last]


def panel_of(store: Store, **curves: list[float]) -> Axes:
    """The validation panel of Figure 2 (top) with one run per named optimiser."""
    for optim, curve in curves.items():
        write_classifier(store, CELLS[WITHOUT[optim]], 0.02, 0, curve[-1], curve=curve)
    return drawn(store, "figure2").axes[1]


def test_y_scale_ignores_first_epochs(store: Store) -> None:
    axes = panel_of(store, Nero=long_curve(0.07))
    low, high = axes.get_ylim()
    assert axes.get_yscale() == "log"
    assert 5 < low < 7
    assert high == 20, "the limit is the tick above all that follows the first epochs"
    assert high in axes.get_yticks()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["8", "10", "12", "15", "20"]


def test_y_limits_include_curve_that_does_not_improve(store: Store) -> None:
    axes = panel_of(store, Nero=long_curve(0.07), LAMB=[0.9] * 10)
    assert axes.get_ylim()[1] == 100


def test_y_limits_include_band_of_seed_that_does_not_improve(store: Store) -> None:
    write_classifier(store, CELLS["lamb"], 0.02, 1, 0.9, curve=[0.9] * 10)
    axes = panel_of(store, LAMB=long_curve(0.07))
    assert axes.get_ylim()[1] == 100, "the band reaches there, the mean does not"


def test_zero_error_is_excluded_from_log_scale_limits(store: Store) -> None:
    axes = panel_of(store, Nero=long_curve(0.0))
    assert axes.get_ylim()[0] == pytest.approx((8.61 - 0.22) / 1.15), "the least that is above zero: a mark's lower end"
    training = drawn(store, "figure2").axes[0]
    assert training.get_ylim()[0] == pytest.approx(100 * 0.17 / 5 / 1.15)


def test_y_limits_include_end_of_truncated_curve(store: Store) -> None:
    axes = panel_of(store, Nero=long_curve(0.07), LAMB=[0.9, 0.8, 0.65])
    assert axes.get_ylim()[1] == 70


def test_empty_panel_upper_limit_is_100_percent(store: Store) -> None:
    assert {axes.get_ylim()[1] for axes in drawn(store, "figure1").axes} == {100}
