"""Plans, lists, checks and reports do work in proportion to the number of runs and of cells.

Work is counted, not timed: the bytecodes that Python executes in this project's modules.
"""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from benchmarks.synthetic_store import experiment_of_runs, write_store

import nero
from nero.plans.config import run_id
from nero.plans.listing import describe_plan
from nero.plans.plan import Cell, Experiment, PlannedRun, survey
from nero.report.assembly import Report
from nero.report.evidence import Evidence
from nero.report.frame import load_runs
from nero.report.page.data import pack
from nero.report.tables.run_list import describe_runs, in_order
from nero.runs.checking import check_store
from nero.runs.logged import logged_runs, select
from nero.runs.store import Store
from support.fake_runs import ACCURACY

SOURCE = str(Path(nero.__file__).parent)
SIZES = (168, 240, 312)  # runs: 7, 10 and 13 for each cell of Table 1
H200 = "NVIDIA H200"


def work(function: Callable[[], object]) -> int:
    """The number of bytecodes that a call executes in src/nero."""
    count = 0

    def in_function(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return in_function

    def in_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_function

    before = sys.gettrace()
    sys.settrace(in_call)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def assert_linear(counts: list[int]) -> None:
    """The third of three equal steps in size takes no more work than the second."""
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert first > 0
    assert second <= 1.05 * first, f"{counts}: quadratic"


def evidence_of(experiment: Experiment, store: Store) -> Evidence:
    summaries = store.summaries()
    return Evidence(experiment, tuple(survey(cell, summaries) for cell in experiment.cells), summaries, store)


def plan(store: Store, count: int) -> None:
    found = evidence_of(experiment_of_runs(2 * count), store)
    text = describe_plan(found.experiment, found.states, found.summaries, here=H200)
    assert f"{count} runs done; {count} pending" in text
    assert "time unknown" not in text


def runs_list(store: Store, count: int) -> None:
    chosen = select(logged_runs(store), optim=["nero", "sgd"], status=["done"])
    assert len(describe_runs(in_order(chosen, ["final", "run"])).splitlines()) == 1 + count // 2


def check(store: Store, count: int) -> None:
    assert sum(finding.is_problem for findings in check_store(store, run_id) for finding in findings) == 0


def check_of_ids_found_twice(store: Store, count: int) -> None:
    for task in list(store.root.iterdir()):
        shutil.copytree(task, store.root / f"copy_of_{task.name}")
    twice = [finding.words for findings in check_store(store, run_id) for finding in findings]
    assert sum("the same id is also at" in words for words in twice) == 2 * count


def report(store: Store, count: int) -> None:
    found = evidence_of(experiment_of_runs(count), store)
    made = Report([found], store, store.root.with_name("out"))
    assert len(made.texts(found)) + len(made.overview_texts()) > 5
    assert len(found.gaps()) == 0
    assert len(found.curves) > count
    assert len(load_runs(store)) == count
    pack(store, "runs")


@pytest.mark.parametrize("command", [plan, runs_list, check, check_of_ids_found_twice, report])
def test_work_grows_linearly_with_runs(command: Callable[[Store, int], None], tmp_path: Path) -> None:
    counts = []
    for place, size in enumerate((SIZES[0], *SIZES)):
        store = Store(tmp_path / str(place) / "runs")
        assert write_store(store, size, epochs=2)[0] == size
        counts.append(work(partial(command, store, size)))
    assert_linear(counts[1:])  # the first call also fills caches, such as that of composed configs


@pytest.mark.parametrize("is_logged", [False, True])
def test_work_of_plan_and_tables_grows_linearly_with_cells(is_logged: bool, store: Store) -> None:
    def tables(count: int) -> None:
        experiment = Experiment("bench", "Many cells", tuple(cells[:count]))
        found = Evidence(experiment, tuple(survey(cell, summaries) for cell in experiment.cells), summaries, store)
        made = Report([found], store, store.root)
        assert len(made.texts(found)) + len(made.overview_texts()) > 5
        assert len(found.gaps()) == (0 if is_logged else count)
        assert describe_plan(found.experiment, found.states, summaries, here=H200)

    cells = [Cell("mnist_reparam", "adam", (0.01, 0.1), 0, (1,), (("task.sigma", n),)) for n in range(1, 31)]
    runs = [cell.run(lr, seed) for cell in cells for lr in cell.lrs for seed in cell.seeds if is_logged]
    summaries = {run.run_id: summary_of(run) for run in runs}
    tables(len(cells))  # composes the configs
    assert_linear([work(lambda count=count: tables(count)) for count in (10, 20, 30)])


def summary_of(run: PlannedRun) -> dict[str, Any]:
    fixed = {key: getattr(run, key) for key in ("run_id", "task", "optim", "lr", "seed", "epochs")}
    result = {"status": "done", "final": run.lr, "final_metrics": {ACCURACY["key"]: run.lr}, "metric": ACCURACY}
    return {**fixed, **result, "data": "real", "device": H200, "epochs_done": run.epochs, "seconds": 9.0}
