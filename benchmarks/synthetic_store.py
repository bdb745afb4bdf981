"""A large store of synthetic runs of the experiments, with the files of real runs."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from nero.plans.plan import Cell, Experiment, PlannedRun, load_experiment
from nero.report import catalogue
from nero.report.paper import ERROR, FID, PERPLEXITY, REWARD
from nero.runs.provenance import provenance
from nero.runs.store import VERSION, Store

METRICS = {"cgan": FID, "transformer": PERPLEXITY, "ppo": REWARD}
"""The metric of a task with this in its name; otherwise an error."""


def experiment_of_runs(count: int) -> Experiment:
    """The cells of Table 1 with as many seeds as give `count` runs, or a few less."""
    cells = load_experiment("table1").cells
    seeds = max(1, count // len(cells) - len(cells[0].lrs))
    return Experiment(
        "bench", "Many runs", tuple(replace(cell, repeat_seeds=tuple(range(1, 1 + seeds))) for cell in cells)
    )


def write_experiment(path: Path, experiment: Experiment) -> None:
    """As a file of experiments/. Its cells have no swept settings."""
    rows = [
        {
            **{key: getattr(cell, key) for key in ("task", "optim", "search_seed", "label")},
            **{key: list(getattr(cell, key)) for key in ("repeat_seeds", "overrides")},
            "lr": list(cell.lrs),
        }
        for cell in experiment.cells
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": experiment.title, "rows": rows}))  # JSON is YAML


def write_store(store: Store, count: int, epochs: int) -> tuple[int, int]:
    """Write runs of the experiments in the catalogue, then further seeds; returns the numbers of runs and log lines."""
    planned: dict[str, tuple[Cell, PlannedRun]] = {}
    experiments = [load_experiment(name) for name in catalogue.CATALOGUE]
    asked = [cell for experiment in (experiment_of_runs(count), *experiments) for cell in experiment.cells]
    for cell in asked:
        best = cell.lrs[len(cell.lrs) // 2]
        for lr, seed in itertools.chain(((lr, 0) for lr in cell.lrs), ((best, seed) for seed in cell.repeat_seeds)):
            run = cell.run(lr, seed)
            planned.setdefault(run.run_id, (cell, run))
    chosen = list(planned.values())[:count]
    start = json.dumps(provenance("NVIDIA H200")) + "\n"
    for place, (cell, run) in enumerate(chosen):
        _write_run(store.run(run.task, run.run_id).path, cell, run, epochs, start, np.random.default_rng(place))
    return len(chosen), len(chosen) * epochs


def _write_run(
    folder: Path, cell: Cell, run: PlannedRun, epochs: int, start: str, numbers: np.random.Generator
) -> None:
    """Write the files of a run with decreasing curves. Without the store's own functions, whose fsync takes minutes."""
    metric = next((metric for part, metric in METRICS.items() if part in cell.task), ERROR)
    off = abs(math.log10(run.lr / cell.lrs[len(cell.lrs) // 2]))  # from the rate in the middle, which leads
    sign = 1 if metric["goal"] == "min" else -1
    level = (0.1 + 0.02 * off) * (1 + 0.01 * numbers.standard_normal())
    values = sign * level * (1 + 5 * np.exp(-np.arange(1, epochs + 1) / 20)) + 1e-3 * numbers.standard_normal(epochs)
    lines = [
        f'{{"epoch": {epoch}, "step": {391 * epoch}, "seconds": 0.3612, "lr": {run.lr}, "train/loss": {value}, '
        f'"{metric["key"].replace("val", "train")}": {value}, "{metric["key"]}": {value}}}\n'
        for epoch, value in enumerate(values.tolist(), start=1)
    ]
    final = float(values[-1])
    finals = {key: value for key, value in json.loads(lines[-1]).items() if "/" in key}
    summary = {
        "version": VERSION,
        "run_id": run.run_id,
        "task": run.task,
        "optim": run.optim,
        "lr": run.lr,
        "seed": run.seed,
        "data": "real",
        "epochs": epochs,
        "epochs_done": epochs,
        "device": "NVIDIA H200",
        "parameters": 9_000_000,
        "metric": metric,
        "final": final,
        "final_metrics": finals,
        "status": "done",
        "seconds": 80.0,
        "joules": None,
        "gpu_processes": None,
        "diverged_at": None,
        "traceback": None,
    }
    identity = cell.identity_at(run.lr, run.seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.dump(identity, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    (folder / "provenance.jsonl").write_text(start)
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2, sort_keys=True))
