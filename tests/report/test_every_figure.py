"""Tests of what all figures share: our curves, the paper's marks, reports of missing runs, legends and ticks."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from nero.plans.plan import Cell, survey
from nero.report import paper
from nero.report.cells import EmbeddedDataError
from nero.report.evidence import Evidence
from nero.report.figures import cifar, style
from nero.report.figures.figure3 import figure3
from nero.report.figures.figure4 import figure4
from nero.report.figures.figure8 import figure8
from nero.report.figures.figure9 import figure9
from nero.report.figures.language import figure6, figure7
from nero.runs.store import RunDirectory, Store
from support.fake_runs import (
    PLAYED,
    cells_of,
    evidence_of,
    loaded,
    states_of,
    write_classifier,
    write_generator,
    write_language_model,
    write_player,
    write_run,
)
from support.read_figures import AUTHORS, band_at, bands, colours, face, labels, lines, marks

OPTIMS = ("nero", "sgd", "adam", "lamb")  # those with numbers in the paper
MOMENTUM = "LAMB with β₁ = 0.9"


@dataclass(frozen=True)
class Kind:
    """A figure, its cells, and runs of them."""

    experiment: str
    tasks: tuple[str, ...]
    draw: Callable[[Evidence], Figure]
    write: Callable[..., RunDirectory]
    final: float  # of the first cell's first seed; others are higher
    absent: str  # what panels say of an empty store

    @property
    def cells(self) -> list[Cell]:
        return [cell for cell in loaded(self.experiment).cells if cell.task in self.tasks]

    def final_of(self, place: int, seed: int) -> float:
        return self.final * (1 + place / 10 + seed**2 / 50)

    def drawn(self, store: Store) -> Figure:
        return self.draw(evidence_of(store, self.experiment))

    def filled(self, store: Store) -> Figure:
        """With all seeds of every cell at one learning rate; the rest of the grid is missing."""
        for place, cell in enumerate(self.cells):
            for seed in cell.seeds:
                self.write(store, cell, cell.lrs[len(cell.lrs) // 2], seed, self.final_of(place, seed))
        return self.drawn(store)


@dataclass(frozen=True)
class OneTask(Kind):
    """A figure with a curve per optimiser in each panel."""

    x: Sequence[float]  # where its runs are logged
    course: Callable[[float], Sequence[float]]  # final value -> values there
    panels: tuple[Callable[[np.ndarray], np.ndarray], ...]  # what each panel draws of those values
    end: float  # of training, on the x axis
    printed: str  # its task in table1.csv
    mark: str  # the label of one of the paper's marks
    worse: float  # than `final`
    authors: bool = False  # whether the authors' curves are drawn

    def cell(self, optim: str) -> Cell:
        return next(cell for cell in self.cells if cell.optim == optim)

    def seeds_of(self, place: int) -> np.ndarray:
        """Values that `filled` writes, with a row per logged epoch and a column per seed."""
        return np.array([self.course(self.final_of(place, seed)) for seed in (0, 1, 2)]).T


def validation(value: np.ndarray) -> np.ndarray:
    return value


def twice(value: np.ndarray) -> np.ndarray:
    return 2 * value


SEARCHED = "search incomplete: Nero, SGD, Adam, LAMB (0 of 5 rates)"
LANGUAGE = (1, 2, 3), lambda final: (8 * final, 2 * final, final), (twice, validation)
KINDS: dict[str, Kind] = {
    "figure1": Kind(
        *("ablation", (paper.VGG11,), cifar.figure1, write_classifier, 0.08),
        "search incomplete: neither, mean, norm, both (0 of 6 rates)",
    ),
    "figure2": Kind(
        *("ablation", (paper.VGG11,), cifar.figure2, write_classifier, 0.08),
        "search incomplete: Nero, LAMB, Madam (0 of 6 rates)",
    ),
    "figure3": Kind("mnist", (paper.DEEP, paper.REPARAM), figure3, write_run, 0.4, "missing: "),
    "figure4": OneTask(
        *("table1", (paper.CGAN,), figure4, write_generator, 15.0, SEARCHED),
        x=(10, 60, 120),
        course=lambda final: (9 * final, 2 * final, final),
        panels=(lambda value: value - 2, validation, lambda value: value + 1),
        end=paper.CGAN_EPOCHS,
        printed="cgan",
        mark="Adam, paper: 23.42 ± 0.85, η = 0.0001",
        worse=40.0,
    ),
    "figure5": Kind(
        "table1", (paper.VGG11, paper.RESNET18), cifar.figure5, write_classifier, 0.06, "search incomplete: Nero"
    ),
    "figure6": OneTask(
        *("table1", (paper.WIKITEXT2,), figure6, write_language_model, 12.0, SEARCHED, *LANGUAGE),
        end=paper.WIKITEXT2_EPOCHS,
        printed="language model",
        mark="SGD, paper: 181.76 ± 0.49, η = 1",
        worse=90.0,
    ),
    "figure7": OneTask(
        *("table1", (paper.MULTI30K,), figure7, write_language_model, 12.0, SEARCHED, *LANGUAGE),
        end=paper.MULTI30K_EPOCHS,
        printed="translation",
        mark="SGD, paper: 92.40 ± 89.48, η = 0.0001",
        worse=90.0,
        authors=True,
    ),
    "figure8": OneTask(
        *("pong", (paper.PONG,), figure8, write_player, 10.0, f"{SEARCHED} missing: {MOMENTUM} (seeds 0, 1, 2)"),
        x=[epoch * PLAYED / 1e6 for epoch in (10, 2440, 4882)],
        course=lambda final: (-20.5, 0.0, final),
        panels=(validation,),
        end=paper.PONG_MILLIONS,
        printed="ppo",
        mark="LAMB, paper: -19.46 ± 0.10, η = 0.001",
        worse=3.0,
    ),
    "figure9": Kind(
        *("imagenet", (paper.IMAGENET,), figure9, write_classifier, 0.25),
        "missing: Nero OOTB, Nero tuned, SGD, SGD + weight decay (seeds 0, 1, 2)",
    ),
}
EVERY = pytest.mark.parametrize("name", KINDS)
ONE_TASK = pytest.mark.parametrize(
    "kind", [pytest.param(k, id=name) for name, k in KINDS.items() if type(k) is OneTask]
)


# our curves


@ONE_TASK
def test_lines_are_seed_means_and_bands_seed_ranges(kind: OneTask, store: Store) -> None:
    figure = kind.filled(store)
    optims = [cell.optim for cell in kind.cells]
    for axes, drawn_of in zip(figure.axes, kind.panels, strict=True):
        found = lines(axes)
        assert list(found) == list(map(style.name, optims))
        assert colours(axes) == {style.name(optim): style.COLOURS[optim] for optim in optims}
        for place, (line, band) in enumerate(zip(found.values(), bands(axes), strict=True)):
            seeds = drawn_of(kind.seeds_of(place))
            np.testing.assert_allclose(line, np.column_stack([kind.x, seeds.mean(axis=1)]))
            for x, values in zip(kind.x, seeds, strict=True):
                assert band_at(band, x) == (pytest.approx(values.min()), pytest.approx(values.max()))


@pytest.mark.parametrize(
    ("name", "words", "variant"),
    [
        ("figure1", "cifar10_vgg11 nero True False", ()),
        ("figure2", "cifar10_vgg11 lamb", (("precision", "fp32"),)),
        ("figure2", "cifar10_vgg11 madam_constrained", (("precision", "fp32"),)),
        ("figure4", "cifar10_cgan sgd", (("precision", "fp32"),)),
        ("figure5", "cifar10_resnet18 sgd", (("optim.momentum", 0.9),)),
        ("figure6", "wikitext2_transformer sgd", (("precision", "fp32"),)),
        ("figure7", "multi30k_transformer sgd", (("precision", "fp32"),)),
        ("figure8", "pong_ppo sgd", (("precision", "fp32"),)),
    ],
)
def test_two_cells_for_one_curve_raise(
    store: Store, name: str, words: str, variant: tuple[tuple[str, object], ...]
) -> None:
    kind = KINDS[name]
    _, states = states_of(store, kind.experiment)
    cell = cells_of(kind.experiment)[words]
    other = survey(replace(cell, variant=(*cell.variant, *variant)), {})
    with pytest.raises(ValueError, match=f"a panel has {cell.optim} twice: {cell.task}"):
        kind.draw(evidence_of(store, kind.experiment, [*states, other]))


# the paper's marks


@ONE_TASK
def test_paper_final_values_are_marked_beside_curves(kind: OneTask, store: Store) -> None:
    figure = kind.drawn(store)
    with (paper.PAPER / "table1.csv").open(newline="") as file:
        printed = {row["optimizer"]: row for row in csv.DictReader(file) if row["task"] == kind.printed}
    for axes, drawn_of in zip(figure.axes, kind.panels, strict=True):
        assert any(lines(axes, AUTHORS)) == kind.authors
        found = marks(axes)
        if drawn_of is not validation:
            assert not found, "the paper has final values of validation only"
            continue
        assert list(found) == list(map(style.name, OPTIMS))
        for optim in OPTIMS:
            at, mean, low, high = found[style.name(optim)]
            std = float(printed[optim]["std"])
            assert mean == float(printed[optim]["mean"])
            assert (low, high) == (pytest.approx(mean - std), pytest.approx(mean + std))
            assert kind.end < at < axes.get_xlim()[1]
        assert max(axes.get_xticks()) == kind.end, "there is no epoch in the paper's strip"
        assert kind.mark in [bar.get_label() for bar in axes.containers]


@EVERY
def test_embedded_data_runs_raise_beside_paper_values(store: Store, name: str) -> None:
    kind = KINDS[name]
    cell = kind.cells[0 if name == "figure1" else -1]  # Figure 1 draws Nero alone
    kind.write(store, cell, cell.lrs[0], 0, kind.final, data="embedded")
    with pytest.raises(EmbeddedDataError):
        kind.drawn(store)


# missing and diverged runs


@ONE_TASK
def test_panels_report_missing_runs(kind: OneTask, store: Store) -> None:
    for lr, final in ((0.001, kind.worse), (0.01, kind.final)):
        kind.write(store, kind.cell("nero"), lr, 0, final)
    for lr in kind.cell("lamb").lrs:
        kind.write(store, kind.cell("lamb"), lr, 0, kind.final if lr == 0.0001 else kind.worse)
    for axes in kind.drawn(store).axes:
        assert labels(axes) == ["Nero, η = 0.01, n = 1 of 3", "LAMB, η = 0.0001, n = 1 of 3"]
        assert "search incomplete: Nero (2 of 5 rates); SGD, Adam (0 of 5 rates) missing: LAMB" in face(axes)
        assert "missing: LAMB (seeds 1, 2)" in face(axes)


@ONE_TASK
def test_diverged_runs_are_reported_and_truncate_mean_curve(kind: OneTask, store: Store) -> None:
    for lr in kind.cell("sgd").lrs:
        kind.write(store, kind.cell("sgd"), lr, 0, None)
    for lr in kind.cell("adam").lrs:
        kind.write(store, kind.cell("adam"), lr, 0, kind.final if lr == 0.01 else None)
    kind.write(store, kind.cell("adam"), 0.01, 1, None)
    kind.write(store, kind.cell("adam"), 0.01, 2, kind.final)
    for axes in kind.drawn(store).axes:
        assert "diverged: SGD (every learning rate); Adam (seed 1)" in face(axes)
        assert lines(axes).keys() == {"Adam"}
        assert lines(axes)["Adam"][:, 0].tolist() == [kind.x[0]], "the seed that diverged has one record"


@EVERY
@pytest.mark.filterwarnings("error")
def test_empty_store_gives_valid_figure_reporting_missing_runs(store: Store, name: str) -> None:
    figure = KINDS[name].drawn(store)
    for axes in figure.axes:
        assert not lines(axes)
        assert "search incomplete: " in face(axes) or "missing: " in face(axes)
    assert any(KINDS[name].absent in face(axes) for axes in figure.axes)
    for file_format in style.FORMATS:
        assert style.render(figure, file_format), "without a warning: fonts have the letters of every name"


# legends, ticks and reproducibility


@EVERY
def test_legends_do_not_overlap_panels(store: Store, name: str) -> None:
    figure = KINDS[name].filled(store)
    panels = [axes.get_window_extent() for axes in figure.axes]
    for axes in figure.axes:
        assert lines(axes)
        assert not any(axes.get_legend().get_window_extent().overlaps(panel) for panel in panels)


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure4", "figure5", "figure6", "figure7", "figure9"])
def test_y_ticks_are_plain_numbers_within_limits(store: Store, name: str) -> None:
    for axes in KINDS[name].filled(store).axes:
        low, high = axes.get_ylim()
        ticks = axes.get_yticks()
        assert 3 <= len(ticks) <= 15
        assert all(low <= tick <= high for tick in ticks)
        assert [float(text.get_text()) for text in axes.get_yticklabels()] == pytest.approx(ticks.tolist())
        assert not len(axes.get_yticks(minor=True))


@pytest.mark.slow
@pytest.mark.parametrize("file_format", style.FORMATS)
@EVERY
def test_figure_output_is_reproducible(store: Store, name: str, file_format: str) -> None:
    one = style.render(KINDS[name].filled(store), file_format)
    # Neither the user's rcParams nor a previous render in another format may change the output.
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 5}):
        figure = KINDS[name].drawn(store)
        style.render(figure, "png")
        assert style.render(figure, file_format) == one
    assert not any(word in one for word in (b"CreationDate", b"<dc:date>", b"Matplotlib v", b"Software"))
