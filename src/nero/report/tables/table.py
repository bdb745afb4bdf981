"""The table of an experiment: our results and, where there are any, the paper's.

One row per task, variant and label, and one column per optimiser; with a `Listing`, one line per cell. A cell is the
mean and the population standard deviation of the metric at the end of training, over the seeds at the best learning
rate of a complete search, or at the leading rate of an incomplete one.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.plan import Cell, CellState
from nero.report import cells, disagreements, paper
from nero.report.cells import CellKey, CellResult, CellStatus, Key, RowKey
from nero.report.disagreements import Disagreement
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.units import ShownMetric, scale, shown_metric
from nero.report.verdicts import Comparison, compare


@dataclass(frozen=True)
class Entry:
    """One cell of a table. Means and deviations are in the unit of the row's metric."""

    result: CellResult
    mean: float | None
    std: float | None  # None for fewer than two runs
    rank: int | None  # 1 is the best of its row (in a listing: of all lines); None while unranked
    published: paper.Result | None
    published_rank: int | None
    comparison: Comparison | None  # None if the paper has no number
    marked_precision: str | None = None  # of its runs, if it is not that of most cells ranked with it
    secondary: "Secondary | None" = None

    @property
    def cell(self) -> Cell:
        return self.result.state.cell

    @property
    def verdict(self) -> CellStatus | None:
        return self.comparison.verdict if self.comparison else None

    @property
    def n(self) -> int:
        """Number of runs in the mean."""
        return len(self.result.finals)

    @property
    def planned(self) -> int:
        """Number of seeds that the experiment asks for."""
        return len(self.cell.seeds)

    @property
    def has_papers_rate(self) -> bool | None:
        """Whether the best learning rate is the paper's; None unless a search of several rates is complete."""
        state = self.result.state
        if self.published is None or state.searching or len(state.search) < 2:
            return None
        return state.best_lr == self.published.lr


@dataclass(frozen=True)
class Secondary:
    """A second metric at the end of the same runs, such as plain FID."""

    name: str
    mean: float
    std: float | None  # None for fewer than two runs


@dataclass(frozen=True)
class Row:
    key: RowKey
    metric: ShownMetric | None  # None if neither a run nor the paper defines it
    entries: Mapping[str, Entry]  # by optimiser, only those of the experiment


@dataclass(frozen=True)
class Listing:
    """A layout with one line per cell, all of one task, as the paper's Table 2."""

    heads: tuple[str, ...]  # of the columns that identify the cell
    words: Callable[[Cell], tuple[str, ...]]  # the text of these columns; lines with the same first text form a block
    name: Callable[[Cell], str]  # the cell's name in a sentence


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    optims: tuple[str, ...]
    rows: tuple[Row, ...]
    embedded: bool
    source: str | None  # of the published numbers
    remark: str = ""  # further notes of the source and of the experiment
    listing: Listing | None = None  # None: one column per optimiser
    disagreements: tuple[Disagreement, ...] = ()  # why cells of the experiment differ from the paper's

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.entries.values()]

    @property
    def complete(self) -> bool:
        return all(entry.result.complete for entry in self.entries)


def build_table(evidence: Evidence, published: paper.Published | None = None, listing: Listing | None = None) -> Table:
    """Compare an experiment's cells with the paper's. Raises for embedded data next to the paper's numbers."""
    states: Sequence[CellState] = evidence.states
    if published is not None:
        cells.require_real(states)
    if listing:  # the paper's cells in the paper's order, then the others
        places = {key: place for place, key in enumerate(published.results if published else ())}
        states = sorted(states, key=lambda state: places.get(paper.key(state.cell), len(places)))
    rows = cells.rows(states)
    entries: dict[CellKey, Entry] = {}
    metrics: dict[CellKey, ShownMetric | None] = {}
    for rivals in [states] if listing else rows.values():
        metric, factor = _metric(rivals, published)
        metrics |= dict.fromkeys((CellKey.of(state.cell) for state in rivals), metric)
        entries |= _entries(rivals, metric, factor, published)
    experiment = evidence.experiment
    reasons = disagreements.of_store(evidence.store)
    return Table(
        name=experiment.name,
        title=experiment.title,
        optims=style.in_order(state.cell.optim for state in states),
        rows=tuple(
            Row(key, metrics[CellKey.of(row[0].cell)], {s.cell.optim: entries[CellKey.of(s.cell)] for s in row})
            for key, row in rows.items()
        ),
        embedded=any(cells.is_embedded(state.cell) for state in states),
        source=published.source if published and published.results else None,
        remark=" ".join(filter(None, [published.remark if published else "", experiment.note])),
        listing=listing,
        disagreements=tuple(each for each in reasons if each.experiment == experiment.name),
    )


def ranks(means: Mapping[Key, float], metric: ShownMetric | None) -> dict[Key, int]:
    """Rank of each mean, 1 for the best; equal means share a rank. A single cell is not ranked."""
    if metric is None or len(means) < 2:
        return {}
    order = sorted({metric.sign * mean for mean in means.values()})
    return {name: order.index(metric.sign * mean) + 1 for name, mean in means.items()}


def _entries(
    rivals: Sequence[CellState], metric: ShownMetric | None, factor: float, published: paper.Published | None
) -> dict[CellKey, Entry]:
    """Entries of cells that are ranked together once all are complete; logged values are multiplied by `factor`."""
    results = {CellKey.of(state.cell): cells.read_cell(state) for state in rivals}
    finals = {key: [factor * final for final in result.finals] for key, result in results.items()}
    means = {key: statistics.fmean(values) for key, values in finals.items() if values}
    # A cell with a diverged seed is not ranked: the mean of the other seeds must not win a row.
    ranked = {key: mean for key, mean in means.items() if not results[key].diverged}
    places = ranks(ranked, metric) if all(result.complete for result in results.values()) else {}
    every = published.results if published else {}
    paper_keys = {key: paper.key(result.state.cell) for key, result in results.items()}
    theirs = {key: every[paper_key] for key, paper_key in paper_keys.items() if paper_key in every}
    their_places = ranks({key: result.mean for key, result in theirs.items()}, metric)
    usual = cells.usual_precision(state.cell for state in rivals)
    return {
        key: Entry(
            result=result,
            mean=means.get(key),
            std=_deviation(finals[key]),
            rank=places.get(key),
            published=theirs.get(key),
            published_rank=their_places.get(key),
            comparison=_comparison(result, finals[key], theirs.get(key)),
            marked_precision=own if (own := cells.precision(result.state.cell)) != usual else None,
            secondary=_secondary(result),
        )
        for key, result in results.items()
    }


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.pstdev(values) if len(values) > 1 else None


def _secondary(result: CellResult) -> Secondary | None:
    """The second metric that `paper.SECONDARY` has for the metric of the cell's runs."""
    runs = [run for run in result.runs if not cells.has_diverged(run)]
    key, name = paper.SECONDARY.get(runs[0]["metric"]["key"] if runs else "", ("", ""))
    values = [scale(key) * run["final_metrics"][key] for run in runs if run["final_metrics"].get(key) is not None]
    return Secondary(name, statistics.fmean(values), _deviation(values)) if values else None


def _comparison(result: CellResult, finals: Sequence[float], theirs: paper.Result | None) -> Comparison | None:
    """`compare`, once the paper's rate is logged: a difference at another rate would not test the paper's result."""
    state = result.state
    if theirs is not None and state.logged and theirs.lr in state.search and state.search[theirs.lr] is None:
        return Comparison(CellStatus.INCOMPLETE)
    # A seed, or every learning rate that has been tried, has no finite result.
    diverged = bool(result.diverged) or (not result.finals and result.status is not CellStatus.MISSING)
    return compare(finals, diverged, theirs)


def _metric(rivals: Sequence[CellState], published: paper.Published | None) -> tuple[ShownMetric | None, float]:
    """The metric of cells that are ranked together, and the factor from logged to shown values."""
    tasks = sorted({state.cell.task for state in rivals})
    if len(tasks) != 1:
        raise ValueError(f"only cells of one task can be ranked together, not of {', '.join(tasks)}")
    [task] = tasks
    logged = [run["metric"] for state in rivals for run in state.logged.values()]
    found = {(metric["key"], metric["goal"]): shown_metric(metric) for metric in logged}
    if len(found) > 1:
        raise ValueError(f"the runs of {task} report several metrics: {', '.join(key for key, _ in sorted(found))}")
    theirs = published.metrics.get(task) if published else None
    if not found:
        return theirs, 1.0
    [((key, _), ours)] = found.items()
    if theirs and (theirs.goal, theirs.unit) != (ours.goal, ours.unit):
        raise ValueError(f"{task} reports {ours.label!r} ({ours.goal}), the paper {theirs.label!r} ({theirs.goal})")
    return theirs or ours, scale(key)
