"""What the logged runs of one cell say, before any formatting: how it stands, its final values, what is missing."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from nero.plans.plan import Cell, CellState, Summary
from nero.report.units import rate
from nero.runs.store import Status

Variant = tuple[tuple[str, Any], ...]
Key = TypeVar("Key", bound=Hashable)
BESIDE = "not to be set beside the paper's numbers"


class EmbeddedDataError(ValueError):
    """Runs on embedded data were about to stand beside the paper's numbers."""


class RowKey(NamedTuple):
    """What tells the rows of a table apart."""

    task: str
    variant: Variant = ()
    label: str = ""

    @classmethod
    def of(cls, cell: Cell) -> "RowKey":
        return cls(cell.task, cell.variant, cell.label)


class CellKey(NamedTuple):
    """What tells the cells of an experiment apart."""

    row: RowKey  # its settings in order of their names
    optim: str

    @classmethod
    def of(cls, cell: Cell) -> "CellKey":
        return cls(RowKey(cell.task, ordered(cell.variant), cell.label), cell.optim)


class Standing(StrEnum):
    """How a cell stands."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    DIVERGED = "diverged"  # all runs settled, and every learning rate or some seed of the best one diverged
    MISSING = "missing"


@dataclass(frozen=True)
class CellResult:
    """A cell's final values at its leading learning rate, in the unit of the log."""

    state: CellState
    standing: Standing
    lr: float | None  # best of what has been searched so far; None where nothing has a finite result
    runs: tuple[Summary, ...]  # the settled runs at that learning rate, by seed

    @property
    def settled(self) -> bool:
        """No further run can change what the cell says."""
        return self.standing in (Standing.COMPLETE, Standing.DIVERGED)

    @property
    def finals(self) -> list[float]:
        """Of the runs that ended with a finite value."""
        return [float(run["final"]) for run in self.runs if not has_diverged(run)]

    @property
    def diverged(self) -> int:
        return len(self.runs) - len(self.finals)


def read_cell(state: CellState) -> CellResult:
    """Sum up a cell. While a search goes on, the rate that leads it stands for the cell, with all its logged seeds."""
    runs = tuple(run for run in state.at_leading.values() if run is not None)
    return CellResult(state, _standing(state, runs), state.leading_lr, runs)


def _standing(state: CellState, runs: tuple[Summary, ...]) -> Standing:
    if not state.logged:
        return Standing.MISSING
    if not state.complete:
        return Standing.INCOMPLETE
    return Standing.DIVERGED if not runs or any(has_diverged(run) for run in runs) else Standing.COMPLETE


def has_diverged(run: Summary) -> bool:
    """A run that ended without a finite value of its metric is no better than one that was stopped at a NaN."""
    return run["status"] == Status.DIVERGED or run["final"] is None


def rows(states: Iterable[CellState]) -> dict[RowKey, list[CellState]]:
    """Cells by task, variant and label, in the experiment's order: the rows of its table, the panels of its figure."""
    found: dict[RowKey, list[CellState]] = {}
    worded: dict[RowKey, RowKey] = {}  # a row's settings, however they are ordered, as its first cell has them
    for state in states:
        key = worded.setdefault(CellKey.of(state.cell).row, RowKey.of(state.cell))
        row = found.setdefault(key, [])
        if any(other.cell.optim == state.cell.optim for other in row):
            what = "say what differs under `sweep` or in a `label`"
            raise ValueError(f"{row_text(key)} has {state.cell.optim} twice: {what}")
        row.append(state)
    return found


def one_each(states: Iterable[CellState], what: Callable[[Cell], Key]) -> dict[Key, CellState]:
    """Cells by what tells them apart in one panel; two that it does not tell apart raise."""
    found: dict[Key, CellState] = {}
    for state in states:
        key = what(state.cell)
        if key in found:
            both = [row_text(RowKey.of(s.cell)) for s in (found[key], state)]
            raise ValueError(f"a panel has {state.cell.optim} twice: {both[0]}, and {both[1]}")
        found[key] = state
    return found


def ordered(variant: Variant) -> Variant:
    """The same for the same settings, in whatever order they are swept."""
    return tuple(sorted(variant, key=lambda setting: setting[0]))


def variant_text(variant: Variant) -> str:
    """Swept settings in words, such as "sigma = 100"."""
    return ", ".join(f"{_short(key)} = {value}" for key, value in variant)


def _short(key: str) -> str:
    """The last part of a key; with the network's name before it where it is a setting of one network's optimiser."""
    return key.partition(".networks.")[2] or key.rsplit(".", 1)[-1]


def row_text(row: RowKey) -> str:
    """Such as "mnist_reparam, sigma = 100"."""
    return row.task + row_detail(row)


def row_detail(row: RowKey) -> str:
    """What follows the task in a row's name: its label and its swept settings."""
    return "".join(f", {words}" for words in (row.label, variant_text(row.variant)) if words)


def labelled(name: str, cell: Cell) -> str:
    """A name of a cell, with the label of its row where it has one."""
    return f"{name}, {cell.label}" if cell.label else name


def searched_text(state: CellState) -> str | None:
    """How much of an incomplete search is logged, such as "1 of 5 rates"; None for a complete one."""
    if not state.searching or state.cell.to_come:
        return None
    return f"{searched(state)} of {len(state.search)} rates"


def searched(state: CellState) -> int:
    """Learning rates with a settled run of the search seed."""
    return sum(run is not None for run in state.search.values())


def missing_text(state: CellState) -> str | None:
    """What a cell lacks apart from its search: a config, or seeds at the leading rate. None where nothing."""
    if state.cell.to_come or state.searching:
        return state.cell.to_come
    return seeds_text(seed for seed, run in state.at_leading.items() if run is None)


def gap(state: CellState) -> str | None:
    """What a cell lacks, in words, or None."""
    if rates := searched_text(state):
        return f"search incomplete: {rates}"
    lacking = missing_text(state)
    return lacking if lacking is None or state.cell.to_come else f"{lacking} missing"


def divergence(state: CellState) -> str | None:
    """Which runs at the leading learning rate diverged, in words, or None."""
    if not state.at_leading:
        return "every learning rate" if state.diverged else None
    return seeds_text(seed for seed, run in state.at_leading.items() if run is not None and has_diverged(run))


def absence_text(state: CellState) -> str:
    """Why there is nothing to show of a cell."""
    said = divergence(state)
    return f"{said} diverged" if said else "missing"


def leading_text(state: CellState) -> str:
    """The leading learning rate and what the cell lacks, or why no rate leads."""
    if state.leading_lr is None:
        return absence_text(state)
    lacking = gap(state)
    return rate(state.leading_lr) + (f" ({lacking})" if lacking else "")


def seeds_text(seeds: Iterable[int]) -> str | None:
    listed = [str(seed) for seed in seeds]
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(listed)}" if listed else None


def is_embedded(cell: Cell) -> bool:
    return bool(cell.setting("data") == "embedded")


def precision(cell: Cell) -> str | None:
    """The arithmetic of the cell's runs; None while its task or optimiser is to come."""
    return None if cell.to_come else str(cell.setting("precision"))


def usual_precision(cells: Iterable[Cell]) -> str | None:
    """The arithmetic of more than half of the cells whose arithmetic is known; None where there is no such majority."""
    counts = Counter(known for cell in cells if (known := precision(cell)) is not None)
    most = counts.most_common(1)
    return most[0][0] if most and 2 * most[0][1] > counts.total() else None


def require_real(states: Iterable[CellState]) -> None:
    """Raise unless every cell and every run of it is on the paper's data. The guard of all that shows paper numbers."""
    for state in states:
        if is_embedded(state.cell):
            raise EmbeddedDataError(f"{state.cell.task} with {state.cell.optim} asks for embedded data: {BESIDE}")
        for run in state.logged.values():
            if run.get("data") != "real":
                raise EmbeddedDataError(f"{run['run_id']} ran on {run.get('data')} data: {BESIDE}")
