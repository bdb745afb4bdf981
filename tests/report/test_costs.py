"""Tests of the cost tables: means and totals of GPU time and energy, and unknown values."""

import json
from typing import Any

import pytest

from nero.report import paper
from nero.report.tables.costs import costs, costs_of_runs, gpu_seconds, gpus, own_joules
from nero.report.tables.sheets import Printed
from nero.runs.store import RunDirectory, Store
from support.fake_runs import cells_of, states_of, write_run

DEEP = "mnist_mlp100"
H200 = "NVIDIA H200"


def set_summary(run: RunDirectory, **changes: Any) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    run.write_summary({**summary, "device": H200, **changes})


@pytest.fixture
def table(store: Store) -> Printed:
    nero, adam = (cells_of("mnist")[f"{DEEP} {optim}"] for optim in ("nero", "adam"))
    set_summary(write_run(store, nero, 0.01, 0, 0.5), seconds=100.0, joules=30_000.0, gpu_processes=1)
    set_summary(write_run(store, nero, 0.1, 0, 0.4), seconds=300.0, joules=90_000.0, gpu_processes=4)
    set_summary(write_run(store, nero, 0.001, 0, None), seconds=7.0, joules=1_000.0, gpu_processes=1)
    set_summary(write_run(store, adam, 0.01, 0, 0.3), seconds=50.0, device=f"4 x {H200}")
    set_summary(write_run(store, adam, 0.1, 0, 0.2), seconds=60.0, device="CPU, 2 threads")
    return costs(states_of(store)[1])


def record(table: Printed, optim: str, device: str) -> dict[str, str]:
    [found] = [dict(line) for line in table.records if (line["optim"], line["device"]) == (optim, device)]
    return found


def test_mean_cost_covers_finished_runs_and_total_covers_all_runs(table: Printed) -> None:
    found = record(table, "nero", H200)
    assert (found["runs"], found["runs_done"]) == ("3", "2")
    assert float(found["gpu_seconds_of_a_run"]) == 200.0
    assert float(found["gpu_seconds_of_all"]) == 407.0


def test_energy_counts_only_runs_with_exclusive_gpu(table: Printed) -> None:
    found = record(table, "nero", H200)
    assert (float(found["joules_of_a_run"]), found["runs_with_energy"]) == (30_000.0, "1")
    assert record(table, "adam", f"4 x {H200}")["joules_of_a_run"] == ""
    words = [[text.value for text in line] for block in table.sheet.blocks for line in block]
    energies = [dict(zip(table.sheet.heads, line, strict=True))["kJ/run"] for line in words]
    assert energies == ["30.0", "unknown", "unknown", ""]


def test_gpu_seconds_are_multiplied_by_gpu_count_and_empty_on_cpu(table: Printed) -> None:
    assert float(record(table, "adam", f"4 x {H200}")["gpu_seconds_of_a_run"]) == 200.0
    assert record(table, "adam", "CPU, 2 threads")["gpu_seconds_of_a_run"] == ""


@pytest.mark.parametrize(
    ("device", "count"), [(H200, 1), (f"4 x {H200}", 4), ("CPU, 2 threads", 0), ("2 x CPU, 1 threads", 0), ("cpu", 0)]
)
def test_gpu_count_is_parsed_from_device_name(device: str, count: int) -> None:
    run = {"device": device, "seconds": 2.0}
    assert gpus(run) == count
    assert gpu_seconds(run) == (2.0 * count or None)


def test_runs_without_energy_record_have_no_energy() -> None:
    assert own_joules({"device": H200, "seconds": 1.0}) is None
    assert own_joules({"joules": None, "gpu_processes": 1}) is None
    assert own_joules({"joules": 5.0, "gpu_processes": None}) is None, "who else was there is unknown"


def test_paper_gpu_hours_are_listed_beside_ours(table: Printed) -> None:
    assert float(record(table, "nero", H200)["paper_gpu_hours_of_a_run"]) == 0.5
    assert paper.HOURS[paper.IMAGENET].gpu_hours == 180
    assert str(paper.HOURS[paper.IMAGENET]) == "45 h on 4 x 2080 Ti"
    assert str(paper.HOURS[DEEP]) == "30 min on P100"
    tasks = {*paper.TABLE1_TASKS.values(), paper.REPARAM, paper.DEEP, paper.IMAGENET}
    assert paper.HOURS.keys() == tasks


def test_table_1_total_hours_from_paper_times() -> None:
    runs = 4 * (5 + 2)
    hours = sum(runs * paper.HOURS[task].gpu_hours for task in paper.TABLE1_TASKS.values())
    assert hours == pytest.approx(245)


def test_every_run_is_listed_once(store: Store, table: Printed) -> None:
    states = states_of(store)[1]
    records = costs_of_runs([*states, *states])
    assert len(records) == len({line["run"] for line in records}) == 5
    [shared] = [line for line in records if line["processes_on_gpu"] == "4"]
    assert (shared["joules"], shared["gpu_seconds"], shared["status"]) == ("90000", "300", "done")
    assert table.records == costs([*states, *states]).records


def test_empty_store_has_no_cost_records(store: Store) -> None:
    assert costs(states_of(store)[1]).records == ()
