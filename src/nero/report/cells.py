"""The logged runs of one table cell: its status, its final values, and what is missing."""

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
NOT_COMPARABLE = "not comparable with the paper's numbers"


class EmbeddedDataError(ValueError):
    """Runs on embedded data would be shown next to the paper's numbers."""


class RowKey(NamedTuple):
    """Identifies a row of a table."""

    task: str
    variant: Variant = ()
    label: str = ""

    @classmethod
    def of(cls, cell: Cell) -> "RowKey":
        return cls(cell.task, cell.variant, cell.label)


class CellKey(NamedTuple):
    """Identifies a cell of an experiment."""

    row: RowKey  # its settings sorted by name
    optim: str

    @classmethod
    def of(cls, cell: Cell) -> "CellKey":
        return cls(RowKey(cell.task, sorted_variant(cell.variant), cell.label), cell.optim)


class CellStatus(StrEnum):
    """The state of a table cell, and of its comparison with the paper: the only words for it in tables and CSV."""

    MISSING = "missing"  # no finished run
    INCOMPLETE = "incomplete"  # runs are missing; in a comparison, the one at the paper's learning rate
    DIVERGED = "diverged"  # a seed at the best learning rate, or every learning rate, has no finite result
    COMPLETE = "complete"  # every run finished with a finite result
    AGREES = "agrees"  # the interval of the difference from the paper's mean contains 0
    LOWER = "lower"
    HIGHER = "higher"

    @property
    def differs(self) -> bool:
        """There is a result, and it is not the paper's."""
        return self in (CellStatus.LOWER, CellStatus.HIGHER, CellStatus.DIVERGED)


@dataclass(frozen=True)
class CellResult:
    """A cell's final values at its leading learning rate, in the unit of the log."""

    state: CellState
    status: CellStatus
    lr: float | None  # best of the rates searched so far; None if none of them has a finite result
    runs: tuple[Summary, ...]  # the finished runs at that learning rate, by seed

    @property
    def complete(self) -> bool:
        """No run is missing."""
        return self.status in (CellStatus.COMPLETE, CellStatus.DIVERGED)

    @property
    def finals(self) -> list[float]:
        """Final values of the runs that did not diverge."""
        return [float(run["final"]) for run in self.runs if not has_diverged(run)]

    @property
    def diverged(self) -> int:
        """Number of runs that diverged."""
        return len(self.runs) - len(self.finals)


def read_cell(state: CellState) -> CellResult:
    """Summarise a cell. During a search, all logged seeds at the leading rate represent the cell."""
    runs = tuple(run for run in state.at_leading.values() if run is not None)
    if not state.logged:
        status = CellStatus.MISSING
    elif not state.complete:
        status = CellStatus.INCOMPLETE
    else:
        status = CellStatus.DIVERGED if not runs or any(map(has_diverged, runs)) else CellStatus.COMPLETE
    return CellResult(state, status, state.leading_lr, runs)


def has_diverged(run: Summary) -> bool:
    """Stopped at a NaN, or finished without a finite value of its metric."""
    return run["status"] == Status.DIVERGED or run["final"] is None


def rows(states: Iterable[CellState]) -> dict[RowKey, list[CellState]]:
    """Cells by task, variant and label, in the experiment's order: the rows of a table, the panels of a figure."""
    found: dict[RowKey, list[CellState]] = {}
    first_keys: dict[RowKey, RowKey] = {}  # settings sorted by name -> as the row's first cell orders them
    for state in states:
        key = first_keys.setdefault(CellKey.of(state.cell).row, RowKey.of(state.cell))
        row = found.setdefault(key, [])
        if any(other.cell.optim == state.cell.optim for other in row):
            hint = "distinguish the cells under `sweep` or by a `label`"
            raise ValueError(f"{row_text(key)} has {state.cell.optim} twice: {hint}")
        row.append(state)
    return found


def unique_cells(states: Iterable[CellState], key_of: Callable[[Cell], Key]) -> dict[Key, CellState]:
    """Cells of one panel by a key; raises if two cells share it."""
    found: dict[Key, CellState] = {}
    for state in states:
        key = key_of(state.cell)
        if key in found:
            both = [row_text(RowKey.of(s.cell)) for s in (found[key], state)]
            raise ValueError(f"a panel has {state.cell.optim} twice: {both[0]}, and {both[1]}")
        found[key] = state
    return found


def sorted_variant(variant: Variant) -> Variant:
    """Settings sorted by name."""
    return tuple(sorted(variant, key=lambda setting: setting[0]))


def variant_text(variant: Variant) -> str:
    """Swept settings as text, such as "sigma = 100"."""
    return ", ".join(f"{_short(key)} = {value}" for key, value in variant)


def _short(key: str) -> str:
    """The last part of a key, with the name of the network before it if it belongs to one network's optimiser."""
    return key.partition(".networks.")[2] or key.rsplit(".", 1)[-1]


def row_text(row: RowKey) -> str:
    """Such as "mnist_reparam, sigma = 100"."""
    return row.task + row_detail(row)


def row_detail(row: RowKey) -> str:
    """The part of a row's name after the task: its label and its swept settings."""
    return "".join(f", {words}" for words in (row.label, variant_text(row.variant)) if words)


def labelled(name: str, cell: Cell) -> str:
    """The name of a cell, with the label of its row if it has one."""
    return f"{name}, {cell.label}" if cell.label else name


def searched(state: CellState) -> int:
    """Number of learning rates with a finished run of the search seed."""
    return sum(run is not None for run in state.search.values())


def searched_text(state: CellState) -> str | None:
    """Progress of an incomplete search, such as "1 of 5 rates"; None for a complete one."""
    return (
        f"{searched(state)} of {len(state.search)} rates" if state.searching and not state.cell.missing_config else None
    )


def missing_text(state: CellState) -> str | None:
    """What is missing apart from the search: a config, or seeds at the leading rate."""
    if state.cell.missing_config or state.searching:
        return state.cell.missing_config
    return seeds_text(seed for seed, run in state.at_leading.items() if run is None)


def gap(state: CellState) -> str | None:
    """What is missing, as text."""
    if rates := searched_text(state):
        return f"search incomplete: {rates}"
    missing = missing_text(state)
    return missing if missing is None or state.cell.missing_config else f"{missing} missing"


def divergence(state: CellState) -> str | None:
    """Which runs at the leading learning rate diverged, as text."""
    if not state.at_leading:
        return "every learning rate" if state.diverged else None
    return seeds_text(seed for seed, run in state.at_leading.items() if run is not None and has_diverged(run))


def absence_text(state: CellState) -> str:
    """Why a cell has no result."""
    diverged = divergence(state)
    return f"{diverged} diverged" if diverged else str(CellStatus.MISSING)


def leading_text(state: CellState) -> str:
    """The leading learning rate and what is missing, or why no rate leads."""
    if state.leading_lr is None:
        return absence_text(state)
    missing = gap(state)
    return rate(state.leading_lr) + (f" ({missing})" if missing else "")


def seeds_text(seeds: Iterable[int]) -> str | None:
    """Such as "seeds 1, 2"; None for no seed."""
    listed = [str(seed) for seed in seeds]
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(listed)}" if listed else None


def is_embedded(cell: Cell) -> bool:
    return bool(cell.setting("data") == "embedded")


def precision(cell: Cell) -> str | None:
    """The arithmetic of the cell's runs; None if its task or optimiser has no config yet."""
    return None if cell.missing_config else str(cell.setting("precision"))


def usual_precision(cells: Iterable[Cell]) -> str | None:
    """The arithmetic of more than half of the cells whose arithmetic is known; None without a majority."""
    counts = Counter(known for cell in cells if (known := precision(cell)) is not None)
    most = counts.most_common(1)
    return most[0][0] if most and 2 * most[0][1] > counts.total() else None


def require_real(states: Iterable[CellState]) -> None:
    """Raise unless every cell and every run uses the paper's data; called before showing the paper's numbers."""
    for state in states:
        if is_embedded(state.cell):
            raise EmbeddedDataError(f"{state.cell.task} with {state.cell.optim} uses embedded data: {NOT_COMPARABLE}")
        for run in state.logged.values():
            if run.get("data") != "real":
                raise EmbeddedDataError(f"{run['run_id']} ran on {run.get('data')} data: {NOT_COMPARABLE}")
