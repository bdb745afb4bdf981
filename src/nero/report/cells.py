"""The logged runs of one table cell: its status, its final values, and what is missing."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from nero.plans.plan import Cell, CellState, Summary
from nero.report import display
from nero.report.units import rate
from nero.runs.store import Status

Variant = tuple[tuple[str, Any], ...]
Key = TypeVar("Key", bound=Hashable)


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
        return cls(RowKey(cell.task, tuple(sorted(cell.variant)), cell.label), cell.optim)


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


def leading_runs(state: CellState) -> list[Summary]:
    """The finished runs at the leading learning rate, by seed; during a search, they represent the cell."""
    return [run for run in state.at_leading.values() if run is not None]


def status(state: CellState) -> CellStatus:
    if not state.logged:
        return CellStatus.MISSING
    if not state.complete:
        return CellStatus.INCOMPLETE
    runs = leading_runs(state)
    return CellStatus.DIVERGED if not runs or any(map(has_diverged, runs)) else CellStatus.COMPLETE


def has_diverged(run: Summary) -> bool:
    """Stopped at a NaN, or finished without a finite value of its metric."""
    return run["status"] == Status.DIVERGED or run["final"] is None


def rows(states: Iterable[CellState]) -> dict[RowKey, list[CellState]]:
    """Cells by task, variant and label, in the experiment's order: the rows of a table, the panels of a figure."""
    found: dict[RowKey, list[CellState]] = {}
    first_keys: dict[RowKey, RowKey] = {}  # settings sorted by name -> as the row's first cell orders them
    seen: set[tuple[RowKey, str]] = set()
    for state in states:
        key = first_keys.setdefault(CellKey.of(state.cell).row, RowKey.of(state.cell))
        row = found.setdefault(key, [])
        if (key, state.cell.optim) in seen:
            hint = "distinguish the cells under `sweep` or by a `label`"
            raise ValueError(f"{row_as_typed(key)} has {state.cell.optim} twice: {hint}")
        seen.add((key, state.cell.optim))
        row.append(state)
    return found


def unique_cells(states: Iterable[CellState], key_of: Callable[[Cell], Key]) -> dict[Key, CellState]:
    """Cells of one panel by a key; raises if two cells share it."""
    found: dict[Key, CellState] = {}
    for state in states:
        other = found.setdefault(key_of(state.cell), state)
        if other is not state:
            both = [row_as_typed(RowKey.of(each.cell)) for each in (other, state)]
            raise ValueError(f"a panel has {state.cell.optim} twice: {both[0]}, and {both[1]}")
    return found


def variant_as_typed(variant: Variant) -> str:
    """Swept settings by their keys, as "scale_embedding = True"; one of a network's optimiser keeps the network's name.

    For CSV files and for messages; `variant_text` is for people.
    """
    shown = ((key.partition(".networks.")[2] or key.rpartition(".")[2], value) for key, value in variant)
    return ", ".join(f"{key} = {value}" for key, value in shown)


def variant_text(variant: Variant) -> str:
    """The same in words, such as "scale embedding = on"."""
    words = {"True": "on", "False": "off"}
    named = ((key.replace("_", " "), words.get(str(value), value)) for key, value in variant)
    return variant_as_typed(tuple(named))


def row_as_typed(row: RowKey) -> str:
    """Such as "mnist_reparam, sigma = 100": the task by the name that commands take."""
    return ", ".join(filter(None, [row.task, row.label, variant_as_typed(row.variant)]))


def row_text(row: RowKey) -> str:
    """The same for people, such as "MNIST MLP, reparameterised, sigma = 100"."""
    return ", ".join(filter(None, [display.task_name(row.task), row_detail(row)]))


def row_detail(row: RowKey) -> str:
    """The part of a row's name after the task: its label and its swept settings."""
    return ", ".join(filter(None, [row.label, variant_text(row.variant)]))


def labelled(name: str, cell: Cell) -> str:
    """The name of a cell, with the label of its row if it has one."""
    return f"{name}, {cell.label}" if cell.label else name


def problems(state: CellState) -> dict[str, str]:
    """What keeps a cell from being complete, by topic, such as {"search incomplete": "1 of 5 rates"}.

    Missing are a config, or seeds at the leading rate of a complete search.
    """
    no_config, seeds = state.cell.missing_config, state.at_leading
    searched = sum(run is not None for run in state.search.values())
    missing = None if state.searching else seeds_text(seed for seed, run in seeds.items() if run is None)
    diverged = seeds_text(seed for seed, run in seeds.items() if run is not None and has_diverged(run))
    found = {
        "search incomplete": f"{searched} of {len(state.search)} rates" if state.searching and not no_config else None,
        "missing": no_config or missing,
        "diverged": "every learning rate" if state.diverged and not seeds else diverged,
    }
    return {topic: detail for topic, detail in found.items() if detail}


def gap(state: CellState) -> str | None:
    """What is missing, as text."""
    found = problems(state)
    if rates := found.get("search incomplete"):
        return f"search incomplete: {rates}"
    missing = found.get("missing")
    return missing if missing is None or state.cell.missing_config else f"{missing} missing"


def absence_text(state: CellState) -> str:
    """Why a cell has no result."""
    diverged = problems(state).get("diverged")
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


def precision(cell: Cell) -> str | None:
    """The arithmetic of the cell's runs; None if its task or optimiser has no config yet."""
    return None if cell.missing_config else str(cell.setting("precision"))


def usual_precision(states: Iterable[CellState]) -> str | None:
    """The arithmetic of more than half of the cells whose arithmetic is known; None without a majority."""
    counts = Counter(known for state in states if (known := precision(state.cell)))
    return next((name for name, count in counts.items() if 2 * count > counts.total()), None)


def is_embedded(cell: Cell) -> bool:
    return bool(cell.setting("data") == "embedded")


def require_real(states: Iterable[CellState]) -> None:
    """Raise unless every cell and every run uses the paper's data; called before showing the paper's numbers."""
    for state in states:
        found = [f"{state.cell.task} with {state.cell.optim} uses embedded"] if is_embedded(state.cell) else []
        others = (run for run in state.logged.values() if run.get("data") != "real")
        found += [f"{run['run_id']} ran on {run.get('data')}" for run in others]
        if found:
            raise EmbeddedDataError(f"{found[0]} data: not comparable with the paper's numbers")
