"""What a row of a table says as a whole: whether the paper's ranking holds, and whether its best rates are the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nero.report import cells
from nero.report.cells import RowKey
from nero.report.figures import style
from nero.report.tables.sheets import Text
from nero.report.tables.table import Entry, Table, ranks
from nero.report.units import ShownMetric, rate
from nero.report.verdicts import Verdict


class Order(StrEnum):
    """How our ranking of the optimisers compares with the paper's."""

    HOLDS = "holds"
    DIFFERS = "differs"
    UNKNOWN = "unknown"  # while a cell is not settled


@dataclass(frozen=True)
class Ranking:
    order: Order
    ours: str = ""  # the names, best first; those that share a place have a sign of equality between them
    theirs: str = ""


@dataclass(frozen=True)
class Group:
    """Cells that are ranked against each other: a row of a table, or the whole of a listing."""

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
    every = [entry for row in table.rows for entry in row.entries.values()]
    names = [table.listing.name(entry.cell) for entry in every]
    return [Group(RowKey(row.key.task), row.metric, names, every) for row in table.rows[:1]]


def findings(table: Table) -> tuple[Text, ...]:
    """A sentence or two on each group that the paper has numbers of."""
    found = []
    for group in groups(table):
        words = " ".join(filter(None, [_ranking_text(ranking(group)), rates_text(group)]))
        if words:
            found.append(Text(f"{cells.row_detail(group.key)}: {words}", code=group.key.task))
    return tuple(found)


def ranking(group: Group) -> Ranking | None:
    """Of the entries that the paper has numbers of; None where these are fewer than two."""
    theirs = {place: entry.published.mean for place, entry in enumerate(group.entries) if entry.published}
    if group.metric is None or len(theirs) < 2:
        return None
    ours = {place: group.entries[place] for place in theirs}
    if not all(entry.result.settled for entry in ours.values()):
        return Ranking(Order.UNKNOWN)
    lost = {place for place, entry in ours.items() if entry.mean is None or entry.verdict is Verdict.DIVERGED}
    worst = group.metric.sign * math.inf
    means = {place: worst if place in lost else entry.mean or 0.0 for place, entry in ours.items()}
    our_places, their_places = ranks(means, group.metric), ranks(theirs, group.metric)
    names = {place: f"{group.names[place]} (diverged)" if place in lost else group.names[place] for place in ours}
    order = Order.HOLDS if our_places == their_places else Order.DIFFERS
    return Ranking(order, _in_order(our_places, names), _in_order(their_places, dict(enumerate(group.names))))


def rates_text(group: Group) -> str | None:
    """How many complete searches have the paper's best rate, and which have another; None where nothing is searched."""
    pairs = list(zip(group.names, group.entries, strict=True))
    if not any(entry.published and len(entry.result.state.search) > 1 for _, entry in pairs):
        return None
    complete = [(name, entry) for name, entry in pairs if entry.has_papers_rate is not None]
    if not complete:
        return "No search is complete."
    others = [_other_rate(name, entry) for name, entry in complete if not entry.has_papers_rate]
    count = f"{len(complete) - len(others)} of {len(complete)} complete search{'es' * (len(complete) > 1)}"
    return "; ".join([f"Best rate is the paper's for {count}", *others]) + "."


def _ranking_text(found: Ranking | None) -> str | None:
    if found is None:
        return None
    return {
        Order.HOLDS: f"Ranking holds: {found.ours}.",
        Order.DIFFERS: f"Ranking differs: {found.ours} (paper: {found.theirs}).",
        Order.UNKNOWN: "Ranking not known yet: runs are missing.",
    }[found.order]


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
