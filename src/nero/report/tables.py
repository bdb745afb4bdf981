"""The table of an experiment: our results and, where there are any, the paper's beside them.

One row per (task, variant), one column per optimiser. A cell is the mean and the population standard deviation of the
metric at the end of training, over the seeds at the best learning rate of the search.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nero.plans.plan import CellState, Experiment
from nero.report import cells, paper, style
from nero.report.cells import CellResult, Standing
from nero.report.units import ShownMetric, scale, shown_metric


@dataclass(frozen=True)
class Entry:
    """One cell of a table. Means and deviations are in the unit that the row's metric is shown in."""

    result: CellResult
    mean: float | None
    std: float | None  # None for fewer than two runs: one run has no spread
    rank: int | None  # 1 is the row's best, 2 its runner-up; None for a cell that takes no part
    published: paper.Result | None
    published_rank: int | None

    @property
    def n(self) -> int:
        """Runs that the mean is over."""
        return len(self.result.finals)

    @property
    def planned(self) -> int:
        return len(self.result.state.cell.seeds)


@dataclass(frozen=True)
class Row:
    task: str
    variant: cells.Variant
    metric: ShownMetric | None  # None while no run and no paper says what it is
    entries: Mapping[str, Entry]  # by optimiser; one that the experiment does not ask for is absent


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    optims: tuple[str, ...]
    rows: tuple[Row, ...]
    embedded: bool
    source: str | None  # whose numbers stand beside ours

    @property
    def complete(self) -> bool:
        standings = {entry.result.standing for row in self.rows for entry in row.entries.values()}
        return standings <= {Standing.COMPLETE, Standing.DIVERGED}


def build_table(experiment: Experiment, states: Sequence[CellState], published: paper.Published | None = None) -> Table:
    """Hold an experiment's cells against the paper's. Embedded data beside the paper's numbers raises."""
    if published is not None:
        cells.require_real(states)
    built = [_row(key, row_states, published) for key, row_states in cells.rows(states).items()]
    return Table(
        name=experiment.name,
        title=experiment.title,
        optims=style.in_order(state.cell.optim for state in states),
        rows=tuple(built),
        embedded=any(cells.is_embedded(state.cell) for state in states),
        source=published.source if published else None,
    )


def ranks(means: Mapping[str, float], metric: ShownMetric | None) -> dict[str, int]:
    """Place of each mean, 1 for the best; equal means share a place. A lone cell has nothing to be ranked against."""
    if metric is None or len(means) < 2:
        return {}
    order = sorted({metric.sign * mean for mean in means.values()})
    return {name: order.index(metric.sign * mean) + 1 for name, mean in means.items()}


def _row(key: cells.RowKey, states: Sequence[CellState], published: paper.Published | None) -> Row:
    task, variant = key
    metric, factor = _metric(task, states, published)
    results = {state.cell.optim: cells.read_cell(state) for state in states}
    finals = {optim: [factor * final for final in result.finals] for optim, result in results.items()}
    means = {optim: statistics.fmean(values) for optim, values in finals.items() if values}
    # A cell of which a seed diverged ranks last: the mean of its survivors must not win a row.
    places = ranks({optim: mean for optim, mean in means.items() if not results[optim].diverged}, metric)
    theirs = {
        optim: published.results[task, variant, optim]
        for optim in results
        if published and (task, variant, optim) in published.results
    }
    their_places = ranks({optim: result.mean for optim, result in theirs.items()}, metric)
    entries = {
        optim: Entry(
            result=result,
            mean=means.get(optim),
            std=statistics.pstdev(finals[optim]) if len(finals[optim]) > 1 else None,
            rank=places.get(optim),
            published=theirs.get(optim),
            published_rank=their_places.get(optim),
        )
        for optim, result in results.items()
    }
    return Row(task, variant, metric, entries)


def _metric(
    task: str, states: Sequence[CellState], published: paper.Published | None
) -> tuple[ShownMetric | None, float]:
    """How the row's metric is shown, and what logged values are multiplied by for it."""
    logged = [run["metric"] for state in states for run in cells.logged(state)]
    said = {(metric["key"], metric["goal"]): shown_metric(metric) for metric in logged}
    if len(said) > 1:
        raise ValueError(f"the runs of {task} do not report one metric but {', '.join(key for key, _ in sorted(said))}")
    theirs = published.metrics.get(task) if published else None
    if not said:
        return theirs, 1.0
    [((key, _), ours)] = said.items()
    if theirs and (theirs.goal, theirs.unit) != (ours.goal, ours.unit):
        raise ValueError(f"{task} reports {ours.label!r} ({ours.goal}), the paper {theirs.label!r} ({theirs.goal})")
    return theirs or ours, scale(key)
