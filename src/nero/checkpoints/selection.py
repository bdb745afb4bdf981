"""Which runs of an experiment are to be measured: those at each cell's leading learning rate."""

from collections.abc import Collection

from nero.plans.config import RunConfig, compose
from nero.plans.plan import Experiment, PlannedRun, survey
from nero.runs.store import Store


def leading_runs(experiment: Experiment, store: Store) -> list[PlannedRun]:
    """Settled runs at the learning rate that leads their cell, of every seed that is there; each once."""
    found: dict[str, PlannedRun] = {}
    summaries = store.summaries()
    for cell in experiment.cells:
        state = survey(cell, summaries)
        if state.leading_lr is None:
            continue
        for seed, summary in state.at_leading.items():
            if summary is not None:
                found.setdefault(summary["run_id"], cell.run(state.leading_lr, seed))
    return list(found.values())


def trainings(experiment: Experiment, store: Store, tasks: Collection[str], words: list[str]) -> list[RunConfig]:
    """Configs of those with the search's seed, of some tasks, in full float32 and with further settings."""
    searched = {cell.search_seed for cell in experiment.cells}
    runs = [run for run in leading_runs(experiment, store) if run.task in tasks and run.seed in searched]
    return [compose([*run.overrides, "precision=fp32", *words]) for run in runs]
