"""Curves over seeds: select them from the frames, draw their mean and range, and note what is missing."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from nero.plans.plan import Cell, CellState
from nero.report import cells
from nero.report.figures import style
from nero.report.units import rate, scale


class Notes:
    """Notes of a panel on incomplete searches and on runs that it cannot draw."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, list[str]]] = {"search incomplete": {}, "missing": {}, "diverged": {}}

    def add(self, topic: str, name: str, detail: str | None) -> None:
        if detail:
            self._notes[topic].setdefault(detail, []).append(name)

    def lines(self) -> list[str]:
        """Such as "search incomplete: LAMB (3 of 4 rates)" and "missing: Nero, SGD (seeds 1, 2)"."""
        return [
            f"{topic}: " + "; ".join(f"{', '.join(names)} ({detail})" for detail, names in details.items())
            for topic, details in self._notes.items()
            if details
        ]


def curve_name(cell: Cell) -> str:
    """Such as "Nero", or "Nero at lr = 0.001"."""
    variant = f" at {cells.variant_text(cell.variant)}" if cell.variant else ""
    return cells.labelled(style.name(cell.optim) + variant, cell)


def rate_text(lr: float | None) -> str:
    return f", η = {rate(lr)}" if lr is not None else ""


def precision_text(cell: Cell, usual: str | None) -> str:
    """Such as ", float32" where the precision of the cell's runs is not the usual one of its panel."""
    own = cells.precision(cell)
    return f", {style.precision(own)}" if own and own != usual else ""


# Select


def at_leading(state: CellState, frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """The lines of `frame` under `key` for a cell's runs at its leading learning rate."""
    run_ids = [run["run_id"] for run in state.at_leading.values() if run is not None]
    return frame[frame.run_id.isin(run_ids) & (frame.key == key)]


def select(state: CellState, frame: pd.DataFrame, key: str, name: str, notes: Notes) -> pd.DataFrame:
    """The same lines, with notes on what is missing and what diverged."""
    found = at_leading(state, frame, key)
    logged = set(found.run_id)
    # A run can diverge before its first line; any other run without a line has lost its log.
    lost = cells.seeds_text(
        seed
        for seed, run in state.at_leading.items()
        if run is not None and run["run_id"] not in logged and not cells.has_diverged(run)
    )
    notes.add("search incomplete", name, cells.searched_text(state))
    notes.add("missing", name, cells.missing_text(state))
    notes.add("missing", name, f"no log of {lost}" if lost else None)
    notes.add("diverged", name, cells.divergence(state))
    return found


def by_seed(frame: pd.DataFrame, x: str, factor: float) -> pd.DataFrame:
    """A row per `x` and a column per seed, as far as all seeds go; values are multiplied by `factor`."""
    return frame.pivot(index=x, columns="seed", values="value").dropna().astype("float64") * factor


# Draw


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
    """Draw the mean over seeds as a line and their range as a band, as far as all seeds go.

    A value that is not finite leaves a gap. The label says how many of the `planned` seeds there are.
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
    if isolated := _isolated(means):  # a line through one point is invisible
        line.set(marker=".", markevery=isolated)
    low = high = None
    if ours:  # the authors' range is left out: two bands of one colour could not be told apart
        low, high = seeds.min(axis=1).to_numpy(), seeds.max(axis=1).to_numpy()
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    runs = tuple(frame.run_id.unique()) if "run_id" in frame else ()
    style.record(axes).series.append(style.Series(group, label, shade, linestyle, at, means, low, high, runs))
    return line


def _isolated(values: np.ndarray) -> list[int]:
    """Indices of finite values without a finite neighbour."""
    finite = np.pad(np.isfinite(values), 1)
    return [int(place) for place in np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:])]


def draw_optimizers(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame, key: str, notes: Notes) -> None:
    """Draw each optimiser at its leading learning rate; variants of it are dotted, unless they are the same runs."""
    palette = style.colours(state.cell.optim for state in states)
    usual = cells.usual_precision(state.cell for state in states)
    for optim in style.in_order(state.cell.optim for state in states):
        name = style.name(optim)
        first, *others = (state for state in states if state.cell.optim == optim)
        same = (first.leading_lr, first.cell.label)
        for state in [first, *(state for state in others if (state.leading_lr, state.cell.label) != same)]:
            cell, is_variant = state.cell, state is not first
            ours = select(state, curves, key, curve_name(cell) if is_variant else name, notes)
            labelled = cells.labelled(name, cell) if is_variant else name
            label = f"{labelled}{rate_text(state.leading_lr)}{precision_text(cell, usual)}"
            linestyle = style.VARIANT if is_variant else style.OURS
            draw(axes, ours, "epoch", scale(key), palette[optim], name, label, linestyle, len(cell.seeds))


def draw_authors(
    axes: Axes, authors: pd.DataFrame, factor: float, palette: Mapping[str, str]
) -> dict[str, Line2D | None]:
    """Draw a dashed line per optimiser, at the learning rate that the authors chose."""
    lines = {}
    for optim in style.in_order(authors.optim):
        theirs, name = authors[authors.optim == optim], style.name(optim)
        label = f"{name}, authors{rate_text(theirs.lr.iloc[0])}"
        lines[optim] = draw(axes, theirs, "epoch", factor, palette[optim], name, label, style.THEIRS)
    return lines
