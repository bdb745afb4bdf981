"""Where every learning rate of a search ended, beside the authors' where they logged theirs, and every seed at the one
that leads, as Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from nero.plans.plan import Cell, CellState, Summary
from nero.report import cells
from nero.report.figures import style
from nero.report.tables.markdown_format import markdown_line
from nero.report.units import number, rate, scale


def _optimiser(cell: Cell) -> str:
    return cells.labelled(style.name(cell.optim), cell)


def search_lines(
    states: Sequence[CellState],
    quantity: str,
    key: str,
    authors: Callable[[int], Mapping[tuple[str, float], str]] | None = None,
    name: Callable[[Cell], str] = _optimiser,
) -> Iterator[str]:
    """A line per cell, a column per rate; `authors` has for a seed what to say of theirs, by (optimiser, rate)."""
    [seed] = {state.cell.search_seed for state in states}
    theirs = authors(seed) if authors else {}
    lrs = sorted({lr for state in states for lr in state.search})
    yield f"Final {quantity} of the search, seed {seed}" + (", ours / the authors':" if authors else ":")
    yield ""
    yield markdown_line(["", *(f"η = {rate(lr)}" for lr in lrs)])
    yield markdown_line(["---"] * (len(lrs) + 1))
    for state in states:
        ends = []
        for lr in lrs:
            mine = _end(state.search.get(lr), key)
            other = theirs.get((state.cell.optim, lr), "not logged")
            ends.append(f"{mine} / {other}" if authors else mine)
        yield markdown_line([name(state.cell), *ends])


def seed_lines(
    states: Sequence[CellState], quantity: str, key: str, name: Callable[[Cell], str] = _optimiser
) -> Iterator[str]:
    """A line per cell, a column per seed, at the learning rate that leads the cell."""
    seeds = sorted({seed for state in states for seed in state.cell.seeds})
    yield f"Final {quantity} of each seed at that learning rate:"
    yield ""
    yield markdown_line(["", *(f"seed {seed}" for seed in seeds)])
    yield markdown_line(["---"] * (len(seeds) + 1))
    for state in states:
        yield markdown_line([name(state.cell), *(_end(state.at_leading.get(seed), key) for seed in seeds)])


def _end(run: Summary | None, key: str) -> str:
    return "missing" if run is None else "diverged" if cells.has_diverged(run) else shown(key, run["final"])


def shown(key: str, value: float) -> str:
    """A logged value of `key` as tables show it."""
    return number(scale(key) * value)
