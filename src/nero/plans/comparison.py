"""The experiment that puts an optimiser beside others, with the protocol and logged runs of the shipped experiments."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import yaml

from nero.plans.plan import EXPERIMENTS, Cell, load_experiment

BASELINES = ("nero", "sgd", "adam", "lamb")
TABLE = "table1"
FIRST = (TABLE, "mnist")  # which experiments' settings count where several have a task
EMBEDDED = "data=embedded"
EMBEDDED_GRID, EMBEDDED_REPEATS = (0.001, 0.01, 0.1), (1,)


def cells_on(task: str, own: str, baselines: Sequence[str], lrs: Sequence[float] | None) -> list[Cell]:
    """The cells of one task, the user's own optimiser first.

    A baseline has its cell of a shipped experiment, so that logged runs count. The own optimiser, and a baseline that
    no experiment has, get what most of these cells have.

    Args:
        lrs: the grid of the own optimiser (default: that of the others)
    """
    known = shipped_cells(task)
    usual = [known[name] for name in baselines if name in known] or list(known.values())
    usual = usual or list(load_experiment(TABLE).cells)
    common = Cell(
        task,
        own,
        lrs=_most_common(cell.lrs for cell in usual),
        search_seed=_most_common(cell.search_seed for cell in usual),
        repeat_seeds=_most_common(cell.repeat_seeds for cell in usual),
        overrides=_most_common(cell.overrides for cell in usual) if known else (),
    )
    others = [known.get(name) or replace(common, optim=name) for name in baselines if name != own]
    cell = known.get(own) or common
    return [replace(cell, lrs=tuple(lrs)) if lrs else cell, *others]


def embedded_cells_on(task: str, own: str, baselines: Sequence[str], lrs: Sequence[float] | None) -> list[Cell]:
    """Likewise, small, on embedded data."""
    grids = dict.fromkeys((own, *baselines), EMBEDDED_GRID) | ({own: tuple(lrs)} if lrs else {})
    sizes = small_sizes(task) or (EMBEDDED,)
    return [Cell(task, name, grid, 0, EMBEDDED_REPEATS, overrides=sizes) for name, grid in grids.items()]


def small_sizes(task: str) -> tuple[str, ...]:
    """The overrides with which experiments/smoke.yaml trains a task within seconds; () if it does not have the task."""
    return next((cell.overrides for cell in load_experiment("smoke").cells if cell.task == task), ())


def shipped_cells(task: str) -> dict[str, Cell]:
    """By optimiser, its cell of this task in a shipped experiment: on real data, and neither a variant nor a check."""
    found: dict[str, Cell] = {}
    for name in dict.fromkeys((*FIRST, *sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))):
        for cell in load_experiment(name).cells:
            if cell.task == task and not cell.variant and not cell.label and EMBEDDED not in cell.overrides:
                found.setdefault(cell.optim, cell)
    return found


def as_yaml(title: str, cells: Iterable[Cell]) -> str:
    """The file of an experiment with these cells, consecutive ones with the same settings in one row."""
    rows = [
        {
            "task": cell.task,
            "optim": [cell.optim, *(other.optim for other in others)],
            "lr": list(cell.lrs),
            "overrides": list(cell.overrides),
            "search_seed": cell.search_seed,
            "repeat_seeds": list(cell.repeat_seeds),
        }
        for _, (cell, *others) in groupby(cells, key=lambda cell: replace(cell, optim=""))
    ]
    return yaml.safe_dump({"title": title, "rows": rows}, sort_keys=False, default_flow_style=None, width=110)


def _most_common(values: Iterable[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]
