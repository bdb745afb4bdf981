"""What figures have in common: curves of a cell as a line and a band, and notes on what cannot be drawn."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from nero.plans.plan import Cell, CellState
from nero.report import cells
from nero.report.figures import style
from nero.report.figures.curves import at_leading, by_seed, name
from nero.report.figures.recorded import Series, record
from nero.report.units import rate, scale


class Notes:
    """What a panel has to say about incomplete searches and about runs that it cannot draw."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, list[str]]] = {"search incomplete": {}, "missing": {}, "diverged": {}}

    def add(self, what: str, whose: str, detail: str | None) -> None:
        if detail:
            self._said[what].setdefault(detail, []).append(whose)

    def lines(self) -> list[str]:
        """Such as "search incomplete: LAMB (3 of 4 rates)" and "missing: Nero, SGD (seeds 1, 2)"."""
        return [
            f"{what}: " + "; ".join(f"{', '.join(whose)} ({detail})" for detail, whose in said.items())
            for what, said in self._said.items()
            if said
        ]


def draw_optimisers(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame, key: str, notes: Notes) -> None:
    """One line per optimiser, at its leading rate; a variant of one is dotted, unless it is the same runs."""
    palette = style.colours(state.cell.optim for state in states)
    usual = cells.usual_precision(state.cell for state in states)
    for optim in style.in_order(state.cell.optim for state in states):
        first, *variants = (state for state in states if state.cell.optim == optim)
        for state in [first, *(variant for variant in variants if _is_other(variant, first))]:
            varied = state is not first
            whose = name(state.cell) if varied else style.name(optim)
            ours = of_cell(state, curves, key, whose, notes)
            named = cells.labelled(style.name(optim), state.cell) if varied else style.name(optim)
            label = f"{named}{rate_text(state.leading_lr)}{precision_text(state.cell, usual)}"
            linestyle = style.VARIANT if varied else style.OURS
            planned = len(state.cell.seeds)
            draw(axes, ours, "epoch", scale(key), palette[optim], style.name(optim), label, linestyle, planned)


def _is_other(variant: CellState, first: CellState) -> bool:
    """Not the same runs as far as a panel can tell."""
    return (variant.leading_lr, variant.cell.label) != (first.leading_lr, first.cell.label)


def precision_text(cell: Cell, usual: str | None) -> str:
    """Such as ", float32", where the arithmetic of the cell's runs is not the usual one of its panel."""
    own = cells.precision(cell)
    return f", {style.precision(own)}" if own and own != usual else ""


def of_cell(state: CellState, frame: pd.DataFrame, key: str, whose: str, notes: Notes) -> pd.DataFrame:
    """The lines of `frame` of the cell's runs at its leading learning rate; notes what is missing and what diverged."""
    runs = {seed: run for seed, run in state.at_leading.items() if run is not None}
    drawn = at_leading(state, frame, key)
    there = set(drawn.run_id)
    # A run can diverge before its first line; any other run without a line has lost it.
    lost = cells.seeds_text(s for s, run in runs.items() if run["run_id"] not in there and not cells.has_diverged(run))
    notes.add("search incomplete", whose, cells.searched_text(state))
    notes.add("missing", whose, cells.missing_text(state))
    notes.add("missing", whose, f"no log of {lost}" if lost else None)
    notes.add("diverged", whose, cells.divergence(state))
    return drawn


def draw(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    factor: float,
    colour: str,
    group: str,
    label: str,
    linestyle: str = style.OURS,
    planned: int = 0,
) -> Line2D | None:
    """Mean over seeds as a line and their range as a band, as far as every seed goes; `planned` seeds are expected.

    Where a seed's value is not finite there is a gap. `group` is what the curve is switched on and off with.
    """
    seeds = by_seed(frame, x, factor)
    if seeds.empty:
        return None
    logged = np.unique(frame[x])
    seeds = seeds.reindex(logged[(logged >= seeds.index[0]) & (logged <= seeds.index[-1])])
    count = seeds.shape[1]
    at, ours = seeds.index.to_numpy(), linestyle != style.THEIRS
    shade = colour if ours else style.darker(colour)
    label = f"{label}, n = {count}" + (f" of {planned}" if count < planned else "")
    means = seeds.mean(axis=1).to_numpy()
    [line] = axes.plot(at, means, linestyle, color=shade, label=label)
    if lone := _lone(means):  # through one point alone no line can be seen
        line.set(marker=".", markevery=lone)
    low = high = None
    if ours:  # the authors' range is left out: two bands of one colour could not be told apart
        low, high = seeds.min(axis=1).to_numpy(), seeds.max(axis=1).to_numpy()
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    runs = tuple(frame.run_id.unique()) if "run_id" in frame else ()
    record(axes).series.append(Series(group, label, shade, linestyle, at, means, low, high, runs))
    return line


def _lone(values: np.ndarray) -> list[int]:
    """Places of values with none to the left or right of them."""
    there = np.pad(np.isfinite(values), 1)
    return [int(place) for place in np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])]


def draw_authors(
    axes: Axes, authors: pd.DataFrame, factor: float, palette: Mapping[str, str]
) -> dict[str, Line2D | None]:
    """A dashed line per optimiser, at the learning rate that the authors chose."""
    lines = {}
    for optim in style.in_order(authors.optim):
        theirs = authors[authors.optim == optim]
        label = f"{style.name(optim)}, authors{rate_text(theirs.lr.iloc[0])}"
        lines[optim] = draw(axes, theirs, "epoch", factor, palette[optim], style.name(optim), label, style.THEIRS)
    return lines


def rate_text(lr: float | None) -> str:
    return f", η = {rate(lr)}" if lr is not None else ""
