"""How long runs should take, from logged runs on named hardware.

A logged run tells how long others will take if it had its GPU to itself, or shared it as the lanes of a sweep do: one
GPU-bound run at a time, with CPU-bound ones beside it. Of runs that shared it in other ways, or in ways that are not
known, the shortest is an upper bound.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nero.plans.plan import Cell, CellState, PlannedRun, Summary
from nero.runs.store import Status


@dataclass(frozen=True)
class Estimate:
    """What a run should take.

    seconds:     of wall clock
    at_a_time:   runs that go side by side meanwhile
    is_bound:    whether it is an upper bound only
    """

    seconds: float
    at_a_time: int = 1
    is_bound: bool = False


@dataclass(frozen=True)
class Expected:
    """What all that is left of an experiment should take on one kind of hardware, repeats that are to follow included.

    gpu, cpu:  seconds of wall clock of each lane
    unknown:   runs without an estimate
    bounds:    runs of which only an upper bound is known
    """

    device: str
    gpu: float = 0.0
    cpu: float = 0.0
    unknown: int = 0
    bounds: int = 0

    @property
    def seconds(self) -> float:
        """With both lanes side by side."""
        return max(self.gpu, self.cpu)


def device_here() -> str:
    """This machine's GPU by its name, as summaries have it, or CPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    except Exception:  # no package, no driver, or no GPU
        return "CPU"
    return name if isinstance(name, str) else name.decode()


def timed_on(summaries: Mapping[str, Summary], here: str) -> str | None:
    """The hardware to take times from: this machine's where runs of it are logged, else that of most runs; or None."""
    counts = Counter(_kind_of(run) for run in summaries.values() if run["status"] == Status.DONE)
    return here if counts[here] else next((device for device, _ in counts.most_common(1)), None)


def _kind_of(run: Summary) -> str:
    """CPUs are not told apart: how many threads a run had says little."""
    device = str(run.get("device") or "unnamed hardware")
    return "CPU" if device.startswith("CPU") else device


def estimates(states: Sequence[CellState], summaries: Mapping[str, Summary], device: str) -> dict[str, Estimate | None]:
    """By the id of each pending run.

    From runs of the experiment in the same arithmetic, else from all runs of the task: summaries do not say the
    arithmetic of a run; the cell that asked for it does.
    """
    alike = _by_arithmetic(states)
    return {
        run.run_id: _estimate(run, state.cell, alike, summaries, device) for state in states for run in state.pending
    }


def expected(states: Sequence[CellState], summaries: Mapping[str, Summary], device: str) -> Expected:
    """Of all that is pending or to follow; what cells share counts once."""
    alike = _by_arithmetic(states)
    found: dict[str, tuple[str, Estimate | None]] = {}
    for state in states:
        for run in _left(state):
            found[run.run_id] = state.cell.bound_by, _estimate(run, state.cell, alike, summaries, device)
    known = [(lane, estimate) for lane, estimate in found.values() if estimate is not None]
    lanes = {
        lane: sum(estimate.seconds / estimate.at_a_time for own, estimate in known if own == lane)
        for lane in ("gpu", "cpu")
    }
    return Expected(
        device, **lanes, unknown=len(found) - len(known), bounds=sum(estimate.is_bound for _, estimate in known)
    )


def _left(state: CellState) -> Iterable[PlannedRun]:
    """Pending runs, and repeats to follow, which at any learning rate take as long."""
    yield from state.pending
    if state.undecided:
        seeds = [seed for seed in state.cell.repeat_seeds if state.at_leading.get(seed) is None]
        rate = state.leading_lr if state.leading_lr is not None else state.cell.lrs[0]
        yield from (state.cell.run(rate, seed) for seed in seeds)


def _by_arithmetic(states: Iterable[CellState]) -> dict[tuple[str, str, Any], dict[str, Summary]]:
    alike: dict[tuple[str, str, Any], dict[str, Summary]] = {}
    for state in states:
        alike.setdefault(_arithmetic(state.cell), {}).update(state.logged)
    return alike


def _arithmetic(cell: Cell) -> tuple[str, str, Any]:
    return cell.task, cell.optim, cell.setting("precision")


def _estimate(
    run: PlannedRun,
    cell: Cell,
    alike: Mapping[tuple[str, str, Any], Mapping[str, Summary]],
    summaries: Mapping[str, Summary],
    device: str,
) -> Estimate | None:
    data = cell.setting("data")
    for runs in (alike.get(_arithmetic(cell), {}), summaries):
        on_same_data = [each for each in runs.values() if each.get("data", data) == data]
        if found := estimate(run, cell.bound_by, on_same_data, device):
            return found
    return None


def estimate(run: PlannedRun, lane: str, summaries: Iterable[Summary], device: str) -> Estimate | None:
    """From finished runs of its task on a device, with its optimiser where there are any; None where there are none."""
    # A run that diverged early spent most of its time on starting.
    logged = [
        each
        for each in summaries
        if each["task"] == run.task and each["status"] == Status.DONE and _kind_of(each) == device
    ]
    if not logged:
        return None
    fair = [each for each in logged if is_fair(each, lane)]
    usable = fair or logged
    chosen = [each for each in usable if each["optim"] == run.optim] or usable
    rates = [each["seconds"] / each["epochs_done"] for each in chosen]
    if not fair:
        return Estimate(min(rates) * run.epochs, is_bound=True)
    at_a_time = statistics.median_low([1 + (each.get("beside") or {}).get("cpu", 0) for each in chosen])
    return Estimate(statistics.median(rates) * run.epochs, at_a_time if lane == "cpu" else 1)


def is_fair(run: Summary, lane: str) -> bool:
    """Whether a run was alone on its GPU, or beside others as lanes are."""
    beside = run.get("beside")
    if beside is None:
        return run.get("gpu_processes") == 1 or _kind_of(run) == "CPU"
    return bool(beside.get("gpu", 0) <= (1 if lane == "cpu" else 0))
