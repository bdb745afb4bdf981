"""Tests of Table 2: a row per cell, means and deviations as in numpy, constraint ticks, and missing runs."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nero.plans.plan import Cell, survey
from nero.report import catalogue, paper
from nero.report.cells import EmbeddedDataError
from nero.report.tables import listings
from nero.report.tables.table import Table, build_table
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, in_words, loaded, states_of, write_classifier
from support.markdown_rows import markdown_rows
from support.tables import table_of, to_csv, to_latex, to_markdown

CELLS = {in_words(cell): cell for cell in loaded("ablation").cells}
LINES = {  # in the paper's order
    "nero 0 0": ["Nero", "", ""],
    "nero 1 0": ["Nero", "✓", ""],
    "nero 0 1": ["Nero", "", "✓"],
    "nero 1 1": ["Nero", "✓", "✓"],
    "madam": ["Madam", "", ""],
    "madam_constrained": ["Madam", "✓", "✓"],
    "lamb": ["LAMB", "", ""],
    "lamb_constrained": ["LAMB", "✓", "✓"],
}
ERRORS = dict(zip(LINES, (0.125, 0.12, 0.10, 0.09, 0.13, 0.14, 0.15, 0.095), strict=True))
SEEDS = 0.01 * np.array([0.0, 0.2, 0.7])  # offset of each seed


def ablation_table(store: Store) -> Table:
    return build_table(evidence_of(store, "ablation"), paper.ablation(), listings.ABLATION)


def table_lines(table: Table) -> dict[str, list[str]]:
    """Texts of each table row, by cell."""
    _, _, *body = markdown_rows(to_markdown(table))
    return dict(zip(LINES, body, strict=True))


def fill_ablation(store: Store, lr: float = 0.04) -> None:
    """Write runs at every learning rate of every cell; `lr` is the best and has all seeds."""
    for name, cell in CELLS.items():
        for seed in cell.seeds:
            write_classifier(store, cell, lr, seed, ERRORS[name] + SEEDS[seed])
        for other in set(cell.lrs) - {lr}:
            write_classifier(store, cell, other, 0, 0.5)


def test_rows_and_ticks_follow_paper_order(store: Store) -> None:
    found = table_lines(ablation_table(store))
    assert {name: words[:3] for name, words in found.items()} == LINES
    with (paper.PAPER / "ablation.csv").open(newline="") as file:
        printed = [
            [row["optimizer"], "✓" * int(row["fix_mean"]), "✓" * int(row["fix_norm"])] for row in csv.DictReader(file)
        ]
    assert [[name.lower(), *ticks] for name, *ticks in LINES.values()] == printed


def test_paper_column_matches_printed_values(store: Store) -> None:
    theirs = {name: words[4] for name, words in table_lines(ablation_table(store)).items()}
    assert theirs == {
        "nero 0 0": "12.17 ± 0.08 (n = 3, η = 0.02)",
        "nero 1 0": "11.99 ± 0.14 (n = 3, η = 0.01)",
        "nero 0 1": "10.03 ± 0.24 (n = 3, η = 0.02)",
        "nero 1 1": "**8.61 ± 0.22** (n = 3, η = 0.02)",
        "madam": "12.77 ± 0.20 (n = 3, η = 0.02)",
        "madam_constrained": "12.60 ± 0.12 (n = 3, η = 0.06)",
        "lamb": "12.73 ± 0.10 (n = 3, η = 0.02)",
        "lamb_constrained": "<u>8.88 ± 0.08</u> (n = 3, η = 0.06)",
    }


def test_every_cell_has_a_paper_result() -> None:
    assert {paper.key(cell) for cell in CELLS.values()} == set(paper.ablation().results)


def test_values_match_numpy_and_all_rows_are_ranked_together(store: Store) -> None:
    fill_ablation(store)
    table = ablation_table(store)
    assert table.complete
    marks = {"nero 1 1": "**{}**", "lamb_constrained": "<u>{}</u>"}
    for name, words in table_lines(table).items():
        finals = 100 * (ERRORS[name] + SEEDS)
        number = f"{finals.mean():.2f} ± {finals.std(ddof=0):.2f}"
        assert words[3] == f"{marks.get(name, '{}').format(number)} (n = 3, η = 0.04)"


def test_csv_has_one_row_per_cell_and_the_common_columns(store: Store) -> None:
    fill_ablation(store)
    text = to_csv(ablation_table(store))
    lines = list(csv.DictReader(io.StringIO(text)))
    other = to_csv(build_table(evidence_of(store, "table1"), paper.table1()))
    assert text.splitlines()[0] == other.splitlines()[0]
    assert len(lines) == len(LINES)
    [line] = [line for line in lines if line["variant"] == "mean = True, norm = False"]
    finals = 100 * (ERRORS["nero 1 0"] + SEEDS)
    assert float(line["mean"]) == pytest.approx(finals.mean())
    assert float(line["std"]) == pytest.approx(finals.std())
    assert (line["rank"], line["paper_rank"], line["paper_mean"], line["optim"]) == ("4", "4", "11.99", "nero")
    assert line["runs"].split() == [CELLS["nero 1 0"].run(0.04, seed).run_id for seed in (0, 1, 2)]


def test_partial_search_is_shown_and_marked_incomplete(store: Store) -> None:
    for seed in range(3):
        write_classifier(store, CELLS["nero 1 1"], 0.02, seed, 0.09 + SEEDS[seed])
    write_classifier(store, CELLS["lamb"], 0.02, 0, 0.125)
    found = table_lines(ablation_table(store))
    finals = 100 * (0.09 + SEEDS)
    shown = f"{finals.mean():.2f} ± {finals.std():.2f}"
    assert found["nero 1 1"][3] == f"{shown} (n = 3, η = 0.02, 1 of 6 rates)"
    assert found["lamb"][3] == "12.50 (n = 1 of 3, η = 0.02, 1 of 6 rates)"
    assert found["madam"][3] == "missing"
    assert found["nero 1 1"][4].startswith("**8.61"), "the paper's side is finished"


def test_diverged_rows_are_reported_and_not_ranked(store: Store) -> None:
    fill_ablation(store)
    cell, constrained = CELLS["nero 1 1"], CELLS["madam_constrained"]
    for lr in constrained.lrs:
        write_classifier(store, constrained, lr, 0, None)
    write_classifier(store, cell, 0.04, 1, None)
    found = table_lines(ablation_table(store))
    assert found["madam_constrained"][3] == "diverged"
    assert found["nero 1 1"][3] == "9.35 ± 0.35 (n = 2 of 3, seed 1 diverged, η = 0.04)"
    assert found["lamb_constrained"][3].startswith("**")
    assert found["nero 0 1"][3].startswith("<u>")


def test_embedded_data_runs_raise_beside_paper_values(store: Store) -> None:
    write_classifier(store, CELLS["lamb"], 0.02, 0, 0.5, data="embedded")
    with pytest.raises(EmbeddedDataError):
        ablation_table(store)


def test_latex_has_check_marks_and_space_between_optimisers(store: Store) -> None:
    text = to_latex(ablation_table(store))
    lines = text.splitlines()
    assert r"\begin{tabular}{@{}lllccc@{}}" in lines
    assert any(line.startswith(r"Nero & \checkmark{} &  & missing & 11.99 $\pm$ 0.14") for line in lines)
    assert text.count(r"\addlinespace") == 2
    assert text.isascii()


def test_catalogue_table_equals_listing_layout_of_ablation(store: Store) -> None:
    table = catalogue.make_table(catalogue.gather("ablation", store))
    assert to_markdown(table) == to_markdown(ablation_table(store))
    assert "Task: CIFAR-10 VGG-11." in to_markdown(table)


def test_additional_optimiser_gets_ticks_from_its_config(store: Store) -> None:
    experiment, states = states_of(store, "ablation")
    task = states[0].cell.task
    further = [Cell(task, optim, (0.01, 0.1), 0, (1, 2)) for optim in ("sgd", "nero")]
    table = table_of(
        experiment, [*(survey(cell, {}) for cell in further), *states], paper.ablation(), listings.ABLATION
    )
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert lines[-2:] == ["| SGD |  |  | missing |  |  |", "| Nero | ✓ | ✓ | missing |  |  |"]


def test_paper_values_are_matched_regardless_of_sweep_order(store: Store) -> None:
    experiment, states = states_of(store, "ablation")
    turned = [survey(replace(state.cell, variant=state.cell.variant[::-1]), {}) for state in states]
    table = table_of(experiment, turned, paper.ablation(), listings.ABLATION)
    assert table_lines(table) == table_lines(ablation_table(store))
    assert "norm = False, mean = True" in to_csv(table), "a table words settings as the experiment has them"
    with pytest.raises(ValueError, match="nero twice"):
        table_of(experiment, [*states, turned[1]], paper.ablation(), listings.ABLATION)


def test_listing_rejects_cells_of_different_tasks(store: Store) -> None:
    experiment, states = states_of(store, "table1")
    with pytest.raises(ValueError, match="of one task"):
        table_of(experiment, states, paper.table1(), listings.ABLATION)


def test_paper_row_matching_no_possible_cell_raises(tmp_path: Path) -> None:
    (tmp_path / "ablation.csv").write_text("optimizer,fix_mean,fix_norm,top1_error,std,best_lr\nlamb,1,0,9,0.1,0.02\n")
    with pytest.raises(ValueError, match="lamb has both constraints or none"):
        paper.ablation(tmp_path)


def test_table_output_is_reproducible(store: Store) -> None:
    fill_ablation(store)
    for to in (to_markdown, to_csv, to_latex):
        assert to(ablation_table(store)) == to(ablation_table(store))


def test_base_optimiser_and_constraints_are_read_from_config() -> None:
    named = {name: (listings.base_optimizer(cell), *listings.constraints_of(cell)) for name, cell in CELLS.items()}
    assert named["nero 0 1"] == ("nero", False, True)
    assert named["lamb_constrained"] == ("lamb", True, True)
    assert named["madam"] == ("madam", False, False)
    assert listings.constraints_of(cells_of("table1")["cifar10_vgg11 nero"]) == (True, True)


def test_base_optimiser_of_wrapper_is_read_from_config() -> None:
    cell = CELLS["lamb_constrained"]
    wrapped = {"torch.optim.SGD": "sgd", "nero.optim.Nero": "nero", "torch.optim.Rprop": "lamb_constrained"}
    for target, name in wrapped.items():
        assert listings.base_optimizer(replace(cell, overrides=(f"optim.base._target_={target}",))) == name
