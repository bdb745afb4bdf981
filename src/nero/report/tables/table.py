"""The table of an experiment: our results and, where there are any, the paper's beside them.

One row per task, variant and label, and one column per optimiser; with a `Listing`, one line per cell. A cell is the
mean and the population standard deviation of the metric at the end of training, over the seeds at the best learning
rate of a complete search, or at the leading rate of an incomplete one.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.plan import Cell, CellState, Experiment
from nero.report import cells, paper
from nero.report.cells import CellKey, CellResult, Key, RowKey, Standing
from nero.report.disagreements import Disagreement
from nero.report.figures import style
from nero.report.units import ShownMetric, scale, shown_metric
from nero.report.verdicts import Comparison, Verdict, compare


@dataclass(frozen=True)
class Entry:
    """One cell of a table. Means and deviations are in the unit that the row's metric is shown in."""

    result: CellResult
    mean: float | None
    std: float | None  # None for fewer than two runs: one run has no spread
    rank: int | None  # 1 is the best of its row (in a listing: of all lines), 2 the runner-up; None has no place yet
    published: paper.Result | None
    published_rank: int | None
    comparison: Comparison | None  # with the paper's; None where it has no number
    marked_precision: str | None = None  # of its runs, where it is not that of most cells ranked with it
    secondary: "Secondary | None" = None  # a second metric of the same runs

    @property
    def cell(self) -> Cell:
        return self.result.state.cell

    @property
    def verdict(self) -> Verdict | None:
        return self.comparison.verdict if self.comparison else None

    @property
    def n(self) -> int:
        """Runs that the mean is over."""
        return len(self.result.finals)

    @property
    def planned(self) -> int:
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
    metric: ShownMetric | None  # None while no run and no paper says what it is
    entries: Mapping[str, Entry]  # by optimiser; one that the experiment does not ask for is absent


@dataclass(frozen=True)
class Listing:
    """A layout with a line for each cell, all of one task, as the paper's Table 2."""

    heads: tuple[str, ...]  # of the columns that say which cell it is
    words: Callable[[Cell], tuple[str, ...]]  # what stands in them; lines with the same first word stand together
    name: Callable[[Cell], str]  # the same in a sentence


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    optims: tuple[str, ...]
    rows: tuple[Row, ...]
    embedded: bool
    source: str | None  # whose numbers stand beside ours
    remark: str = ""  # what it says besides
    listing: Listing | None = None  # None: a row per task, variant and label, a column per optimiser
    disagreements: tuple[Disagreement, ...] = ()  # why cells of the experiment differ from the paper's

    @property
    def complete(self) -> bool:
        return all(entry.result.settled for row in self.rows for entry in row.entries.values())


def build_table(
    experiment: Experiment,
    states: Sequence[CellState],
    published: paper.Published | None = None,
    listing: Listing | None = None,
    disagreements: Sequence[Disagreement] = (),
) -> Table:
    """Hold an experiment's cells against the paper's. Embedded data beside the paper's numbers raises."""
    if published is not None:
        cells.require_real(states)
    if listing:
        states = _in_published_order(states, published)
    rows = cells.rows(states)
    entries: dict[CellKey, Entry] = {}
    metrics: dict[CellKey, ShownMetric | None] = {}
    for rivals in [states] if listing else rows.values():
        task = _only_task(rivals)
        metric, factor = _metric(task, rivals, published)
        metrics |= dict.fromkeys((CellKey.of(state.cell) for state in rivals), metric)
        entries |= _entries(rivals, metric, factor, published)
    return Table(
        name=experiment.name,
        title=experiment.title,
        optims=style.in_order(state.cell.optim for state in states),
        rows=tuple(
            Row(
                key,
                metrics[CellKey.of(row_states[0].cell)],
                {s.cell.optim: entries[CellKey.of(s.cell)] for s in row_states},
            )
            for key, row_states in rows.items()
        ),
        embedded=any(cells.is_embedded(state.cell) for state in states),
        source=published.source if published and published.results else None,
        remark=" ".join(filter(None, [published.remark if published else "", experiment.note])),
        listing=listing,
        disagreements=tuple(each for each in disagreements if each.experiment == experiment.name),
    )


def ranks(means: Mapping[Key, float], metric: ShownMetric | None) -> dict[Key, int]:
    """Place of each mean, 1 for the best; equal means share a place. A lone cell has nothing to be ranked against."""
    if metric is None or len(means) < 2:
        return {}
    order = sorted({metric.sign * mean for mean in means.values()})
    return {name: order.index(metric.sign * mean) + 1 for name, mean in means.items()}


def _entries(
    rivals: Sequence[CellState], metric: ShownMetric | None, factor: float, published: paper.Published | None
) -> dict[CellKey, Entry]:
    """The entries of cells that are ranked against each other once all are settled; values times `factor` are shown."""
    results = {CellKey.of(state.cell): cells.read_cell(state) for state in rivals}
    finals = {key: [factor * final for final in result.finals] for key, result in results.items()}
    means = {key: statistics.fmean(values) for key, values in finals.items() if values}
    # A cell of which a seed diverged ranks last: the mean of its survivors must not win a row.
    ranked = {key: mean for key, mean in means.items() if not results[key].diverged}
    places = ranks(ranked, metric) if all(result.settled for result in results.values()) else {}
    theirs = _published(results, published)
    their_places = ranks({key: result.mean for key, result in theirs.items()}, metric)
    usual = cells.usual_precision(state.cell for state in rivals)
    return {
        key: Entry(
            result=result,
            mean=means.get(key),
            std=statistics.pstdev(finals[key]) if len(finals[key]) > 1 else None,
            rank=places.get(key),
            published=theirs.get(key),
            published_rank=their_places.get(key),
            comparison=_compared(result, finals[key], theirs.get(key)),
            marked_precision=own if (own := cells.precision(result.state.cell)) != usual else None,
            secondary=_secondary(result),
        )
        for key, result in results.items()
    }


def _secondary(result: CellResult) -> Secondary | None:
    """What `paper.SECONDARY` has for the metric of the cell's runs, over those with a finite final value."""
    runs = [run for run in result.runs if not cells.has_diverged(run)]
    key, name = paper.SECONDARY.get(runs[0]["metric"]["key"] if runs else "", ("", ""))
    values = [scale(key) * run["final_metrics"][key] for run in runs if run["final_metrics"].get(key) is not None]
    if not values:
        return None
    return Secondary(name, statistics.fmean(values), statistics.pstdev(values) if len(values) > 1 else None)


def _published(results: Mapping[CellKey, CellResult], published: paper.Published | None) -> dict[CellKey, paper.Result]:
    """The paper's numbers of those cells that it has any of."""
    every = published.results if published else {}
    keys = {key: paper.key(result.state.cell) for key, result in results.items()}
    return {key: every[theirs] for key, theirs in keys.items() if theirs in every}


def _compared(result: CellResult, finals: Sequence[float], theirs: paper.Result | None) -> Comparison | None:
    """`compare`, once the paper's rate is in: the difference at another rate would not test the paper's result."""
    state = result.state
    if theirs is not None and state.logged and theirs.lr in state.search and state.search[theirs.lr] is None:
        return Comparison(Verdict.INCOMPLETE)
    return compare(finals, _is_lost(result), theirs)


def _is_lost(result: CellResult) -> bool:
    """A seed, or every learning rate that has been tried, has no finite result."""
    return bool(result.diverged) or (not result.finals and result.standing is not Standing.MISSING)


def _only_task(rivals: Sequence[CellState]) -> str:
    tasks = sorted({state.cell.task for state in rivals})
    if len(tasks) != 1:
        raise ValueError(f"cells are ranked against each other on one task, not on {', '.join(tasks)}")
    return tasks[0]


def _in_published_order(states: Sequence[CellState], published: paper.Published | None) -> list[CellState]:
    """Those of the paper as the paper has them, then others as they come."""
    places = {key: place for place, key in enumerate(published.results if published else ())}
    return sorted(states, key=lambda state: places.get(paper.key(state.cell), len(places)))


def _metric(
    task: str, states: Sequence[CellState], published: paper.Published | None
) -> tuple[ShownMetric | None, float]:
    """How the row's metric is shown, and what logged values are multiplied by for it."""
    logged = [run["metric"] for state in states for run in state.logged.values()]
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
