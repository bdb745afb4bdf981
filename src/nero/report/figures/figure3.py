"""Figure 3, and learning curves of any experiment. What is not logged is said, never drawn."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.curves import BLOCK, block_means
from nero.report.figures.drawing import Notes, draw, draw_authors, draw_optimisers, of_cell
from nero.report.units import is_ratio, scale, shown_metric

PER_CENT = (0, 102)


@style.house_style()
def figure3(states: Sequence[CellState], curves: pd.DataFrame, traces: pd.DataFrame) -> Figure:
    """Figure 3: MNIST perceptrons, ours solid, the authors' logs dashed.

    Left: a reparameterised network's training depends on the scale of its raw weights. Right: 100 layers, each
    optimiser at its best learning rate, or at the leading one of an incomplete search.
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
    by_sigma = cells.one_each(states, lambda cell: dict(cell.variant)["task.sigma"])
    palette = dict(zip(by_sigma, style.VARIANTS, strict=True))
    for sigma, state in by_sigma.items():
        ours = of_cell(state, traces, key, f"σ = {sigma}", notes)
        planned = len(state.cell.seeds)
        whose = f"σ = {sigma}"
        draw(axes, block_means(ours), "iteration", scale(key), palette[sigma], whose, whose, planned=planned)
    for sigma, colour in palette.items():
        theirs = block_means(authors[authors.sigma == sigma])
        draw(axes, theirs, "iteration", scale(key), colour, f"σ = {sigma}", f"σ = {sigma}, authors", style.THEIRS)
    axes.set(xlabel=f"iteration (means over {BLOCK})", ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
    style.head(axes, "5 layers, reparameterised, Adam", notes.lines())
    style.legend_below(axes)


def _very_deep(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame) -> None:
    key = paper.ACCURACY["key"]
    notes = Notes()
    draw_optimisers(axes, states, curves, key, notes)
    draw_authors(axes, paper.deep_curves(), scale(key), style.colours(state.cell.optim for state in states))
    axes.set(xlabel="epoch", ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
    style.head(axes, "100 layers", notes.lines())
    style.legend_below(axes)


@style.house_style()
def learning_curves(title: str, states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Any experiment: its metric against the epoch, a panel per (task, variant), each optimiser at its leading rate."""
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
        metrics = [run["metric"] for state in row_states for run in state.logged.values()]
        key = metrics[0]["key"] if metrics else ""
        draw_optimisers(panel, row_states, curves, key, notes)
        if is_ratio(key):
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.set(xlabel="epoch", ylabel=shown_metric(metrics[0]).label if metrics else "")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.head(panel, cells.row_text(row), notes.lines())
        style.legend_below(panel)
    return style.settle(figure)
