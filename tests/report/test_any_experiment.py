"""Tests of the report of an experiment without a catalogue entry: the paper's numbers, and sensitivity curves."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from nero.plans.plan import load_experiment, survey
from nero.report import catalogue, display, paper
from nero.report.cells import EmbeddedDataError
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import learning_curves
from nero.report.figures.sensitivity import sensitivity_curves
from nero.report.page.data import figure_data
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import to_markdown
from nero.runs.store import Store
from support.fake_runs import PERPLEXITY, write_run
from support.read_figures import face

OWN = """
title: Mine
rows:
  - {task: mnist_mlp100, optim: [nero, adam, OTHER], lr: [0.001, 0.01, 0.1], repeat_seeds: [1]}
"""


def evidence(store: Store, folder: Path, text: str) -> Evidence:
    (folder / "mine.yaml").write_text(dedent(text))
    experiment = load_experiment("mine", folder=folder)
    summaries = store.summaries()
    return Evidence(experiment, tuple(survey(cell, summaries) for cell in experiment.cells), summaries, store)


@pytest.fixture
def mine(store: Store, tmp_path: Path) -> Evidence:
    """A search of three rates: Nero is best at 0.01, Adam diverged at 0.1, madam has one run."""
    text = OWN.replace("OTHER", "madam_constrained")
    for state in evidence(store, tmp_path, text).states:
        for lr in state.cell.lrs[: 1 if state.cell.optim.startswith("madam") else None]:
            final = None if (state.cell.optim, lr) == ("adam", 0.1) else 0.9 - abs(lr - 0.01)
            write_run(store, state.cell, lr, 0, final)
    return evidence(store, tmp_path, text)


def test_cells_of_the_paper_show_its_numbers(mine: Evidence) -> None:
    table = catalogue.make_table(mine)
    [row] = table.rows
    theirs = paper.mnist().results["mnist_mlp100", (), "nero"]
    assert row.entries["nero"].published == theirs
    assert row.entries["madam_constrained"].published is None
    text = to_markdown(print_table(table))
    assert "| paper | " in text
    assert "For MNIST MLP the paper's numbers are those of the authors' logs." in text
    assert "not in the paper" not in text, "the constrained Madam is in the paper's ablation"


def test_optimisers_that_the_paper_does_not_have_are_listed(store: Store, tmp_path: Path) -> None:
    for others, sentence in (
        ("own", "own is not in the paper."),
        ("lion, own, muon", "Lion, own and Muon are not in the paper."),
    ):
        found = paper.of_cells(evidence(store, tmp_path, OWN.replace("OTHER", others)).experiment.cells)
        assert found is not None
        assert found.remark.endswith(f" {sentence}")


def test_newer_optimisers_are_in_the_default_report_beside_the_papers_numbers(store: Store) -> None:
    assert "modern" in catalogue.CATALOGUE
    table = catalogue.make_table(catalogue.gather("modern", store))
    assert {(row.key.task, len(row.entries)) for row in table.rows} == {
        ("mnist_mlp100", 9),
        ("cifar10_vgg11", 9),
        ("wikitext2_transformer", 9),
        ("multi30k_transformer", 9),
    }
    for row in table.rows:
        assert {optim for optim, entry in row.entries.items() if entry.published} == {"nero", "sgd", "adam", "lamb"}
    assert "AdamW, Muon, Schedule-Free, SOAP and Lion are not in the paper." in print_table(table).notes
    assert set(catalogue.CATALOGUE["modern"].figures) == {"modern", "modern_sensitivity"}


@pytest.mark.parametrize(
    ("row", "known"),
    [
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1}", True),
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1, label: again, overrides: [precision=bf16, machine=cpu]}", True),
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1, overrides: [task.epochs=5]}", False),
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1, overrides: [optim.momentum=0.9]}", False),
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1, sweep: {optim.momentum: [0.9]}}", False),
        ("{task: cifar10_vgg11, optim: sgd, lr: 0.1, overrides: [data=embedded]}", False),
        ("{task: mnist_reparam, optim: adam, lr: 0.01, sweep: {task.sigma: [100]}}", True),
        ("{task: imagenet_resnet50, optim: sgd, lr: 0.1}", False),
    ],
)
def test_only_cells_with_the_papers_settings_have_its_numbers(
    store: Store, tmp_path: Path, row: str, known: bool
) -> None:
    table = catalogue.make_table(evidence(store, tmp_path, f"title: x\nrows: [{row}]"))
    [entry] = table.entries
    assert (entry.published is not None) is known
    assert (table.source == "paper") is known


def test_one_row_with_other_settings_hides_the_number_of_both(store: Store, tmp_path: Path) -> None:
    plain = "{task: cifar10_vgg11, optim: sgd, lr: 0.1}"
    other = "{task: cifar10_vgg11, optim: sgd, lr: 0.1, label: short, overrides: [task.epochs=5]}"
    assert paper.of_cells(evidence(store, tmp_path, f"title: x\nrows: [{plain}, {other}]").experiment.cells) is None


def test_embedded_cell_hides_all_numbers_and_embedded_run_is_refused(store: Store, tmp_path: Path) -> None:
    real = "{task: mnist_mlp100, optim: nero, lr: 0.1}"
    embedded = "{task: mnist_reparam, optim: adam, lr: 0.01, overrides: [data=embedded]}"
    mixed = catalogue.make_table(evidence(store, tmp_path, f"title: x\nrows: [{real}, {embedded}]"))
    assert mixed.source is None
    assert mixed.embedded
    text = f"title: x\nrows: [{real}]"
    [state] = evidence(store, tmp_path, text).states
    write_run(store, state.cell, 0.1, 0, 0.5, data="embedded")
    with pytest.raises(EmbeddedDataError):
        catalogue.make_table(evidence(store, tmp_path, text))


def test_experiment_without_entry_has_both_figures(mine: Evidence) -> None:
    figures = catalogue.contents_of(mine).figures
    assert figures == {"mine": learning_curves, "mine_sensitivity": sensitivity_curves}


def test_sensitivity_curves_show_every_rate_of_every_search(mine: Evidence) -> None:
    [axes] = sensitivity_curves(mine).axes
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "training accuracy (%)"
    curves = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(curves) == ["Nero", "Adam", "Madam + constraints"]
    assert [series.label for series in style.record(axes).series] == [
        "Nero, best η = 0.01 (paper: 0.001)",
        "Adam, best η = 0.01 (paper: 0.001)",
        "Madam + constraints",
    ]
    nero, adam, madam = curves.values()
    np.testing.assert_allclose(nero.get_xydata(), [[0.001, 89.1], [0.01, 90], [0.1, 81]])
    assert np.isnan(adam.get_ydata()[-1])
    assert len(madam.get_xdata()) == 1
    assert nero.get_color() == style.COLOURS["nero"]
    rings = [(ring["x"], ring["y"]) for ring in style.record(axes).rings]
    assert rings == [pytest.approx((0.001, 89.1))] * 2
    crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert [(line.get_xdata().tolist(), line.get_color()) for line in crosses] == [([0.1], style.COLOURS["adam"])]
    assert "search incomplete: Madam + constraints (1 of 3 rates)" in face(axes)
    crossed = {"group": "Adam", "colour": style.COLOURS["adam"], "x": 0.1, "label": "Adam diverged at η = 0.1"}
    assert style.record(axes).crosses == [crossed]
    assert "at the paper's best η" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_sensitivity_curves_on_the_page_have_a_log_axis(mine: Evidence) -> None:
    [panel] = figure_data(sensitivity_curves(mine))["panels"]
    assert panel["xscale"] == "log"
    assert 0 < panel["xlim"][0] < 0.001 < 0.1 < panel["xlim"][1]
    assert panel["series"][1]["mean"] == [89.1, 90, None]
    assert figure_data(learning_curves(mine))["panels"][0]["xscale"] == "linear"


def test_sensitivity_curves_of_an_empty_store(store: Store, tmp_path: Path) -> None:
    [axes] = sensitivity_curves(evidence(store, tmp_path, OWN.replace("OTHER", "no_such"))).axes
    assert not axes.lines
    assert "search incomplete: Nero, Adam (0 of 3 rates)" in face(axes)
    assert "missing: no_such (optim no_such is not available" in face(axes)


def test_wide_range_of_values_has_a_log_scale(store: Store, tmp_path: Path) -> None:
    text = "title: x\nrows: [{task: wikitext2_transformer, optim: sgd, lr: [0.1, 1]}]"
    [state] = evidence(store, tmp_path, text).states
    for lr, final in ((0.1, 180.0), (1, 1e9)):
        write_run(store, state.cell, lr, 0, final, metric=PERPLEXITY)
    [axes] = sensitivity_curves(evidence(store, tmp_path, text)).axes
    assert axes.get_yscale() == "log"


def test_display_of_own_task_reaches_sensitivity_curves(
    mine: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mnist_mlp100.yaml").write_text("display: {name: hits, unit: ppm, scale: 10}\n")
    monkeypatch.setattr(display, "folders", lambda group: [tmp_path / group])
    [axes] = sensitivity_curves(mine).axes
    assert axes.get_ylabel() == "hits (ppm)"
    assert axes.lines[0].get_ydata()[1] == pytest.approx(9)
