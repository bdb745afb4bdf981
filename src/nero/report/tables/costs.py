"""What runs took: seconds of a GPU, energy where it was counted, and how long the paper's runs took."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.expected import Expected, expected, timed_on
from nero.plans.plan import CellState, Experiment, Summary, pending
from nero.report import paper
from nero.report.figures import style
from nero.report.tables.csv_format import exact, whole
from nero.report.tables.sheets import Line, Printed, RunLink, Sheet, Text
from nero.report.units import rate
from nero.runs.store import Status

NAME, RUNS_NAME = "costs", "costs_of_runs"
TITLE = "What runs took"
HEADS = ["task", "optimiser", "device", "runs", "GPU-seconds, a run", "GPU-seconds, all", "kJ, a run", "paper, a run"]

NOTES = (
    "Hours still expected are computed from runs that had their GPU to themselves, or shared it as the lanes of a "
    "sweep do: one GPU-bound run at a time, with CPU-bound ones beside it; where there are only others, from the "
    "shortest, as an upper bound. "
    "GPU-seconds: of wall clock, times the GPUs that a run had, evaluation and compilation included; a run that "
    "shared its GPU has all of its seconds counted, so that several side by side take less than the sum. The mean "
    "is over runs that came to their end, the sum over all that are logged. kJ: what the driver counted of the "
    "whole card, the mean over runs that had it for themselves (how many, in brackets); unknown where none did. In "
    "brackets after the runs: learning rate/seed of each. The paper's times are what its Appendix A tells of a run, "
    "of any optimiser."
)


@dataclass(frozen=True)
class Cost:
    """What runs of one task with one optimiser took on one kind of device."""

    task: str
    optim: str
    device: str
    runs: Sequence[Summary]

    @property
    def ended(self) -> list[Summary]:
        return [run for run in self.runs if run["status"] == Status.DONE]

    @property
    def of_a_run(self) -> float | None:
        """GPU-seconds, of those that came to their end; None where none did, and on a CPU."""
        return _mean([gpu_seconds(run) for run in self.ended])

    @property
    def energies(self) -> list[float]:
        """Joules of each of those whose own are known."""
        return [joules for run in self.ended if (joules := own_joules(run)) is not None]

    @property
    def hours(self) -> paper.Hours | None:
        return paper.HOURS.get(self.task)


def costs(states: Iterable[CellState], findings: Iterable[Text] = ()) -> Printed:
    """A line per task, optimiser and device, over every logged run that an experiment asks for, each run once."""
    blocks: list[list[Line]] = []
    records: list[dict[str, str]] = []
    for task, runs in _by(_runs(states), "task").items():
        by_optim = _by(runs, "optim")
        found = [
            Cost(task, optim, device, of_device)
            for optim in style.in_order(by_optim)
            for device, of_device in _by(by_optim[optim], "device").items()
        ]
        lines = [[Text("", code="" if place else task), *_line(cost)] for place, cost in enumerate(found)]
        total = _total(runs)
        if len(lines) > 1 and total is not None:
            lines.append([Text(word) for word in ("", "all", "", str(len(runs)), "", _rounded(total), "", "")])
        blocks.append(lines)
        records += map(_record, found)
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 3), NOTES, tuple(records), findings=tuple(findings))


def cost_of_experiment(experiment: Experiment, states: Sequence[CellState], summaries: Mapping[str, Summary]) -> Text:
    """Hours logged, by hardware, and hours still expected on that of most runs, in one sentence."""
    runs = _runs(states)
    logged = [
        f"{hours(total)} on {device}"
        for device, own in _by(runs, "device").items()
        if (total := _total(own)) is not None
    ]
    to_go = len(pending(states)) + sum(state.to_follow for state in states)
    text = f": {len(runs)} of {len(runs) + to_go} runs logged"
    text += f", GPU-hours: {', '.join(logged)}" if logged else ""
    device = timed_on(summaries, "")
    left = expected(states, summaries, device) if device else None
    if any(state.pending for state in states):
        text += f"; {_expected_in_words(left)}" if left and left.seconds else "; hours still expected: unknown"
    return Text(f"{text}.", code=experiment.name)


def _expected_in_words(left: Expected) -> str:
    text = f"hours still expected on {left.device}: {'at most ' if left.bounds else ''}{hours(left.seconds)}"
    if left.gpu and left.cpu:
        text += f", {hours(left.gpu)} of GPU-bound runs with {hours(left.cpu)} of CPU-bound ones beside them"
    return text + (f", and {left.unknown} runs of unknown length" if left.unknown else "")


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def costs_of_runs(states: Iterable[CellState]) -> tuple[Mapping[str, str], ...]:
    """The same, run by run."""
    return tuple(
        {
            "run": run["run_id"],
            **{key: str(run.get(key)) for key in ("task", "optim")},
            "lr": exact(run.get("lr")),
            **{key: str(run.get(key)) for key in ("seed", "status", "device", "epochs_done")},
            "gpus": str(gpus(run)),
            "seconds": exact(run.get("seconds")),
            "gpu_seconds": exact(gpu_seconds(run)),
            "joules": exact(run.get("joules")),
            "processes_on_gpu": whole(run.get("gpu_processes")),
        }
        for run in _runs(states)
    )


def gpus(run: Summary) -> int:
    """How many a run was spread over, by its device in words, such as "4 x NVIDIA H200"; none on a CPU."""
    device = str(run.get("device") or "")
    many = re.match(r"(\d+) x ", device)
    return 0 if "CPU" in device.upper() else int(many[1]) if many else 1


def gpu_seconds(run: Summary) -> float | None:
    """None for a run on a CPU."""
    return run["seconds"] * gpus(run) if gpus(run) else None


def own_joules(run: Summary) -> float | None:
    """What the card took while this run alone computed on it; None where that is unknown."""
    return run.get("joules") if run.get("gpu_processes") == 1 else None


def _runs(states: Iterable[CellState]) -> list[Summary]:
    return list({run_id: run for state in states for run_id, run in state.logged.items()}.values())


def _by(runs: Iterable[Summary], key: str) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for run in runs:
        found.setdefault(str(run.get(key)), []).append(run)
    return found


def _total(runs: Iterable[Summary]) -> float | None:
    """GPU-seconds; None where all ran on a CPU."""
    known = [seconds for run in runs if (seconds := gpu_seconds(run)) is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _line(cost: Cost) -> Line:
    links = tuple(RunLink.to(run, f"{rate(run['lr'])}/{run['seed']}") for run in cost.runs)
    energy = _mean(cost.energies)
    return [
        Text(style.name(cost.optim)),
        Text(cost.device),
        Text(str(len(cost.runs)), runs=links),
        Text(_rounded(cost.of_a_run)),
        Text(_rounded(_total(cost.runs))),
        Text("unknown") if energy is None else Text(f"{energy / 1e3:.1f}", f"n = {len(cost.energies)}"),
        Text(str(cost.hours or "")),
    ]


def _record(cost: Cost) -> dict[str, str]:
    return {
        "task": cost.task,
        "optim": cost.optim,
        "device": cost.device,
        "runs": str(len(cost.runs)),
        "runs_done": str(len(cost.ended)),
        "gpu_seconds_of_a_run": exact(cost.of_a_run),
        "gpu_seconds_of_all": exact(_total(cost.runs)),
        "joules_of_a_run": exact(_mean(cost.energies)),
        "runs_with_energy": str(len(cost.energies)),
        "paper_gpu_hours_of_a_run": exact(cost.hours.gpu_hours if cost.hours else None),
        "paper_device": cost.hours.device if cost.hours else "",
    }


def _rounded(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f}"
