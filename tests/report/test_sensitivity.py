"""Tests of the learning rate sensitivity table: all rates of every search, each run once."""

from dataclasses import replace

import pytest

from nero.plans.plan import Cell, survey
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import Printed, Text
from nero.runs.store import Store
from support.fake_runs import PERPLEXITY, cells_of, fill, loaded, plausible, states_of, write_run

DEEP = "mnist_mlp100"
DEEP_NAME = "MNIST MLP"


def lines(printed: Printed) -> dict[tuple[str, str], dict[str, Text]]:
    """Table cells by (task with its settings, optimiser) and column head."""
    found = {}
    for block in printed.sheet.blocks:
        task = block[0][0].value
        for line in block:
            by_head = dict(zip(printed.sheet.heads, line, strict=True))
            found[task, by_head["optimiser"].value] = by_head
    return found


def test_every_learning_rate_result_is_shown_and_linked(store: Store) -> None:
    finals = {0.0001: 0.3, 0.001: 0.9, 0.01: None, 0.1: 0.85}
    cell = cells_of("mnist")[f"{DEEP} nero"]
    for lr, final in finals.items():
        write_run(store, cell, lr, 0, final)
    found = lines(sensitivity(states_of(store)[1]))[DEEP_NAME, "Nero"]
    shown = {lr: found[f"η = {lr:g}"] for lr in finals}
    assert {lr: text.value for lr, text in shown.items()} == {
        0.0001: "30.00",
        0.001: "90.00",
        0.01: "diverged",
        0.1: "85.00",
    }
    assert {lr: text.link and text.link.run_id for lr, text in shown.items()} == {
        lr: cell.run(lr, 0).run_id for lr in finals
    }
    assert [lr for lr, text in shown.items() if text.rank == 1] == [0.001]
    assert found["close"].value == "2 of 4", "0.9 and 0.85 are within a tenth"
    assert found["metric"].value == "training accuracy (%) ↑"


def test_missing_and_unplanned_learning_rates_are_distinguished(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} nero"], 0.01, 0, 0.5)
    states = [*states_of(store)[1], *states_of(store, "table1")[1]]
    found = lines(sensitivity(states))
    deep = found[DEEP_NAME, "Nero"]
    assert (deep["η = 0.1"].value, deep["η = 1"].value, deep["close"].value) == ("missing", "-", "1 of 1")
    assert found["CIFAR-10 VGG-11", "SGD"]["η = 1"].value == "missing"
    assert found["CIFAR-10 VGG-11", "SGD"]["close"].value == ""


def test_single_learning_rate_is_not_listed(store: Store) -> None:
    fill(store, "mnist", plausible)
    assert not any(task.startswith("MNIST MLP, reparam") for task, _ in lines(sensitivity(states_of(store)[1])))


def test_experiments_sharing_runs_are_merged_into_one_row(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    other = replace(cell, lrs=(0.1, 1.0))
    write_run(store, cell, 0.1, 0, 0.5)
    write_run(store, other, 1.0, 0, 0.6)
    states = [survey(each, store.summaries()) for each in (cell, cell, other)]
    [(_, found)] = lines(sensitivity(states)).items()
    assert found["η = 0.1"].value == "50.00"
    assert (found["η = 1"].value, found["η = 1"].rank) == ("60.00", 1)
    assert len(sensitivity(states).records) == len({*cell.lrs, *other.lrs})


def test_different_precision_gives_a_separate_row(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    coarse = replace(cell, overrides=("precision=bf16",))
    printed = sensitivity([survey(each, store.summaries()) for each in (cell, coarse)])
    [block] = printed.sheet.blocks
    assert [line[printed.sheet.heads.index("precision")].value for line in block] == ["tf32", "bf16"]


def test_records_have_full_precision_final_values(store: Store) -> None:
    cell = cells_of("table1")["multi30k_transformer nero"]
    for lr in cell.lrs:
        write_run(store, cell, lr, 0, 10 + lr, metric=PERPLEXITY)
    records = [record for record in sensitivity(states_of(store, "table1")[1]).records if record["run"]]
    assert [float(record["final"]) for record in records] == pytest.approx([10 + lr for lr in cell.lrs])
    assert [record["leads"] for record in records] == ["1", "0", "0", "0", "0"]
    assert {record["status"] for record in records} == {"done"}


def test_unavailable_task_has_a_row_of_missing_results() -> None:
    cell = Cell("a_task_to_come", "nero", (0.1, 1.0), 0, (1, 2))
    [(_, found)] = lines(sensitivity([survey(cell, {})])).items()
    assert found["η = 0.1"].value == "missing"


def test_no_states_give_an_empty_table() -> None:
    assert sensitivity([]).sheet.blocks == []


def test_embedded_data_gives_a_warning(store: Store) -> None:
    embedded = next(cell for cell in loaded("smoke").cells if len(cell.lrs) > 1)
    assert "Embedded data" in sensitivity([survey(embedded, {})]).warning
    assert not sensitivity(states_of(store)[1]).warning
