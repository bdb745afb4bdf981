"""Expected run times: which logged runs and which hardware they are based on, and parallel lanes."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.plans import listing
from nero.plans.expected import Estimate, FinishedRuns, expected, is_representative, timed_on
from nero.plans.listing import describe_plan
from nero.plans.plan import Cell, CellState, Experiment, PlannedRun, load_experiment, survey
from nero.report.tables.costs import cost_of_experiment
from support.fake_runs import RememberingCell

H200, OTHER = "NVIDIA H200", "NVIDIA A100"
DEEP = [cell.run(0.01, 0) for cell in load_experiment("mnist").cells if cell.task == "mnist_mlp100"]
NERO, SGD = DEEP[:2]
PONG = Cell("pong_ppo", "nero", (0.01,), 0, (1, 2))


def summary(run: PlannedRun, seconds: float = 10.0, **changes: Any) -> dict[str, Any]:
    alone = {"device": H200, "gpu_processes": 1, "data": "real"}
    fixed = {"run_id": run.run_id, "task": run.task, "optim": run.optim, "lr": run.lr, "seed": run.seed}
    result = {"status": "done", "final": 0.5, "metric": {"key": "train/accuracy", "goal": "max", "label": ""}}
    took = {"epochs_done": run.epochs, "seconds": seconds}
    return {**fixed, **alone, **result, "final_metrics": {"train/accuracy": 0.5}, **took, **changes}


def estimate(run: PlannedRun, lane: str, logged: Iterable[dict[str, Any]], device: str) -> Estimate | None:
    return FinishedRuns(logged, device).estimate(run, lane, "real")


def seconds_of(run: PlannedRun, *logged: dict[str, Any], lane: str = "gpu", device: str = H200) -> float | None:
    found = estimate(run, lane, logged, device)
    return None if found is None else found.seconds


def test_estimate_prefers_logged_runs_of_same_task_and_optimiser() -> None:
    assert seconds_of(NERO) is None
    assert seconds_of(NERO, summary(SGD)) == pytest.approx(10)
    early_end = summary(NERO, status="diverged", epochs_done=1)
    assert seconds_of(NERO, summary(SGD), early_end) == pytest.approx(10)
    assert seconds_of(NERO, summary(SGD), summary(NERO, 30.0, epochs_done=25)) == pytest.approx(60)
    assert seconds_of(NERO, summary(PONG.run(0.01, 0))) is None


def test_estimate_ignores_runs_on_other_hardware() -> None:
    assert seconds_of(NERO, summary(NERO, device=OTHER)) is None
    assert seconds_of(NERO, summary(NERO, 20.0), summary(NERO, device=OTHER)) == pytest.approx(20)
    assert seconds_of(NERO, summary(NERO, device="CPU, 2 threads"), device="CPU") == pytest.approx(10)


@pytest.mark.parametrize(
    ("lane", "changes", "fair"),
    [
        ("gpu", {"gpu_processes": 1}, True),
        ("gpu", {"gpu_processes": 5}, False),  # it is not known which other processes there were
        ("gpu", {"gpu_processes": None}, False),
        ("gpu", {"gpu_processes": 5, "beside": {"gpu": 0, "cpu": 4}}, True),
        ("gpu", {"gpu_processes": 2, "beside": {"gpu": 1, "cpu": 0}}, False),
        ("cpu", {"gpu_processes": 5, "beside": {"gpu": 1, "cpu": 3}}, True),
        ("cpu", {"gpu_processes": 5, "beside": {"gpu": 2, "cpu": 0}}, False),
        ("gpu", {"gpu_processes": None, "device": "CPU, 8 threads"}, True),
    ],
)
def test_only_runs_alone_or_packed_as_in_lanes_are_representative(
    lane: str, changes: dict[str, Any], fair: bool
) -> None:
    assert is_representative(summary(NERO, **changes), lane) is fair


def test_unrepresentative_runs_give_only_an_upper_bound() -> None:
    packed = [summary(NERO, seconds, gpu_processes=8) for seconds in (90.0, 70.0)]
    assert estimate(NERO, "gpu", packed, H200) == Estimate(pytest.approx(70), is_bound=True)
    assert estimate(NERO, "gpu", [*packed, summary(NERO, 20.0)], H200) == Estimate(pytest.approx(20))
    assert estimate(NERO, "gpu", [*packed, summary(SGD, 30.0)], H200) == Estimate(pytest.approx(30))


def test_cpu_lane_estimate_divides_time_among_parallel_runs() -> None:
    run = PONG.run(0.01, 0)
    logged = summary(run, 1200.0, beside={"gpu": 1, "cpu": 3})
    assert estimate(run, "cpu", [logged], H200) == Estimate(pytest.approx(1200), at_a_time=4)
    left = expected([survey(PONG, {run.run_id: logged})], {run.run_id: logged}, H200)
    assert (left.cpu, left.gpu, left.seconds) == (pytest.approx(600), 0, pytest.approx(600))


def test_expected_time_is_longest_lane_and_includes_repeats() -> None:
    search = Cell("mnist_mlp100", "nero", (0.01, 0.1), 0, (1, 2))
    done = {run.run_id: summary(run, 100.0) for run in (search.run(0.01, 0),)}
    pong = PONG.run(0.01, 0)
    done[pong.run_id] = summary(pong, 400.0, beside={"gpu": 1, "cpu": 3})
    states = [survey(cell, done) for cell in (search, PONG)]
    left = expected(states, done, H200)
    assert left.gpu == pytest.approx(300), "one of the search and two repeats"
    assert left.cpu == pytest.approx(200), "two, four at a time"
    assert left.seconds == left.gpu
    text = describe_plan(Experiment("x", "x", (search, PONG)), states, done, here=H200)
    assert "expected on NVIDIA H200: 5:00 (5:00 of GPU-bound runs, 3:20 of CPU-bound ones beside them)" in text
    assert "unknown" not in text
    sentence = cost_of_experiment(Experiment("x", "x", (search, PONG)), states, done).value
    assert sentence == (
        ": 2 of 7 runs logged, GPU-hours: 0.1 on NVIDIA H200; hours still expected on NVIDIA H200: 0.1,"
        " 0.1 of GPU-bound runs with 0.1 of CPU-bound runs next to them."
    )


def test_estimate_prefers_runs_with_same_precision() -> None:
    cells = [
        Cell("mnist_mlp100", "nero", (0.1,), 0, (1,), overrides=(f"precision={precision}",))
        for precision in ("tf32", "bf16")
    ]
    slow, fast = (cell.run(0.1, 0) for cell in cells)
    logged = {slow.run_id: summary(slow, 600.0), fast.run_id: summary(fast, 60.0)}
    further = Cell("mnist_mlp100", "nero", (0.1,), 0, (), overrides=("precision=bf16", "task.depth=5"))
    unlike = Cell("mnist_mlp100", "nero", (0.1,), 0, (), overrides=("precision=fp32",))
    embedded = Cell("mnist_mlp100", "nero", (0.1,), 0, (), overrides=("data=embedded",))
    experiment = Experiment("x", "x", (*cells, further, unlike, embedded))
    text = describe_plan(experiment, [survey(cell, logged) for cell in experiment.cells], logged, here=H200)
    times = {line.split()[1]: line.split()[-1] for line in text.splitlines() if "  pending  " in line}
    expected = {cells[0].run(0.1, 1): "10:00", cells[1].run(0.1, 1): "1:00", further.run(0.1, 0): "1:00"}
    expected |= {unlike.run(0.1, 0): "5:30", embedded.run(0.1, 0): "unknown"}
    assert times == {run.run_id: time for run, time in expected.items()}
    assert f"{unlike.run(0.1, 0).run_id}  50 epochs  roughly 5:30" in text
    assert text.count("roughly") == 1
    assert "only a rough estimate, from runs with other settings, for 1 run" in text
    assert "; 1 run of unknown length not counted" in text


def test_other_optimisers_of_the_experiment_come_before_runs_of_other_experiments() -> None:
    baseline, own = (Cell("mnist_mlp100", optim, (0.1,), 0, ()) for optim in ("sgd", "nero"))
    smaller = Cell("mnist_mlp100", "nero", (0.1,), 0, (), overrides=("task.depth=5",)).run(0.1, 0)
    run = baseline.run(0.1, 0)
    logged = {run.run_id: summary(run, 600.0), smaller.run_id: summary(smaller, 10.0)}
    states = [survey(cell, logged) for cell in (baseline, own)]
    assert expected(states, logged, H200).runs == {own.run(0.1, 0).run_id: Estimate(pytest.approx(600))}
    assert expected(states[1:], logged, H200).runs[own.run(0.1, 0).run_id].is_rough


def test_plan_states_which_device_expected_times_are_for() -> None:
    cell = Cell("mnist_mlp100", "nero", (0.01,), 0, (1,))
    run = cell.run(0.01, 0)
    logged = {run.run_id: summary(run, 60.0, gpu_processes=3)}
    plan = Experiment("x", "x", (cell,)), [survey(cell, logged)], logged
    there, elsewhere = (describe_plan(*plan, here=device) for device in (H200, OTHER))
    assert "at most 1:00" in there
    assert "expected on NVIDIA H200: 1:00; only an upper bound is known for 1 run" in there
    assert "unknown" not in there
    assert "expected on NVIDIA H200: 1:00" in elsewhere
    assert "expected on this machine (NVIDIA A100): unknown" in elsewhere


def test_estimate_from_packed_runs_with_other_settings_is_a_rough_upper_bound() -> None:
    cell = Cell("mnist_mlp100", "nero", (0.01,), 0, ())
    smaller = Cell("mnist_mlp100", "nero", (0.01,), 0, (), overrides=("task.depth=5",)).run(0.01, 0)
    logged = {smaller.run_id: summary(smaller, 60.0, gpu_processes=4)}
    left = expected([survey(cell, logged)], logged, H200)
    assert (left.bounds, left.rough, left.qualifier) == (1, 1, "at most roughly ")
    text = describe_plan(Experiment("x", "x", (cell,)), [survey(cell, logged)], logged, here=H200)
    assert f"{cell.run(0.01, 0).run_id}  50 epochs  at most roughly 1:00" in text


def test_expected_time_is_unknown_without_logged_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "device_here", lambda: OTHER)
    cell = Cell("mnist_mlp100", "nero", (0.01,), 0, ())
    text = describe_plan(Experiment("x", "x", (cell,)), [survey(cell, {})], {})
    assert "time unknown" in text
    assert "expected on this machine (NVIDIA A100): unknown" in text
    assert timed_on({}, OTHER) is None


# The definition, run by run: for every pending run it reads all logged ones.
def estimate_from(run: PlannedRun, lane: str, summaries: Iterable[Any], device: str) -> Estimate | None:
    logged = [
        each
        for each in summaries
        if each["task"] == run.task
        and each["status"] == "done"
        and device == ("CPU" if each["device"].startswith("CPU") else each["device"])
    ]
    representative = [each for each in logged if is_representative(each, lane)]
    usable = representative or logged
    chosen = [each for each in usable if each["optim"] == run.optim] or usable
    rates = [each["seconds"] / each["epochs_done"] for each in chosen]
    if not rates:
        return None
    if not representative:
        return Estimate(min(rates) * run.epochs, is_bound=True)
    beside = [1 + (each.get("beside") or {}).get("cpu", 0) for each in chosen]
    at_a_time = statistics.median_low(beside) if lane == "cpu" else 1
    return Estimate(statistics.median(rates) * run.epochs, at_a_time)


def expected_of(states: Sequence[CellState], summaries: dict[str, Any], device: str) -> dict[str, Estimate | None]:
    found: dict[str, Estimate | None] = {}
    for state in states:
        cell = state.cell
        alike = [other for other in states if precision_of(other.cell) == precision_of(cell)]
        in_precision = {run_id: run for other in alike for run_id, run in other.logged.items()}
        repeats = [
            cell.run(state.leading_lr if state.leading_lr is not None else cell.lrs[0], seed)
            for seed in cell.repeat_seeds
            if state.undecided and state.at_leading.get(seed) is None
        ]
        for run in (*state.pending, *repeats):
            for logged in (in_precision, summaries):
                fitting = [each for each in logged.values() if each.get("data", "real") == "real"]
                estimate = estimate_from(run, cell.bound_by, fitting, device)
                if estimate and logged is summaries:
                    estimate = replace(estimate, is_rough=True)
                found[run.run_id] = found.get(run.run_id) or estimate
    return found


def precision_of(cell: Cell) -> tuple[str, Any]:
    return cell.task, cell.setting("precision")


CELLS = (
    *(RememberingCell("mnist_mlp100", optim, (0.01, 0.1), 0, (1, 2, 3)) for optim in ("nero", "sgd", "adam")),
    RememberingCell("mnist_mlp100", "nero", (0.01, 0.1), 0, (1, 2), overrides=("precision=bf16",)),
    RememberingCell("mnist_mlp100", "nero", (0.1,), 0, (1, 2, 3)),  # shares runs with the first
    RememberingCell("pong_ppo", "nero", (0.01,), 0, (1, 2)),
)
PLANNED = {run.run_id: run for cell in CELLS for lr in cell.lrs for seed in cell.seeds for run in [cell.run(lr, seed)]}
LOGGED = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["done", "done", "done", "diverged", "failed", "running"]),
        "device": st.sampled_from([H200, H200, OTHER, "CPU, 2 threads"]),
        "seconds": st.floats(1, 1000),
        "epochs_done": st.integers(1, 50),
        "gpu_processes": st.sampled_from([1, 2, None]),
    },
    optional={
        "data": st.sampled_from(["real", "embedded"]),
        "beside": st.fixed_dictionaries({"gpu": st.integers(0, 2), "cpu": st.integers(0, 3)}),
    },
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(sorted(PLANNED)), LOGGED), st.sampled_from([H200, OTHER, "CPU"]))
def test_expected_times_equal_those_computed_run_by_run(logged: dict[str, Any], device: str) -> None:
    summaries = {run_id: summary(PLANNED[run_id]) | found for run_id, found in logged.items()}
    for run_id, found in logged.items():
        if "data" not in found:
            del summaries[run_id]["data"]
    states = [survey(cell, summaries) for cell in CELLS]
    found = expected(states, summaries, device)
    wanted = expected_of(states, summaries, device)
    assert found.runs == wanted
    for lane, seconds in (("gpu", found.gpu), ("cpu", found.cpu)):
        runs = (
            each for run_id, each in wanted.items() if each and (PLANNED[run_id].task == "pong_ppo") == (lane == "cpu")
        )
        assert seconds == pytest.approx(sum(each.seconds / each.at_a_time for each in runs))
