"""Tests of the findings of table rows: the ranking of optimisers, and whether the best learning rates match."""

import csv
import io

import pytest

from nero.report import paper
from nero.report.paper import Published, Result
from nero.report.tables import listings
from nero.report.tables.layout import findings, ranking, rates_text
from nero.report.tables.table import Table, build_table
from nero.report.units import shown_metric
from nero.runs.store import Store
from support.fake_runs import (
    cells_of,
    evidence_of,
    fill,
    fill_cell,
    loaded,
    plausible,
    states_of,
    write_classifier,
    write_run,
)
from support.tables import table_of, to_csv, to_html, to_markdown

DEEP = "mnist_mlp100"
OPTIMS = ("nero", "sgd", "adam", "lamb")


def table_against(store: Store, means: dict[str, float], lr: float = 0.001) -> Table:
    """Table of the experiment's deep rows, compared with the given means as if the paper had published them."""
    experiment, states = states_of(store)
    results = {(DEEP, (), optim): Result(mean, 1.0, lr) for optim, mean in means.items()}
    published = Published("paper", results, {DEEP: shown_metric(paper.ACCURACY)})
    return table_of(experiment, [state for state in states if state.cell.task == DEEP], published)


def said(table: Table) -> str:
    """The finding for the first row, without its prefix."""
    return findings(table)[0].value.removeprefix("MNIST MLP: ")


def column(table: Table, name: str) -> list[str]:
    return [line[name] for line in csv.DictReader(io.StringIO(to_csv(table))) if not line["variant"]]


def test_ranking_holds_if_order_matches_regardless_of_values(store: Store) -> None:
    fill(store, "mnist", plausible)  # ranking: Nero, LAMB, Adam, SGD
    table = table_against(store, {"nero": 4.0, "lamb": 3.0, "adam": 2.0, "sgd": 1.0})
    assert said(table).startswith("Ranking holds: Nero, LAMB, Adam, SGD. ")
    assert column(table, "ranking") == ["holds"] * 4


def test_differing_ranking_is_reported_beside_paper_ranking(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = table_against(store, {"nero": 4.0, "sgd": 3.0, "adam": 2.0, "lamb": 1.0})
    assert said(table).startswith("Ranking differs: Nero, LAMB, Adam, SGD (paper: Nero, SGD, Adam, LAMB). ")
    assert column(table, "ranking") == ["differs"] * 4


def test_equal_means_share_a_rank(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = table_against(store, {"nero": 4.0, "lamb": 3.0, "adam": 2.0, "sgd": 2.0})
    assert "Ranking differs: Nero, LAMB, Adam, SGD (paper: Nero, LAMB, SGD = Adam)." in said(table)
    fill_same = {"adam": 0.4, "sgd": 0.4, "nero": 0.9, "lamb": 0.6}
    for cell in (cell for cell in loaded("mnist").cells if cell.task == DEEP):
        for lr in cell.lrs:
            for seed in cell.seeds:
                write_run(store, cell, lr, seed, fill_same[cell.optim])
    assert said(table_against(store, {"nero": 4.0, "lamb": 3.0, "adam": 2.0, "sgd": 2.0}, lr=0.1)).startswith(
        "Ranking holds: Nero, LAMB, SGD = Adam. "
    )


def test_diverged_optimiser_is_ranked_last(store: Store) -> None:
    fill(store, "mnist", lambda c, lr, seed: None if (c.optim, seed) == ("nero", 1) else plausible(c, lr, seed))
    table = table_against(store, {"nero": 4.0, "lamb": 3.0, "adam": 2.0, "sgd": 1.0})
    assert "Ranking differs: LAMB, Adam, SGD, Nero (diverged) (paper: Nero, LAMB, Adam, SGD)." in said(table)
    table = table_against(store, {"nero": 0.0, "lamb": 3.0, "adam": 2.0, "sgd": 1.0})
    assert "Ranking holds: LAMB, Adam, SGD, Nero (diverged)." in said(table)


def test_row_with_missing_runs_is_not_ranked(store: Store) -> None:
    for optim in ("nero", "sgd", "adam"):
        fill_cell(store, cells_of("mnist")[f"{DEEP} {optim}"], plausible)
    means = {"nero": 4.0, "lamb": 3.0, "adam": 2.0, "sgd": 1.0}
    table = table_against(store, means)
    assert said(table).startswith("Ranking not known yet: runs are missing. ")
    assert column(table, "ranking") == ["unknown"] * 4
    del means["lamb"]
    assert said(table_against(store, means)).startswith("Ranking holds: Nero, Adam, SGD. "), "LAMB has no rival there"


def test_best_lr_matches_are_counted_over_complete_searches(store: Store) -> None:
    means = dict.fromkeys(OPTIMS, 1.0)
    assert "No search is complete." in said(table_against(store, means))
    fill_cell(store, cells_of("mnist")[f"{DEEP} nero"], plausible)
    table = table_against(store, means)
    assert said(table).endswith("Best rate is the paper's for 1 of 1 complete search.")
    assert column(table, "best_lr_is_papers") == ["1", "", "", ""]
    cells = cells_of("mnist")
    fill_cell(store, cells[f"{DEEP} sgd"], lambda cell, lr, seed: lr)
    fill_cell(store, cells[f"{DEEP} adam"], lambda cell, lr, seed: None)
    table = table_against(store, means)
    assert said(table).endswith(
        "Best rate is the paper's for 1 of 3 complete searches; "
        "SGD: 0.1 (paper 0.001); Adam: every rate diverged (paper 0.001)."
    )
    assert column(table, "best_lr_is_papers") == ["1", "0", "0", ""]


def test_single_lr_or_single_cell_gives_no_finding(store: Store) -> None:
    table = build_table(evidence_of(store), paper.mnist())
    found = [text.value.partition(": ")[0] for text in findings(table)]
    assert found == ["MNIST MLP"], "the other rows are of one cell and one rate"
    checks = build_table(evidence_of(store, "checks"), paper.checks(loaded("checks").cells))
    for row in checks.rows:
        assert len(row.entries) > 1 or ranking(row) == ("", "")
        assert any(len(entry.cell.lrs) > 1 for entry in row.entries.values()) or rates_text(row) is None


def test_tables_without_paper_values_have_no_findings(store: Store) -> None:
    assert findings(build_table(evidence_of(store, "smoke"))) == ()
    assert findings(build_table(evidence_of(store, "imagenet"), paper.imagenet())) == ()


def test_all_rows_of_table_2_are_ranked_together(store: Store) -> None:
    ours = dict(zip(loaded("ablation").cells, (0.12, 0.10, 0.11, 0.08, 0.13, 0.14, 0.15, 0.09), strict=True))
    for cell, final in ours.items():
        for seed in cell.seeds:
            write_classifier(store, cell, 0.02, seed, final)
        for lr in set(cell.lrs) - {0.02}:
            write_classifier(store, cell, lr, 0, 0.5)
    table = build_table(evidence_of(store, "ablation"), paper.ablation(), listings.ABLATION)
    [found] = findings(table)
    assert found.value.startswith("CIFAR-10 VGG-11: Ranking differs: Nero (both), LAMB (both), ")
    assert "(paper: Nero (both), LAMB (both), Nero (norm), Nero (mean), Nero (neither), " in found.value
    assert "Best rate is the paper's for 5 of 8 complete searches; Nero (mean): 0.02 (paper 0.01)" in found.value
    assert set(column(table, "ranking")) == {"differs"}


@pytest.mark.parametrize("to", [to_markdown, to_html])
def test_findings_are_below_the_table(store: Store, to: object) -> None:
    fill(store, "mnist", plausible)
    table = table_against(store, {"nero": 4.0, "sgd": 3.0, "adam": 2.0, "lamb": 1.0})
    assert "Ranking differs: Nero, LAMB, Adam, SGD (paper: Nero, SGD, Adam, LAMB)." in to(table)  # type: ignore[operator]
