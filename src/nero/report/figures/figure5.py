"""Figures 1, 2 and 5: training and validation error on CIFAR-10, the paper's final errors beside ours."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.log_scale import LogScale
from nero.report.figures.panel import Curve, by_optimiser, of_task
from nero.report.figures.rows_of_panels import Followed, draw_row
from nero.report.tables.constraints import base, kept

TRAINING, VALIDATION = "train/error", paper.ERROR["key"]

NETWORKS = {
    paper.VGG11: ("VGG-11", "augmented, dropout on"),
    paper.RESNET18: ("ResNet-18", "augmented"),
}
"""Task -> its network, and how it saw the images of its training error."""

START = 5  # epochs of warm-up: the scale is that of what follows, and first values come in from above
LEAST = 0.01  # per cent, 5 of the 50,000 training images: a zero has no place on a log scale
COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 50, 70, 100)
SCALE = LogScale(lambda low, _: FINE if low >= FINE[0] else COARSE, (LEAST, 100), paper.CIFAR10_EPOCHS, START)


@style.house_style()
def figure1(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 1: VGG-11, Nero with either constraint on and off."""
    published = paper.ablation()
    swept = [state for state in states if state.cell.variant and paper.key(state.cell) in published.results]
    ablated = cells.one_each(swept, lambda cell: (kept(cell), cell.label))
    named = {
        cells.labelled(name, state.cell): state
        for halves, (name, _) in style.CONSTRAINTS.items()
        for (own, _), state in ablated.items()
        if own == halves
    }
    palette = style.palette(named, dict(style.CONSTRAINTS.values()))
    shown = [Curve(state, name, palette[name]) for name, state in named.items()]
    figure, panels = style.panels(1, 2, "Nero's constraints, VGG-11 on CIFAR-10 (Figure 1): mean and range over seeds")
    _row(panels, paper.VGG11, "Nero's constraints", shown, curves, published)
    SCALE.fit(panels[:1])
    SCALE.fit(panels[1:])
    return style.settle(figure)


@style.house_style()
def figure2(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 2: VGG-11, relative updates per neuron, layer and synapse. Top: without constraints. Bottom: with both."""
    title = "Relative updates, VGG-11 on CIFAR-10 (Figure 2): mean and range over seeds"
    figure, panels = style.panels(2, 2, title)
    rows = (("Without constraints", (False, False)), ("With both constraints", (True, True)))
    for place, (heading, constraints) in enumerate(rows):
        shown = by_optimiser((state for state in states if kept(state.cell) == constraints), base)
        _row(panels[2 * place : 2 * place + 2], paper.VGG11, heading, shown, curves, paper.ablation())
    SCALE.fit(panels[::2])  # the rows are to be compared
    SCALE.fit(panels[1::2])
    return style.settle(figure)


@style.house_style()
def figure5(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 5: VGG-11 (top) and ResNet-18 (bottom), each optimiser at the leading learning rate of its search."""
    figure, panels = style.panels(len(NETWORKS), 2, "CIFAR-10 (Figure 5): mean and range over seeds")
    for place, (task, (network, _)) in enumerate(NETWORKS.items()):
        row = panels[2 * place : 2 * place + 2]
        _row(row, task, network, of_task(task, states), curves, paper.table1())
        for panel in row:
            SCALE.fit([panel])
    return style.settle(figure)


def _row(
    panels: Sequence[Axes],
    task: str,
    heading: str,
    shown: Sequence[Curve],
    curves: pd.DataFrame,
    published: paper.Published,
) -> None:
    followed = Followed(TRAINING, VALIDATION, "error (%)", NETWORKS[task][1], paper.CIFAR10_EPOCHS)
    draw_row(panels, followed, heading, shown, curves, published)
