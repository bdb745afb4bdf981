"""Stores of made-up runs for the report's tests: the ids and files of real ones, with numbers that a test chooses."""

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
NOT_LOGGED: Any = object()  # in place of a value: the line of that epoch has no such key
STEPS = 4  # per epoch
PLAYED = 1024  # steps of environments per epoch of a task that plays

Final = Callable[[Cell, float, int], float | None]
"""A run's final value, or None for one that diverged in its second epoch."""


class RememberingCell(Cell):
    """A cell that works out each id once: composing configs is most of what these tests would otherwise wait for."""

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
    """As if configs/task had no YAML of it yet."""
    names = plan.names
    monkeypatch.setattr(plan, "names", lambda group: [name for name in names(group) if name != task])


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
    """One run. `curve` has a value per epoch, by default three that end at `final`; its traces are flat in each.

    `also` has further keys, as long as `curve`; so are `epochs`, where not every epoch has a line in the log.
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
    """A run of a CIFAR-10 classifier: `curve` is its validation error, and its training error is a fifth of that."""
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
    """A run on text: `curve` is its validation perplexity, and its training perplexity is twice that.

    None in it is an epoch whose perplexity was not finite.
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
    """A run that plays Pong: `curve` has rewards by epoch, of which few are logged; None is one without a game over."""
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
    """A run of a GAN: `curve` has its FID by epoch, from the training images it is two less; None was not finite.

    Beside an FID as released there is a plain one, which is one more.
    Before each of these epochs there is one without an FID, as nearly all are.
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
    """The whole search, and the repeats at its best learning rate."""
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
    """The evidence of an experiment, or of other cells in its place."""
    experiment, found = states_of(store, name)
    return Evidence(experiment, tuple(found if states is None else states), store.summaries(), store)


def in_words(cell: Cell) -> str:
    """A cell of the ablation, such as "nero 1 0" (mean, norm) or "madam_constrained"."""
    return " ".join([cell.optim, *(str(int(value)) for _, value in cell.variant)])


BASE = {"nero": 0.9, "lamb": 0.6, "adam": 0.5, "sgd": 0.4}


def plausible(cell: Cell, lr: float, seed: int) -> float:
    """Best at 0.001 for every optimiser, the better the earlier in BASE; seeds differ a little."""
    return BASE[cell.optim] - (0.0 if lr == 0.001 else 0.1) + 0.01 * seed**2
