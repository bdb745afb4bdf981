"""Stores of synthetic runs for tests of the report: the ids and files of real runs, with values that a test chooses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from nero.plans import plan
from nero.plans.plan import Cell, CellState, Experiment, PlannedRun, load_experiment, survey
from nero.report.evidence import Evidence
from nero.runs.store import RunDirectory, Store

ACCURACY = {"key": "train/accuracy", "goal": "max", "label": "training accuracy"}
ERROR = {"key": "val/error", "goal": "min", "label": "top-1 error"}
PERPLEXITY = {"key": "val/perplexity", "goal": "min", "label": "perplexity"}
REWARD = {"key": "train/reward_100", "goal": "max", "label": "reward"}
FID = {"key": "val/fid_released", "goal": "min", "label": "FID"}
STAND_IN_FID = {"key": "val/stand_in_fid", "goal": "min", "label": "stand-in FID"}
NOT_LOGGED: Any = object()  # used as a value: the log line of that epoch lacks the key
STEPS = 4  # per epoch
PLAYED = 1024  # environment steps per epoch of the PPO task

Final = Callable[[Cell, float, int], float | None]
"""A run's final value, or None for one that diverged in its second epoch."""


class RememberingCell(Cell):
    """A cell that caches its runs: composing configs would otherwise take most of the time of these tests."""

    @cache  # noqa: B019 - the cells live as long as the tests
    def run(self, lr: float, seed: int) -> PlannedRun:
        return super().run(lr, seed)


@cache
def loaded(name: str) -> Experiment:
    experiment = load_experiment(name)
    cells = tuple(RememberingCell(**{f.name: getattr(cell, f.name) for f in fields(cell)}) for cell in experiment.cells)
    return replace(experiment, cells=cells)


def cells_of(name: str) -> dict[str, Cell]:
    """An experiment's cells by "task optim variant label", such as "mnist_reparam adam 100"."""
    return {
        " ".join(filter(None, [cell.task, cell.optim, *(str(value) for _, value in cell.variant), cell.label])): cell
        for cell in loaded(name).cells
    }


def without_task(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Hide a task, as if configs/task had no YAML file for it."""
    has_config = plan.has_config
    monkeypatch.setattr(plan, "has_config", lambda group, name: name != task and has_config(group, name))


def write_run(
    store: Store,
    cell: Cell,
    lr: float,
    seed: int,
    final: float | None,
    *,
    curve: Sequence[float | None] | None = None,
    status: str | None = None,
    data: str = "real",
    metric: dict[str, str] = ACCURACY,
    also: Mapping[str, Sequence[float | None]] | None = None,
    epochs: Sequence[int] | None = None,
) -> RunDirectory:
    """Write one run. `curve` has a value per epoch (default: three that end at `final`), constant in each trace.

    `also` maps further keys to values; `epochs` has the logged epochs, by default all. Both are as long as `curve`.
    """
    planned = cell.run(lr, seed)
    run = store.run(planned.task, planned.run_id)
    values = list(curve) if curve is not None else [0.1] if final is None else [final / 3, final / 2, final]
    logged = list(epochs) if epochs is not None else list(range(1, len(values) + 1))
    with run.exclusive():
        run.write_config({"task_name": cell.task, "optim_name": cell.optim, "seed": seed, "data": data})
        for place, (epoch, value) in enumerate(zip(logged, values, strict=True)):
            record = {"epoch": epoch, "step": epoch * STEPS, "seconds": 0.5, "lr": lr, metric["key"]: value}
            record |= {key: further[place] for key, further in (also or {}).items()}
            record |= {"trace": {metric["key"]: [value] * STEPS}} if value is not NOT_LOGGED else {}
            run.append_metrics({key: value for key, value in record.items() if value is not NOT_LOGGED})
        run.write_summary(
            {
                "version": 1,
                "run_id": planned.run_id,
                "task": cell.task,
                "optim": cell.optim,
                "lr": lr,
                "seed": seed,
                "data": data,
                "status": status or ("diverged" if final is None else "done"),
                "metric": metric,
                "final": final,
                "final_metrics": {**{key: further[-1] for key, further in (also or {}).items()}, metric["key"]: final},
                "epochs": logged[-1],
                "epochs_done": logged[-1],
                "seconds": 1.5,
                "diverged_at": {"epoch": 2, "step": STEPS + 1} if final is None else None,
                "traceback": None,
                "device": "cpu",
                "parameters": 1000,
            }
        )
    return run


def write_classifier(
    store: Store,
    cell: Cell,
    lr: float,
    seed: int,
    final: float | None,
    curve: Sequence[float] | None = None,
    **others: Any,
) -> RunDirectory:
    """Write a run of an image classifier: `curve` is its validation error; its training error is a fifth of that."""
    values = list(curve) if curve is not None else [0.9] if final is None else [0.9, 2 * final, final]
    training = {"train/error": [value / 5 for value in values]}
    return write_run(store, cell, lr, seed, final, curve=values, metric=ERROR, also=training, **others)


def write_language_model(
    store: Store,
    cell: Cell,
    lr: float,
    seed: int,
    final: float | None,
    curve: Sequence[float | None] | None = None,
    **others: Any,
) -> RunDirectory:
    """Write a run of a language task: `curve` is its validation perplexity; its training perplexity is twice that.

    None marks an epoch whose perplexity was not finite.
    """
    values = list(curve) if curve is not None else [1000.0] if final is None else [8 * final, 2 * final, final]
    training = {"train/perplexity": [None if value is None else 2 * value for value in values]}
    return write_run(store, cell, lr, seed, final, curve=values, metric=PERPLEXITY, also=training, **others)


def write_player(
    store: Store,
    cell: Cell,
    lr: float,
    seed: int,
    final: float | None,
    curve: Mapping[int, float | None] | None = None,
    **others: Any,
) -> RunDirectory:
    """Write a run of Pong: `curve` maps the few logged epochs to rewards; None means that no game has finished."""
    by_epoch = curve if curve is not None else {10: -20.5} if final is None else {10: -20.5, 2440: 0.0, 4882: final}
    played = {"train/environment_steps": [float(epoch * PLAYED) for epoch in by_epoch]}
    values, epochs = list(by_epoch.values()), list(by_epoch)
    return write_run(store, cell, lr, seed, final, curve=values, epochs=epochs, metric=REWARD, also=played, **others)


def write_generator(
    store: Store,
    cell: Cell,
    lr: float,
    seed: int,
    final: float | None,
    curve: Mapping[int, float | None] | None = None,
    metric: dict[str, str] = FID,
    **others: Any,
) -> RunDirectory:
    """Write a run of a GAN: `curve` maps epochs to FID, or None if not finite; the FID to training images is two less.

    If the metric is FID as released, the plain FID is also logged and is one more.
    Each of these epochs is preceded by one without an FID, since most epochs do not measure it.
    """
    by_epoch = (
        curve if curve is not None else {10: 300.0} if final is None else {10: 9 * final, 60: 2 * final, 120: final}
    )
    epochs = sorted({near for epoch in by_epoch for near in (epoch - 1, epoch) if near})
    values = [by_epoch.get(epoch, NOT_LOGGED) for epoch in epochs]
    training = [value - 2 if isinstance(value, float) else value for value in values]
    also = {"train/g_loss": [0.5] * len(epochs), metric["key"].replace("val/", "train/"): training}
    if metric == FID:
        also["val/fid"] = [value + 1 if isinstance(value, float) else value for value in values]
    return write_run(store, cell, lr, seed, final, curve=values, epochs=epochs, metric=metric, also=also, **others)


def fill_cell(store: Store, cell: Cell, final: Final, data: str = "real") -> None:
    """Write all runs of the search and the repeats at its best learning rate."""
    while pending := survey(cell, store.summaries()).pending:
        for run in pending:
            write_run(store, cell, run.lr, run.seed, final(cell, run.lr, run.seed), data=data)


def fill(store: Store, name: str, final: Final, data: str = "real") -> None:
    for cell in loaded(name).cells:
        fill_cell(store, cell, final, data)


def states_of(store: Store, name: str = "mnist") -> tuple[Experiment, list[CellState]]:
    summaries = store.summaries()
    return loaded(name), [survey(cell, summaries) for cell in loaded(name).cells]


def evidence_of(store: Store, name: str = "mnist", states: Sequence[CellState] | None = None) -> Evidence:
    """The evidence of an experiment; `states` replaces the states of its cells."""
    experiment, found = states_of(store, name)
    return Evidence(experiment, tuple(found if states is None else states), store.summaries(), store)


def in_words(cell: Cell) -> str:
    """The name of a cell of the ablation, such as "nero 1 0" (mean, norm) or "madam_constrained"."""
    return " ".join([cell.optim, *(str(int(value)) for _, value in cell.variant)])


BASE = {"nero": 0.9, "lamb": 0.6, "adam": 0.5, "sgd": 0.4}


def plausible(cell: Cell, lr: float, seed: int) -> float:
    """A final value that is best at lr = 0.001, ranks optimisers as in BASE and varies slightly with the seed."""
    return BASE[cell.optim] - (0.0 if lr == 0.001 else 0.1) + 0.01 * seed**2
