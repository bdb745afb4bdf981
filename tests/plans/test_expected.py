"""Expected run times: which logged runs and which hardware they are based on, and parallel lanes."""

from typing import Any

import pytest

from nero.plans import listing
from nero.plans.expected import Estimate, estimate, expected, is_representative, timed_on
from nero.plans.listing import describe_plan
from nero.plans.plan import Cell, Experiment, PlannedRun, load_experiment, survey
from nero.report.tables.costs import cost_of_experiment

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
    assert "1 runs of unknown length are not counted" in text


def test_plan_states_which_device_expected_times_are_for() -> None:
    cell = Cell("mnist_mlp100", "nero", (0.01,), 0, (1,))
    run = cell.run(0.01, 0)
    logged = {run.run_id: summary(run, 60.0, gpu_processes=3)}
    plan = Experiment("x", "x", (cell,)), [survey(cell, logged)], logged
    there, elsewhere = (describe_plan(*plan, here=device) for device in (H200, OTHER))
    assert "at most 1:00" in there
    assert "expected on NVIDIA H200: 1:00; of 1 runs only an upper bound is known" in there
    assert "unknown" not in there
    assert "expected on NVIDIA H200: 1:00" in elsewhere
    assert "expected on this machine (NVIDIA A100): unknown" in elsewhere


def test_expected_time_is_unknown_without_logged_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "device_here", lambda: OTHER)
    cell = Cell("mnist_mlp100", "nero", (0.01,), 0, ())
    text = describe_plan(Experiment("x", "x", (cell,)), [survey(cell, {})], {})
    assert "time unknown" in text
    assert "expected on this machine (NVIDIA A100): unknown" in text
    assert timed_on({}, OTHER) is None
