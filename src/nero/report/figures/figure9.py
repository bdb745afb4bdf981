"""Figure 9: training and validation error of ResNet-50 on ImageNet, and the target that one of the paper's runs passed.

The authors' curves are not logged anywhere, and the paper prints none of their errors.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.log_scale import LogScale
from nero.report.figures.panel import Curve
from nero.report.figures.recorded import record
from nero.report.figures.rows_of_panels import Followed, draw_row
from nero.report.tables.imagenet_settings import BASELINE, COLOURS, name

TRAINING, VALIDATION = "train/error", paper.ERROR["key"]
FOLLOWED = Followed(TRAINING, VALIDATION, "top-1 error (%)", "augmented", paper.IMAGENET_EPOCHS)

START = 5  # epochs: of a thousand classes little is told apart before
LEAST = 1.0  # per cent: a zero has no place on a log scale
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
FINE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 70, 80, 100)
CLOSE = 4  # times the lowest value: where nothing lies higher, there is room for the fine ticks
EPOCHS = range(0, paper.IMAGENET_EPOCHS + 1, 15)
SCALE = LogScale(lambda low, high: FINE if high <= CLOSE * low else COARSE, (LEAST, 100), paper.IMAGENET_EPOCHS, START)

TARGET = (
    f"target: {paper.IMAGENET_TARGET:g} % ({100 - paper.IMAGENET_TARGET:g} % top-1), passed by the paper's {BASELINE}"
)
GREY = "#444444"

WIDTH, HEIGHT = 4.6, 3.6  # inches of a panel, with a legend of two lines
LINE = 0.15  # inches more for each further one
LONG = 24  # letters: where a name has more, no second column fits


def of_settings(states: Iterable[CellState]) -> list[Curve]:
    """A curve for each cell on ImageNet, by optimiser in house order; those of one optimiser as they come."""
    named = cells.one_each((state for state in states if state.cell.task == paper.IMAGENET), name)
    palette = style.palette(named, COLOURS)
    order = style.in_order(state.cell.optim for state in named.values())
    shown = [Curve(state, words, palette[words]) for words, state in named.items()]
    return sorted(shown, key=lambda curve: order.index(curve.cell.optim))


@style.house_style()
def figure9(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 9: SGD with and without weight decay, Nero out of the box and tuned."""
    shown = of_settings(states)
    columns = 1 if any(len(curve.name) > LONG for curve in shown) else 2
    further = max(0, -(-len(shown) // columns) - 2)
    title = "ImageNet (Figure 9): mean and range over seeds"
    figure, panels = style.panels(1, 2, title, (WIDTH, HEIGHT + LINE * further))
    draw_row(panels, FOLLOWED, "ResNet-50", shown, curves, paper.imagenet())
    _draw_target(panels[1])
    for panel in panels:
        style.legend_below(panel, columns)  # in place of one that is always of two
        panel.set_xticks(EPOCHS)
        SCALE.fit([panel])
    return style.settle(figure)


def _draw_target(axes: Axes) -> None:
    """Before the scale is fitted, so that it is in sight; its words stand below it, where curves come at their end."""
    record(axes).rule = (paper.IMAGENET_TARGET, TARGET)
    ends = (0, paper.IMAGENET_EPOCHS)
    axes.plot(ends, [paper.IMAGENET_TARGET] * 2, style.TARGET, color=GREY, linewidth=0.7, zorder=1)
    below: Any = {"xytext": (0, -3), "textcoords": "offset points", "va": "top"}
    axes.annotate(TARGET, (0, paper.IMAGENET_TARGET), fontsize=6, color=GREY, **below)
