"""One function per figure, from frames and cell states to a figure. What is not logged is said, never drawn."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.plans.plan import CellState
from nero.report import cells, paper, style
from nero.report.curves import BLOCK, at_best, block_means, by_seed, name
from nero.report.units import rate, scale, shown_metric

PER_CENT = (0, 102)


@style.house_style()
def figure3(states: Sequence[CellState], curves: pd.DataFrame, traces: pd.DataFrame) -> Figure:
    """Figure 3: MNIST perceptrons, ours solid, the authors' logs dashed.

    Left: a reparameterised network's training depends on the scale of its raw weights. Right: 100 layers, each
    optimiser at its best learning rate.
    """
    cells.require_real(states)
    figure, (left, right) = style.panels(1, 2, "MNIST perceptrons (Figure 3): mean and range over seeds")
    _reparameterised(left, [state for state in states if state.cell.task == paper.REPARAM], traces)
    _very_deep(right, [state for state in states if state.cell.task == paper.DEEP], curves)
    return style.settle(figure)


def _reparameterised(axes: Axes, states: Sequence[CellState], traces: pd.DataFrame) -> None:
    key = paper.ACCURACY["key"]
    authors = paper.reparam_curves()
    notes = Notes()
    by_sigma = {dict(state.cell.variant)["task.sigma"]: state for state in states}
    palette = dict(zip(by_sigma, style.VARIANTS, strict=True))
    for sigma, state in by_sigma.items():
        ours = _of_cell(state, traces, key, f"σ = {sigma}", notes)
        _draw(axes, block_means(ours), "iteration", scale(key), palette[sigma], f"σ = {sigma}")
    for sigma, colour in palette.items():
        theirs = block_means(authors[authors.sigma == sigma])
        _draw(axes, theirs, "iteration", scale(key), colour, f"σ = {sigma}, authors", style.THEIRS)
    axes.set(xlabel=f"iteration (means over {BLOCK})", ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
    style.head(axes, "5 layers, reparameterised, Adam", notes.lines())
    style.legend_below(axes)


def _very_deep(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame) -> None:
    key = paper.ACCURACY["key"]
    authors = paper.deep_curves()
    notes = Notes()
    _optimisers(axes, states, curves, key, notes)
    palette = style.colours(state.cell.optim for state in states)
    for optim in style.in_order(authors.optim):
        theirs = authors[authors.optim == optim]
        label = f"{style.name(optim)}, authors{_rate_text(theirs.lr.iloc[0])}"
        _draw(axes, theirs, "epoch", scale(key), palette[optim], label, style.THEIRS)
    axes.set(xlabel="epoch", ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
    style.head(axes, "100 layers", notes.lines())
    style.legend_below(axes)


@style.house_style()
def learning_curves(title: str, states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Any experiment: its metric against the epoch, one panel per (task, variant), each optimiser at its best rate."""
    if any(cells.is_embedded(state.cell) for state in states):
        title = f"{title} (embedded data, not the paper's)"
    rows = cells.rows(states)
    across = min(len(rows), 3)
    down = -(-len(rows) // across)
    figure, axes = style.panels(down, across, title)
    for spare in axes[len(rows) :]:
        spare.remove()
    for panel, (row, row_states) in zip(axes, rows.items(), strict=False):
        notes = Notes()
        metrics = [run["metric"] for state in row_states for run in cells.logged(state)]
        _optimisers(panel, row_states, curves, metrics[0]["key"] if metrics else "", notes)
        panel.set(xlabel="epoch", ylabel=shown_metric(metrics[0]).label if metrics else "")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.head(panel, cells.row_text(row), notes.lines())
        style.legend_below(panel)
    return style.settle(figure)


class Notes:
    """What a panel has to say about runs that it cannot draw."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, list[str]]] = {"missing": {}, "diverged": {}}

    def add(self, what: str, whose: str, detail: str | None) -> None:
        if detail:
            self._said[what].setdefault(detail, []).append(whose)

    def lines(self) -> list[str]:
        """Such as "missing: Nero, SGD (seeds 1, 2); LAMB (search 3 of 4)"."""
        return [
            f"{what}: " + "; ".join(f"{', '.join(whose)} ({detail})" for detail, whose in said.items())
            for what, said in self._said.items()
            if said
        ]


def _optimisers(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame, key: str, notes: Notes) -> None:
    """One line per optimiser, at its best learning rate; a variant of one is dotted, unless it is the same runs."""
    palette = style.colours(state.cell.optim for state in states)
    for optim in style.in_order(state.cell.optim for state in states):
        best, *variants = (state for state in states if state.cell.optim == optim)
        for state in [best, *(variant for variant in variants if variant.best_lr != best.best_lr)]:
            varied = state is not best
            whose = name(state.cell) if varied else style.name(optim)
            ours = _of_cell(state, curves, key, whose, notes)
            label = f"{style.name(optim)}{_rate_text(state.best_lr)}"
            _draw(axes, ours, "epoch", scale(key), palette[optim], label, style.VARIANT if varied else style.OURS)


def _of_cell(state: CellState, frame: pd.DataFrame, key: str, whose: str, notes: Notes) -> pd.DataFrame:
    """The lines of `frame` of the cell's runs at its best learning rate; notes what is missing and what diverged."""
    runs = {seed: run for seed, run in state.repeats.items() if run is not None}
    drawn = at_best(state, frame, key)
    there = set(drawn.run_id)
    # A run can diverge before its first line; any other run without a line has lost it.
    lost = cells.seeds_text(s for s, run in runs.items() if run["run_id"] not in there and not cells.has_diverged(run))
    notes.add("missing", whose, cells.gap(state))
    notes.add("missing", whose, f"no log of {lost}" if lost else None)
    notes.add("diverged", whose, cells.divergence(state))
    return drawn


def _draw(
    axes: Axes, frame: pd.DataFrame, x: str, factor: float, colour: str, label: str, linestyle: str = style.OURS
) -> None:
    """Mean over seeds as a line and their range as a band, as far as every seed goes."""
    seeds = by_seed(frame, x, factor)
    if seeds.empty:
        return
    at, ours = seeds.index.to_numpy(), linestyle != style.THEIRS
    shade = colour if ours else style.darker(colour)
    axes.plot(at, seeds.mean(axis=1).to_numpy(), linestyle, color=shade, label=f"{label}, n = {seeds.shape[1]}")
    if ours:  # the authors' range is left out: two bands of one colour could not be told apart
        low, high = seeds.min(axis=1).to_numpy(), seeds.max(axis=1).to_numpy()
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)


def _rate_text(lr: float | None) -> str:
    return f", η = {rate(lr)}" if lr is not None else ""
