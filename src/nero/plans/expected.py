"""How long pending runs should take, estimated from logged runs on the same hardware.

A logged run is representative of others if it had its GPU to itself, or shared it as the lanes of a sweep do: one
GPU-bound run at a time, with CPU-bound ones beside it. If no run is representative, the shortest is an upper bound.
Runs of other experiments may have other settings, such as a smaller network: they give a rough estimate.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from nero.plans.plan import Cell, CellState, PlannedRun, Summary
from nero.runs.store import Status


@dataclass(frozen=True)
class Estimate:
    """The expected time of a run.

    seconds:    of wall clock
    at_a_time:  runs of its lane that run side by side
    is_bound:   whether it is only an upper bound
    is_rough:   whether it is from runs of other experiments
    """

    seconds: float
    at_a_time: int = 1
    is_bound: bool = False
    is_rough: bool = False

    @property
    def qualifier(self) -> str:
        return qualifier(self.is_rough, self.is_bound)


@dataclass(frozen=True)
class Expected:
    """The expected time of all that is left of an experiment, undecided repeats included.

    runs:      by the id of each run that is pending or an undecided repeat
    gpu, cpu:  seconds of wall clock of each lane
    """

    device: str
    runs: Mapping[str, Estimate | None]
    gpu: float
    cpu: float

    @property
    def unknown(self) -> int:
        """Runs without an estimate."""
        return sum(estimate is None for estimate in self.runs.values())

    @property
    def bounds(self) -> int:
        """Runs with an upper bound only."""
        return sum(estimate is not None and estimate.is_bound for estimate in self.runs.values())

    @property
    def rough(self) -> int:
        """Runs with a rough estimate only."""
        return sum(estimate is not None and estimate.is_rough for estimate in self.runs.values())

    @property
    def seconds(self) -> float:
        """With both lanes side by side."""
        return max(self.gpu, self.cpu)

    @property
    def qualifier(self) -> str:
        return qualifier(self.rough, self.bounds)


def qualifier(rough: int, bounds: int) -> str:
    """What stands before a time."""
    return "at most " * bool(bounds) + "roughly " * bool(rough)


def device_here() -> str:
    """The name of this machine's GPU, as summaries have it, or CPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    except Exception:  # no package, no driver, or no GPU
        return "CPU"
    return name if isinstance(name, str) else name.decode()


def timed_on(summaries: Mapping[str, Summary], here: str) -> str | None:
    """The hardware to take times from: this machine's if runs on it are logged, else that of most runs; or None."""
    counts = Counter(_hardware(run) for run in summaries.values() if run["status"] == Status.DONE)
    return here if counts[here] else next((device for device, _ in counts.most_common(1)), None)


def _hardware(run: Summary) -> str:
    """CPUs are not distinguished: the number of a run's threads says little."""
    device = str(run.get("device") or "unnamed hardware")
    return "CPU" if device.startswith("CPU") else device


def expected(
    states: Sequence[CellState], summaries: Mapping[str, Summary], device: str, others: Sequence[CellState] = ()
) -> Expected:
    """Of all runs that are left; a run that cells share counts once.

    From runs of the experiment on the same task in the same precision, else roughly from all runs of the task: the
    settings of a run are not in its summary, but in the cell.

    Args:
        others: cells of the experiment whose own runs do not count
    """
    logged: dict[tuple[str, Any], dict[str, Summary]] = {}
    for state in (*states, *others):
        logged.setdefault(_precision(state.cell), {}).update(state.logged)
    in_precision = {key: FinishedRuns(found.values(), device) for key, found in logged.items()}
    every = FinishedRuns(summaries.values(), device)
    runs: dict[str, Estimate | None] = {}
    seconds = {"gpu": 0.0, "cpu": 0.0}
    for state in states:
        data, lane, known = state.cell.setting("data"), state.cell.bound_by, in_precision[_precision(state.cell)]
        for run in (run for run in _left(state) if run.run_id not in runs):
            found = known.estimate(run, lane, data)
            if found is None and (rough := every.estimate(run, lane, data)):
                found = replace(rough, is_rough=True)
            runs[run.run_id] = found
            seconds[lane] += found.seconds / found.at_a_time if found else 0.0
    return Expected(device, runs, **seconds)


def _left(state: CellState) -> Iterable[PlannedRun]:
    """Pending runs, and undecided repeats, which take as long at any learning rate."""
    yield from state.pending
    if state.undecided:
        lr = state.leading_lr if state.leading_lr is not None else state.cell.lrs[0]
        seeds = [seed for seed in state.cell.repeat_seeds if state.at_leading.get(seed) is None]
        yield from (state.cell.run(lr, seed) for seed in seeds)


def _precision(cell: Cell) -> tuple[str, Any]:
    return cell.task, cell.setting("precision")


class FinishedRuns:
    """Finished runs on a device, from which others are estimated. Each group of runs is read once."""

    def __init__(self, summaries: Iterable[Summary], device: str) -> None:
        self.by_task: dict[str, list[Summary]] = {}
        for each in summaries:
            # A run that diverged early spent most of its time on starting.
            if each["status"] == Status.DONE and _hardware(each) == device:
                self.by_task.setdefault(each["task"], []).append(each)
        self._groups = cache(self._groups_of)
        self._epoch = cache(self._epoch_of)

    def estimate(self, run: PlannedRun, lane: str, data: str) -> Estimate | None:
        """From runs of its task on such data, of its optimiser if there are any; None if there are none."""
        epoch = self._epoch(run.task, run.optim, lane, data)
        return epoch and replace(epoch, seconds=epoch.seconds * run.epochs)

    def _groups_of(self, task: str, lane: str, data: str) -> tuple[bool, dict[str, list[Summary]]]:
        """Whether runs of a task are representative; those that are, else all, by optimiser, and together under ""."""
        logged = [each for each in self.by_task.get(task, ()) if each.get("data", data) == data]
        representative = [each for each in logged if is_representative(each, lane)]
        groups = {"": representative or logged}
        for each in groups[""]:
            groups.setdefault(each["optim"], []).append(each)
        return bool(representative), groups

    def _epoch_of(self, task: str, optim: str, lane: str, data: str) -> Estimate | None:
        are_representative, groups = self._groups(task, lane, data)
        if not (chosen := groups.get(optim) or groups[""]):
            return None
        rates = [each["seconds"] / each["epochs_done"] for each in chosen]
        if not are_representative:
            return Estimate(min(rates), is_bound=True)
        at_a_time = statistics.median_low([1 + (each.get("beside") or {}).get("cpu", 0) for each in chosen])
        return Estimate(statistics.median(rates), at_a_time if lane == "cpu" else 1)


def is_representative(run: Summary, lane: str) -> bool:
    """Whether a run was alone on its GPU, or beside others as lanes are."""
    beside = run.get("beside")
    if beside is None:
        return run.get("gpu_processes") == 1 or _hardware(run) == "CPU"
    return bool(beside.get("gpu", 0) <= (1 if lane == "cpu" else 0))
