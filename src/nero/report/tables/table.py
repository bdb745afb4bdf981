"""The table of an experiment: our results and, where there are any, the paper's.

One row per task, variant and label, and one column per optimiser; with a `Listing`, one line per cell. A cell is the
mean and the population standard deviation of the metric at the end of training, over the seeds at the best learning
rate of a complete search, or at the leading rate of an incomplete one.
"""

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from nero.plans.plan import Cell, CellState, Summary
from nero.report import cells, disagreements, paper
from nero.report.cells import CellKey, CellStatus, Key, RowKey
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.units import DECIMALS, ShownMetric, scale, shown_metric
from nero.report.verdicts import Comparison, compare


class Secondary(NamedTuple):
    """A second metric at the end of the same runs, such as plain FID."""

    name: str
    mean: float
    std: float | None  # None for fewer than two runs


@dataclass(frozen=True)
class Entry:
    """One cell of a table. Means and deviations are in the unit of the row's metric."""

    name: str  # in a sentence
    state: CellState
    status: CellStatus
    runs: Sequence[Summary]  # the finished ones at the leading learning rate, by seed
    n: int  # number of those in the mean, which did not diverge
    mean: float | None
    std: float | None  # None for fewer than two runs
    published: paper.Result | None
    digits: int  # decimals of its numbers
    comparison: Comparison | None  # None if the paper has no number
    marked_precision: str | None  # of its runs, if it is not that of most cells of its row
    secondary: Secondary | None
    rank: int | None = None  # 1 is the best of its row; None while unranked
    published_rank: int | None = None

    @property
    def cell(self) -> Cell:
        return self.state.cell

    @property
    def verdict(self) -> CellStatus | None:
        return self.comparison.verdict if self.comparison else None

    @property
    def complete(self) -> bool:
        """No run is missing."""
        return self.status in (CellStatus.COMPLETE, CellStatus.DIVERGED)

    @property
    def has_papers_rate(self) -> bool | None:
        """Whether the best learning rate is the paper's; None unless a search of several rates is complete."""
        if self.published is None or self.state.searching or len(self.state.search) < 2:
            return None
        return self.state.best_lr == self.published.lr


class Row(NamedTuple):
    """Cells that are ranked together once none of their runs is missing."""

    key: RowKey
    metric: ShownMetric | None  # None if neither a run nor the paper defines it
    entries: Mapping[Hashable, Entry]  # by optimiser, only those of the experiment; in a listing by cell


FRAME = {
    "task": "str",  # with the settings that tell rows apart
    "optimizer": "str",
    "metric": "str",
    "goal": "str",  # min or max
    "mean": "float64",
    "std": "float64",
    "n": "int64",
    "lr": "float64",  # best or leading
    "status": "str",  # complete, incomplete, diverged or missing
    "rank": "Int64",
    "paper_mean": "float64",
    "paper_std": "float64",
    "paper_n": "Int64",
    "paper_lr": "float64",
    "paper_rank": "Int64",
    "difference": "float64",  # our mean minus the paper's, and its 95 % interval
    "low": "float64",
    "high": "float64",
    "verdict": "str",
}
"""The columns of `Table.to_frame`."""


class Listing(NamedTuple):
    """A layout with one line per cell, all of one task and ranked together, as the paper's Table 2."""

    heads: tuple[str, ...]  # of the columns that identify the cell
    words: Callable[[Cell], tuple[str, ...]]  # the text of these columns; lines with the same first text form a block
    name: Callable[[Cell], str]  # the cell's name in a sentence


@dataclass(frozen=True, repr=False)
class Table:
    name: str
    title: str
    optims: tuple[str, ...]
    rows: tuple[Row, ...]  # only one in a listing
    embedded: bool
    source: str | None  # of the published numbers
    remark: str  # further notes of the source and of the experiment
    listing: Listing | None  # None: one column per optimiser
    disagreements: Mapping[CellKey, str]  # why cells of the experiment differ from the paper's

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.entries.values()]

    @property
    def complete(self) -> bool:
        return all(entry.complete for entry in self.entries)

    def to_frame(self) -> pd.DataFrame:
        """One row per cell: our result and the paper's, in the unit of `metric`, and the verdict on the difference."""
        records = [
            {
                **record(self, row, entry),
                "task": cells.row_text(RowKey.of(entry.cell)),
                "optimizer": style.name(entry.cell.optim),
            }
            for row in self.rows
            for entry in row.entries.values()
        ]
        frame = pd.DataFrame(records).rename(columns={"difference_low": "low", "difference_high": "high"})
        return frame.reindex(columns=list(FRAME)).astype(FRAME)

    def __repr__(self) -> str:
        complete = sum(entry.complete for entry in self.entries)
        return f"Table({self.name}, {len(self.entries)} cells, {complete} complete)"

    def _repr_markdown_(self) -> str:
        """What notebooks show."""
        from nero.report.tables.layout import print_table  # which needs this module
        from nero.report.tables.sheets import to_markdown

        return to_markdown(print_table(self))


def record(table: Table, row: Row, entry: Entry, ranking: str = "") -> dict[str, Any]:
    """All numbers of a cell, in the order of the CSV; `ranking` is that of its row against the paper's."""
    cell, theirs, second, comparison = entry.cell, entry.published, entry.secondary, entry.comparison
    search = [run for run in entry.state.search.values() if run is not None]
    return {
        "experiment": table.name,
        "task": cell.task,
        "label": cell.label,
        "variant": cells.variant_as_typed(cell.variant),
        "optim": cell.optim,
        "data": "embedded" if table.embedded else "real",
        "precision": cells.precision(cell),
        "metric": row.metric.label if row.metric else None,
        "goal": row.metric.goal if row.metric else None,
        "status": entry.status,
        "mean": entry.mean,
        "std": entry.std,
        "n": entry.n,
        "secondary": second.name if second else None,
        **{f"secondary_{name}": getattr(second, name, None) for name in ("mean", "std")},
        "diverged": len(entry.runs) - entry.n,
        "planned": len(cell.seeds),
        "lr": entry.state.leading_lr,
        "searched": len(search),
        "grid": len(entry.state.search),
        "rank": entry.rank,
        **{f"paper_{name}": getattr(theirs, name, None) for name in ("mean", "std", "n", "lr")},
        "paper_rank": entry.published_rank,
        "verdict": entry.verdict,
        "complete": entry.complete,
        "difference": getattr(comparison, "mean", None),
        **{f"difference_{end}": getattr(comparison, end, None) for end in ("low", "high")},
        "best_lr_is_papers": entry.has_papers_rate,
        "ranking": ranking,
        "runs": " ".join(run["run_id"] for run in entry.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }


def build_table(evidence: Evidence, published: paper.Published | None = None, listing: Listing | None = None) -> Table:
    """Compare an experiment's cells with the paper's. Raises for embedded data next to the paper's numbers."""
    experiment, states = evidence.experiment, list(evidence.states)
    if published is not None:
        cells.require_real(states)
    known = published or paper.Published("", {}, {})
    if listing:  # the paper's cells in the paper's order, then the others
        places = {key: place for place, key in enumerate(known.results)}
        states.sort(key=lambda state: places.get(paper.key(state.cell), len(places)))
    optims = style.in_order(state.cell.optim for state in states)
    rows = {
        key: sorted(row, key=lambda state: optims.index(state.cell.optim)) for key, row in cells.rows(states).items()
    }
    if listing:
        rows = {RowKey(states[0].cell.task): states}
    reasons = disagreements.of_store(evidence.store)
    return Table(
        name=experiment.name,
        title=experiment.title,
        optims=optims,
        rows=tuple(_row(key, row, known, listing) for key, row in rows.items()),
        embedded=any(cells.is_embedded(state.cell) for state in states),
        source=known.source if known.results else None,
        remark=" ".join(filter(None, [known.remark, experiment.note])),
        listing=listing,
        disagreements={key: why for (name, key), why in reasons.items() if name == experiment.name},
    )


def ranks(means: Mapping[Key, float], metric: ShownMetric | None) -> dict[Key, int]:
    """Rank of each mean, 1 for the best; equal means share a rank. A single cell is not ranked."""
    if metric is None or len(means) < 2:
        return {}
    order = sorted({metric.sign * mean for mean in means.values()})
    return {name: order.index(metric.sign * mean) + 1 for name, mean in means.items()}


def _row(key: RowKey, states: Sequence[CellState], published: paper.Published, listing: Listing | None) -> Row:
    metric = _metric(states, published)
    factor = metric.scale if metric else 1.0
    usual = cells.usual_precision(states)
    entries: dict[Hashable, Entry] = {}
    for state in states:
        cell = state.cell
        runs = cells.leading_runs(state)
        finals = [factor * run["final"] for run in runs if not cells.has_diverged(run)]
        theirs = published.results.get(paper.key(cell))
        entries[CellKey.of(cell) if listing else cell.optim] = Entry(
            name=listing.name(cell) if listing else style.name(cell.optim),
            state=state,
            status=cells.status(state),
            runs=runs,
            n=len(finals),
            mean=statistics.fmean(finals) if finals else None,
            std=_deviation(finals),
            published=theirs,
            digits=metric.digits if metric else DECIMALS,
            comparison=_comparison(state, finals, theirs),
            marked_precision=own if (own := cells.precision(cell)) != usual else None,
            secondary=_secondary(runs),
        )
    # A cell with a diverged seed is not ranked: the mean of the other seeds must not win a row.
    means = {key: e.mean for key, e in entries.items() if e.mean is not None and e.n == len(e.runs)}
    places = ranks(means, metric) if all(entry.complete for entry in entries.values()) else {}
    their_places = ranks({key: e.published.mean for key, e in entries.items() if e.published}, metric)
    ranked = {
        key: replace(entry, rank=places.get(key), published_rank=their_places.get(key))
        for key, entry in entries.items()
    }
    return Row(key, metric, ranked)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.pstdev(values) if len(values) > 1 else None


def _secondary(runs: Sequence[Summary]) -> Secondary | None:
    """The second metric that `paper.SECONDARY` has for the metric of the cell's runs."""
    finite = [run for run in runs if not cells.has_diverged(run)]
    key, name = paper.SECONDARY.get(finite[0]["metric"]["key"] if finite else "", ("", ""))
    values = [scale(key) * run["final_metrics"][key] for run in finite if run["final_metrics"].get(key) is not None]
    return Secondary(name, statistics.fmean(values), _deviation(values)) if values else None


def _comparison(state: CellState, finals: Sequence[float], theirs: paper.Result | None) -> Comparison | None:
    """`compare`, once the paper's rate is logged: a difference at another rate would not test the paper's result."""
    if theirs is not None and state.logged and state.search.get(theirs.lr, state) is None:
        return Comparison(CellStatus.INCOMPLETE)
    # A seed, or every learning rate that has been tried, has no finite result.
    diverged = len(finals) < len(cells.leading_runs(state)) or bool(state.logged and not finals)
    return compare(finals, diverged, theirs)


def _metric(states: Sequence[CellState], published: paper.Published) -> ShownMetric | None:
    """The metric of cells that are ranked together."""
    tasks = sorted({state.cell.task for state in states})
    if len(tasks) != 1:
        raise ValueError(f"only cells of one task can be ranked together, not of {', '.join(tasks)}")
    logged = [run["metric"] for state in states for run in state.logged.values()]
    found = {(metric["key"], metric["goal"]): shown_metric(metric, tasks[0]) for metric in logged}
    if len(found) > 1:
        raise ValueError(f"the runs of {tasks[0]} report several metrics: {', '.join(key for key, _ in sorted(found))}")
    theirs = published.metrics.get(tasks[0])
    if not found:
        return theirs
    [((key, _), ours)] = found.items()
    if theirs is None:
        return ours
    if (theirs.goal, theirs.label.endswith("(%)"), scale(key)) != (ours.goal, ours.label.endswith("(%)"), ours.scale):
        units = f"{ours.label!r} ({ours.goal}), the paper {theirs.label!r} ({theirs.goal})"
        raise ValueError(f"{tasks[0]} reports {units}")
    return ours._replace(label=theirs.label)
