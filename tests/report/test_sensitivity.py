"""The table of learning rates: every grid, every end of it, each run once."""

from dataclasses import replace

import pytest

from nero.plans.plan import Cell, survey
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import Printed, Text
from nero.runs.store import Store
from support.fake_runs import PERPLEXITY, cells_of, fill, loaded, plausible, states_of, write_run

DEEP = "mnist_mlp100"


def lines(printed: Printed) -> dict[tuple[str, str], dict[str, Text]]:
    """Places by (task and its settings, optimiser) and head."""
    found = {}
    for block in printed.sheet.blocks:
        task = f"{block[0][0].code}{block[0][0].value}"
        for line in block:
            by_head = dict(zip(printed.sheet.heads, line, strict=True))
            found[task, by_head["optimiser"].value] = by_head
    return found


def test_every_end_of_a_grid_is_told_and_linked(store: Store) -> None:
    finals = {0.0001: 0.3, 0.001: 0.9, 0.01: None, 0.1: 0.85}
    cell = cells_of("mnist")[f"{DEEP} nero"]
    for lr, final in finals.items():
        write_run(store, cell, lr, 0, final)
    found = lines(sensitivity(states_of(store)[1]))[DEEP, "Nero"]
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


def test_what_is_missing_or_was_not_asked_for_is_told_apart(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} nero"], 0.01, 0, 0.5)
    states = [*states_of(store)[1], *states_of(store, "table1")[1]]
    found = lines(sensitivity(states))
    deep = found[DEEP, "Nero"]
    assert (deep["η = 0.1"].value, deep["η = 1"].value, deep["close"].value) == ("missing", "-", "1 of 1")
    assert found["cifar10_vgg11", "SGD"]["η = 1"].value == "missing"
    assert found["cifar10_vgg11", "SGD"]["close"].value == ""


def test_a_lone_learning_rate_is_no_grid(store: Store) -> None:
    fill(store, "mnist", plausible)
    assert not any(task.startswith("mnist_reparam") for task, _ in lines(sensitivity(states_of(store)[1])))


def test_experiments_that_share_runs_share_a_line_and_further_rates_join_it(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    other = replace(cell, lrs=(0.1, 1.0))
    write_run(store, cell, 0.1, 0, 0.5)
    write_run(store, other, 1.0, 0, 0.6)
    states = [survey(each, store.summaries()) for each in (cell, cell, other)]
    [(_, found)] = lines(sensitivity(states)).items()
    assert found["η = 0.1"].value == "50.00"
    assert (found["η = 1"].value, found["η = 1"].rank) == ("60.00", 1)
    assert len(sensitivity(states).records) == len({*cell.lrs, *other.lrs})


def test_other_settings_are_another_line(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    coarse = replace(cell, overrides=("precision=bf16",))
    printed = sensitivity([survey(each, store.summaries()) for each in (cell, coarse)])
    [block] = printed.sheet.blocks
    assert [line[printed.sheet.heads.index("arithmetic")].value for line in block] == ["tf32", "bf16"]


def test_records_have_every_end_in_full(store: Store) -> None:
    cell = cells_of("table1")["multi30k_transformer nero"]
    for lr in cell.lrs:
        write_run(store, cell, lr, 0, 10 + lr, metric=PERPLEXITY)
    records = [record for record in sensitivity(states_of(store, "table1")[1]).records if record["run"]]
    assert [float(record["final"]) for record in records] == pytest.approx([10 + lr for lr in cell.lrs])
    assert [record["leads"] for record in records] == ["1", "0", "0", "0", "0"]
    assert {record["status"] for record in records} == {"done"}


def test_a_task_to_come_has_a_line_of_what_is_missing() -> None:
    cell = Cell("a_task_to_come", "nero", (0.1, 1.0), 0, (1, 2))
    [(_, found)] = lines(sensitivity([survey(cell, {})])).items()
    assert found["η = 0.1"].value == "missing"


def test_nothing_at_all_is_an_empty_table() -> None:
    assert sensitivity([]).sheet.blocks == []


def test_embedded_data_are_said(store: Store) -> None:
    embedded = next(cell for cell in loaded("smoke").cells if len(cell.lrs) > 1)
    assert "Embedded data" in sensitivity([survey(embedded, {})]).warning
    assert not sensitivity(states_of(store)[1]).warning
