"""Cost of runs: GPU-seconds, energy where it was measured, and how long the paper's runs took."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.expected import Expected, expected, timed_on
from nero.plans.plan import CellState, Experiment, Summary, pending
from nero.report import paper
from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, RunLink, Sheet, Text, exact
from nero.report.units import rate
from nero.runs.store import Status

NAME, RUNS_NAME = "costs", "costs_of_runs"
TITLE = "Cost of runs"
HEADS = ["task", "optimiser", "device", "runs", "GPU-seconds/run", "GPU-seconds, total", "kJ/run", "paper, time/run"]

NOTES = (
    "GPU-seconds: wall-clock time multiplied by the number of GPUs, including evaluation and compilation. A run that "
    "shared its GPU counts in full, so that concurrent runs take less time than their sum. The mean is over finished "
    "runs, the total over all logged runs. kJ: energy of the whole card as measured by the driver, the mean over runs "
    "that had the card to themselves (n of them); unknown if none did. The links are learning rate/seed of each run. "
    "Expected hours are estimated from runs that had their GPU to themselves, or shared it as the lanes of a sweep do: "
    "one GPU-bound run at a time, with CPU-bound runs next to it. If there are only others, the shortest gives an "
    "upper bound. The paper's times are those of its Appendix A for one run, the same for every optimiser."
)


@dataclass(frozen=True)
class Cost:
    """Runs of one task with one optimiser on one kind of device."""

    task: str
    optim: str
    device: str
    runs: Sequence[Summary]

    @property
    def done(self) -> list[Summary]:
        return [run for run in self.runs if run["status"] == Status.DONE]

    @property
    def per_run(self) -> float | None:
        """Mean GPU-seconds of the finished runs; None if there are none, and on a CPU."""
        return _mean([gpu_seconds(run) for run in self.done])

    @property
    def energies(self) -> list[float]:
        """Joules of each finished run that had the card to itself."""
        return [joules for run in self.done if (joules := own_joules(run)) is not None]

    @property
    def hours(self) -> paper.Hours | None:
        return paper.HOURS.get(self.task)


def costs(states: Iterable[CellState], findings: Iterable[Text] = ()) -> Printed:
    """A line per task, optimiser and device, over every logged run of the experiments; each run counts once."""
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
    """One sentence: hours logged per device, and hours still expected on the device of most runs."""
    runs = _runs(states)
    totals = {device: _total(own) for device, own in _by(runs, "device").items()}
    logged = [f"{hours(total)} on {device}" for device, total in totals.items() if total is not None]
    to_go = len(pending(states)) + sum(state.to_follow for state in states)
    text = f": {len(runs)} of {len(runs) + to_go} runs logged"
    text += f", GPU-hours: {', '.join(logged)}" if logged else ""
    device = timed_on(summaries, "")
    left = expected(states, summaries, device) if device else None
    if any(state.pending for state in states):
        text += f"; {_expected_text(left)}" if left and left.seconds else "; hours still expected: unknown"
    return Text(f"{text}.", code=experiment.name)


def _expected_text(left: Expected) -> str:
    text = f"hours still expected on {left.device}: {'at most ' if left.bounds else ''}{hours(left.seconds)}"
    if left.gpu and left.cpu:
        text += f", {hours(left.gpu)} of GPU-bound runs with {hours(left.cpu)} of CPU-bound runs next to them"
    return text + (f", and {left.unknown} runs of unknown length" if left.unknown else "")


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def costs_of_runs(states: Iterable[CellState]) -> tuple[Mapping[str, str], ...]:
    """One record per run."""
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
            "processes_on_gpu": exact(run.get("gpu_processes")),
        }
        for run in _runs(states)
    )


def gpus(run: Summary) -> int:
    """Number of GPUs of a run, from the name of its device, such as "4 x NVIDIA H200"; 0 on a CPU."""
    device = str(run.get("device") or "")
    many = re.match(r"(\d+) x ", device)
    return 0 if "CPU" in device.upper() else int(many[1]) if many else 1


def gpu_seconds(run: Summary) -> float | None:
    """None for a run on a CPU."""
    return run["seconds"] * gpus(run) if gpus(run) else None


def own_joules(run: Summary) -> float | None:
    """Energy of the card if no other process used it during the run; None if unknown."""
    return run.get("joules") if run.get("gpu_processes") == 1 else None


def _runs(states: Iterable[CellState]) -> list[Summary]:
    return list({run_id: run for state in states for run_id, run in state.logged.items()}.values())


def _by(runs: Iterable[Summary], key: str) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for run in runs:
        found.setdefault(str(run.get(key)), []).append(run)
    return found


def _total(runs: Iterable[Summary]) -> float | None:
    """GPU-seconds; None if all runs were on a CPU."""
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
        Text(_rounded(cost.per_run)),
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
        "runs_done": str(len(cost.done)),
        "gpu_seconds_of_a_run": exact(cost.per_run),
        "gpu_seconds_of_all": exact(_total(cost.runs)),
        "joules_of_a_run": exact(_mean(cost.energies)),
        "runs_with_energy": str(len(cost.energies)),
        "paper_gpu_hours_of_a_run": exact(cost.hours.gpu_hours if cost.hours else None),
        "paper_device": cost.hours.device if cost.hours else "",
    }


def _rounded(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.0f}"
