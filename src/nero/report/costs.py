"""What runs took: seconds of a GPU, energy where it was counted, and how long the paper's runs took."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from nero.plans.plan import CellState, Summary
from nero.report import paper, style
from nero.report.sheets import Line, Printed, RunLink, Sheet, Text
from nero.report.table_formats import exact

NAME, RUNS_NAME = "costs", "costs_of_runs"
TITLE = "What runs took"
HEADS = ["task", "optimiser", "device", "runs", "GPU-seconds, a run", "GPU-seconds, all", "kJ, a run", "paper, a run"]

NOTES = (
    "GPU-seconds: of wall clock, times the GPUs that a run had, evaluation and compilation included; a run that "
    "shared its GPU has all of its seconds counted, so that several side by side take less than the sum. The mean "
    "is over runs that came to their end, the sum over all that are logged. kJ: what the driver counted of the "
    "whole card, the mean over runs that had it for themselves (how many, in brackets); unknown where none did. In "
    "brackets after the runs: learning rate/seed of each. The paper's times are what its Appendix A tells of a run, "
    "of any optimiser."
)


def costs(states: Iterable[CellState]) -> Printed:
    """A line per task, optimiser and device, over every logged run that an experiment asks for, each run once."""
    blocks, records = [], []
    for task, runs in _by(_runs(states), "task").items():
        block: list[Line] = []
        by_optim = _by(runs, "optim")
        for optim in style.in_order(by_optim):
            for device, of_device in _by(by_optim[optim], "device").items():
                record = _record(task, optim, device, of_device)
                records.append(record)
                block.append([Text("", code="" if block else task), *_line(record, of_device)])
        total = sum(seconds for run in runs if (seconds := gpu_seconds(run)) is not None)
        if len(block) > 1 and total:
            named = ["", "all", "", str(len(runs)), "", _whole(total), "", ""]
            block.append([Text(word) for word in named])
        blocks.append(block)
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 3), NOTES, tuple(records))


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
            "processes_on_gpu": str(run.get("gpu_processes") or ""),
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


def _record(task: str, optim: str, device: str, runs: Sequence[Summary]) -> dict[str, str]:
    ended = [run for run in runs if run["status"] == "done"]
    each = [seconds for run in ended if (seconds := gpu_seconds(run)) is not None]
    every = [seconds for run in runs if (seconds := gpu_seconds(run)) is not None]
    energies = [joules for run in ended if (joules := own_joules(run)) is not None]
    hours = paper.HOURS.get(task)
    return {
        "task": task,
        "optim": optim,
        "device": device,
        "runs": str(len(runs)),
        "runs_done": str(len(ended)),
        "gpu_seconds_of_a_run": exact(statistics.fmean(each) if each else None),
        "gpu_seconds_of_all": exact(sum(every) if every else None),
        "joules_of_a_run": exact(statistics.fmean(energies) if energies else None),
        "runs_with_energy": str(len(energies)),
        "paper_gpu_hours_of_a_run": exact(hours.gpu_hours if hours else None),
        "paper_device": hours.device if hours else "",
    }


def _line(record: Mapping[str, str], runs: Sequence[Summary]) -> Line:
    links = tuple(RunLink(f"{run['lr']:g}/{run['seed']}", run["task"], run["run_id"]) for run in runs)
    energy = record["joules_of_a_run"]
    hours = paper.HOURS.get(record["task"])
    return [
        Text(style.name(record["optim"])),
        Text(record["device"]),
        Text(record["runs"], runs=links),
        Text(_whole(record["gpu_seconds_of_a_run"])),
        Text(_whole(record["gpu_seconds_of_all"])),
        Text(f"{float(energy) / 1e3:.1f}", f"n = {record['runs_with_energy']}") if energy else Text("unknown"),
        Text(str(hours) if hours else ""),
    ]


def _whole(value: str | float) -> str:
    return "" if value == "" else f"{float(value):,.0f}"
