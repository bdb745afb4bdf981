"""Sentences on each row of a table: whether the paper's ranking holds, and whether its best learning rates are ours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nero.report import cells
from nero.report.cells import CellStatus, RowKey
from nero.report.figures import style
from nero.report.tables.sheets import Text
from nero.report.tables.table import Entry, Table, ranks
from nero.report.units import ShownMetric, rate


@dataclass(frozen=True)
class Ranking:
    """How our ranking of the optimisers compares with the paper's; unknown while a cell is incomplete."""

    order: Literal["holds", "differs", "unknown"]
    text: str


@dataclass(frozen=True)
class Group:
    """Cells that are ranked together: a row of a table, or all lines of a listing."""

    key: RowKey
    metric: ShownMetric | None
    names: Sequence[str]  # of the entries, in a sentence
    entries: Sequence[Entry]


def groups(table: Table) -> list[Group]:
    if not table.listing:
        return [
            Group(row.key, row.metric, [style.name(optim) for optim in row.entries], list(row.entries.values()))
            for row in table.rows
        ]
    names = [table.listing.name(entry.cell) for entry in table.entries]
    return [Group(RowKey(row.key.task), row.metric, names, table.entries) for row in table.rows[:1]]


def findings(table: Table) -> tuple[Text, ...]:
    """One or two sentences on each group for which the paper has numbers."""
    found = []
    for group in groups(table):
        ranked = ranking(group)
        sentences = " ".join(filter(None, [ranked.text if ranked else None, rates_text(group)]))
        if sentences:
            found.append(Text(f"{cells.row_detail(group.key)}: {sentences}", code=group.key.task))
    return tuple(found)


def ranking(group: Group) -> Ranking | None:
    """Ranking of the entries for which the paper has numbers; None for fewer than two."""
    theirs = {place: entry.published.mean for place, entry in enumerate(group.entries) if entry.published}
    if group.metric is None or len(theirs) < 2:
        return None
    ours = {place: group.entries[place] for place in theirs}
    if not all(entry.result.complete for entry in ours.values()):
        return Ranking("unknown", "Ranking not known yet: runs are missing.")
    diverged = {place for place, entry in ours.items() if entry.mean is None or entry.verdict is CellStatus.DIVERGED}
    worst = group.metric.sign * math.inf
    means = {place: worst if place in diverged else entry.mean or 0.0 for place, entry in ours.items()}
    our_places, their_places = ranks(means, group.metric), ranks(theirs, group.metric)
    names = {place: group.names[place] + " (diverged)" * (place in diverged) for place in ours}
    our_order = _in_order(our_places, names)
    if our_places == their_places:
        return Ranking("holds", f"Ranking holds: {our_order}.")
    their_order = _in_order(their_places, dict(enumerate(group.names)))
    return Ranking("differs", f"Ranking differs: {our_order} (paper: {their_order}).")


def rates_text(group: Group) -> str | None:
    """How many complete searches have the paper's best rate, and which do not; None if nothing is searched."""
    pairs = list(zip(group.names, group.entries, strict=True))
    if not any(entry.published and len(entry.result.state.search) > 1 for _, entry in pairs):
        return None
    complete = [(name, entry) for name, entry in pairs if entry.has_papers_rate is not None]
    if not complete:
        return "No search is complete."
    others = [_other_rate(name, entry) for name, entry in complete if not entry.has_papers_rate]
    count = f"{len(complete) - len(others)} of {len(complete)} complete search{'es' * (len(complete) > 1)}"
    return "; ".join([f"Best rate is the paper's for {count}", *others]) + "."


def _in_order(places: Mapping[int, int], names: Mapping[int, str]) -> str:
    """Such as "Nero, SGD = Adam, LAMB"."""
    shared: dict[int, list[str]] = {}
    for number, place in places.items():
        shared.setdefault(place, []).append(names[number])
    return ", ".join(" = ".join(shared[place]) for place in sorted(shared))


def _other_rate(name: str, entry: Entry) -> str:
    best, theirs = entry.result.state.best_lr, entry.published
    ours = "every rate diverged" if best is None else rate(best)
    return f"{name}: {ours}" + (f" (paper {rate(theirs.lr)})" if theirs else "")
