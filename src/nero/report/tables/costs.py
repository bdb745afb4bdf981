"""Cost of runs: GPU-seconds, energy where it was measured, and how long the paper's runs took."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from nero.plans.expected import expected, timed_on
from nero.plans.plan import CellState, Experiment, Summary, pending
from nero.report import display, paper
from nero.report.cells import has_diverged
from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, RunLink, Sheet, Text, exact
from nero.report.units import rate
from nero.runs.store import Status

HEADS = ["task", "optimiser", "device", "runs", "GPU-seconds/run", "GPU-seconds, total", "kJ/run", "paper, time/run"]

NOTES = (
    "GPU-seconds: wall-clock time multiplied by the number of GPUs, including evaluation and compilation. A run that "
    "shared its GPU counts in full, so that concurrent runs take less time than their sum. The mean is over finished "
    "runs, the total over all logged runs. kJ: energy of the whole card as measured by the driver, the mean over runs "
    "that had the card to themselves (n of them); unknown if none did. The links are learning rate/seed of each run. "
    "Expected hours are estimated from runs that had their GPU to themselves, or shared it as the lanes of a sweep do: "
    "one GPU-bound run at a time, with CPU-bound runs next to it. If there are only others, the shortest gives an "
    "upper bound; from runs of other experiments the estimate is rough. The paper's times are those of its Appendix A "
    "for one run, the same for every optimiser."
)


def costs(states: Iterable[CellState], findings: Iterable[Text] = ()) -> Printed:
    """A line per task, optimiser and device, over every logged run of the experiments; each run counts once."""
    blocks: list[list[Line]] = []
    records: list[Mapping[str, str]] = []
    for task, runs in _by(_runs(states), "task").items():
        lines: list[Line] = []
        by_optim = _by(runs, "optim")
        for optim in style.in_order(by_optim):
            for device, of_device in _by(by_optim[optim], "device").items():
                line, record = _cost(task, optim, device, of_device)
                lines.append([Text("" if lines else display.task_name(task)), *line])
                records.append(record)
        total = _known(map(gpu_seconds, runs))
        if len(lines) > 1 and total:
            lines.append([Text(word) for word in ("", "all", "", str(len(runs)), "", f"{sum(total):,.0f}", "", "")])
        blocks.append(lines)
    sheet = Sheet(HEADS, blocks, 3)
    return Printed("costs", "Cost of runs", sheet, NOTES, tuple(records), findings=tuple(findings))


def _cost(task: str, optim: str, device: str, runs: Sequence[Summary]) -> tuple[Line, Mapping[str, str]]:
    """The line of the table after the task, and that of the CSV: runs of one task and optimiser on one device."""
    done = [run for run in runs if run["status"] == Status.DONE]
    seconds, energies = _known(map(gpu_seconds, runs)), _known(map(own_joules, done))
    of_done = _known(map(gpu_seconds, done))
    per_run = statistics.fmean(of_done) if of_done else None
    joules = statistics.fmean(energies) if energies else None
    hours = paper.HOURS.get(task)
    line = [
        Text(style.name(optim)),
        Text(device),
        Text(str(len(runs)), runs=tuple(RunLink.to(run, f"{rate(run['lr'])}/{run['seed']}") for run in runs)),
        Text("" if per_run is None else f"{per_run:,.0f}"),
        Text(f"{sum(seconds):,.0f}" if seconds else ""),
        Text("unknown") if joules is None else Text(f"{joules / 1e3:.1f}", f"n = {len(energies)}"),
        Text(str(hours or "")),
    ]
    return line, {
        "task": task,
        "optim": optim,
        "device": device,
        "runs": str(len(runs)),
        "runs_done": str(len(done)),
        "gpu_seconds_of_a_run": exact(per_run),
        "gpu_seconds_of_all": exact(sum(seconds) if seconds else None),
        "joules_of_a_run": exact(joules),
        "runs_with_energy": str(len(energies)),
        "paper_gpu_hours_of_a_run": exact(hours.gpu_hours if hours else None),
        "paper_device": hours.device if hours else "",
    }


def cost_of_experiment(experiment: Experiment, states: Sequence[CellState], summaries: Mapping[str, Summary]) -> Text:
    """One sentence: hours logged per device, and hours still expected on the device of most runs."""
    runs = _runs(states)
    totals = {device: _known(map(gpu_seconds, own)) for device, own in _by(runs, "device").items()}
    logged = [f"{hours(sum(total))} on {device}" for device, total in totals.items() if total]
    text = f": {progress(states)} runs logged"
    text += f", GPU-hours: {', '.join(logged)}" if logged else ""
    if any(state.pending for state in states):
        text += "; hours still expected"
        device = timed_on(summaries, "")
        left = expected(states, summaries, device) if device else None
        if left and left.seconds:
            text += f" on {left.device}: {left.qualifier}{hours(left.seconds)}"
            if left.gpu and left.cpu:
                text += f", {hours(left.gpu)} of GPU-bound runs with {hours(left.cpu)} of CPU-bound runs next to them"
            text += f", and {left.unknown} runs of unknown length" if left.unknown else ""
        else:
            text += ": unknown"
    return Text(f"{text}.", code=experiment.name)


def progress(states: Sequence[CellState]) -> str:
    """How many runs are logged, such as "3 of 32"; an unfinished search may still add repeats at another rate."""
    logged = len(_runs(states))
    return f"{logged} of {logged + len(pending(states)) + sum(state.to_follow for state in states)}"


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}"


def costs_of_runs(states: Iterable[CellState]) -> tuple[Mapping[str, str], ...]:
    """One record per run."""
    return tuple(
        {
            "run": run["run_id"],
            **{key: str(run.get(key)) for key in ("task", "optim")},
            "lr": exact(run.get("lr")),
            "seed": str(run.get("seed")),
            "status": str(Status.DIVERGED if has_diverged(run) else run["status"]),
            **{key: str(run.get(key)) for key in ("device", "epochs_done")},
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


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _runs(states: Iterable[CellState]) -> list[Summary]:
    return list({run_id: run for state in states for run_id, run in state.logged.items()}.values())


def _by(runs: Iterable[Summary], key: str) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for run in runs:
        found.setdefault(str(run.get(key)), []).append(run)
    return found
