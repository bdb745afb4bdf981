"""Figure 9: training and validation error of ResNet-50 on ImageNet, and the target that one of the paper's runs passed.

The authors' curves are not logged anywhere, and the paper prints none of their errors.
"""

import statistics
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.cells import CellStatus
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.numbers import document, epoch_table, search_table, seed_table
from nero.report.figures.panels import Curve, LogScale, Pair
from nero.report.tables.imagenet_settings import BASELINE, COLOURS, name
from nero.report.units import number, scale

TRAINING, VALIDATION = "train/error", paper.ERROR["key"]
IMAGENET = Pair(TRAINING, VALIDATION, "top-1 error (%)", "augmented", paper.IMAGENET_EPOCHS)

START = 5  # epochs: before that, few of the thousand classes are learnt
LEAST = 1.0  # per cent: a log scale has no zero
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
FINE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 70, 80, 100)
CLOSE = 4  # times the lowest value: up to there is room for the fine ticks
XTICKS = range(0, paper.IMAGENET_EPOCHS + 1, 15)
SCALE = LogScale(lambda low, high: FINE if high <= CLOSE * low else COARSE, (LEAST, 100), paper.IMAGENET_EPOCHS, START)

TARGET = (
    f"target: {paper.IMAGENET_TARGET:g} % ({100 - paper.IMAGENET_TARGET:g} % top-1), passed by the paper's {BASELINE}"
)
GREY = "#444444"

WIDTH, HEIGHT = 4.6, 3.6  # inches of a panel, with a legend of two lines
LINE = 0.15  # inches more for each further line
LONG = 24  # characters: longer names leave no room for a second column

EPOCHS = (1, 10, 30, 60, paper.IMAGENET_EPOCHS)
QUANTITY = "validation error (%)"
NOTES = (
    "Top-1 error (%) on the validation images / on the augmented training batches while the network learnt from them: "
    "each the mean over n seeds, at the only learning rate planned, or at the best of the search by the former."
)


@style.house_style()
def figure9(evidence: Evidence) -> Figure:
    """SGD with and without weight decay, Nero out of the box and tuned."""
    curves = _curves(evidence.states)
    columns = 1 if any(len(curve.name) > LONG for curve in curves) else 2
    further = max(0, -(-len(curves) // columns) - 2)
    title = "ImageNet (Figure 9): mean and range over seeds"
    figure, panels = style.panels(1, 2, title, (WIDTH, HEIGHT + LINE * further))
    IMAGENET.draw(panels, "ResNet-50", curves, evidence.curves, paper.imagenet())
    _draw_target(panels[1])
    for panel in panels:
        style.legend_below(panel, columns)  # replaces one that always has two columns
        panel.set_xticks(XTICKS)
        SCALE.fit([panel])
    return style.freeze_layout(figure)


def _curves(states: Iterable[CellState]) -> list[Curve]:
    """A curve for each cell on ImageNet, in the usual order of optimisers."""
    by_name = cells.unique_cells((state for state in states if state.cell.task == paper.IMAGENET), name)
    palette = style.palette(by_name, COLOURS)
    order = style.in_order(state.cell.optim for state in by_name.values())
    curves = [Curve(state, words, palette[words]) for words, state in by_name.items()]
    return sorted(curves, key=lambda curve: order.index(curve.cell.optim))


def _draw_target(axes: Axes) -> None:
    """Draw the target before the scale is fitted, so that it is visible; the label is below it, where curves end."""
    style.record(axes).rule = (paper.IMAGENET_TARGET, TARGET)
    ends = (0, paper.IMAGENET_EPOCHS)
    axes.plot(ends, [paper.IMAGENET_TARGET] * 2, style.TARGET, color=GREY, linewidth=0.7, zorder=1)
    below: Any = {"xytext": (0, -3), "textcoords": "offset points", "va": "top"}
    axes.annotate(TARGET, (0, paper.IMAGENET_TARGET), fontsize=6, color=GREY, **below)


def numbers(evidence: Evidence) -> str:
    """Both panels at some epochs, the final values of all seeds and of searches, and whether the target is met."""
    curves = _curves(evidence.states)
    states = [curve.state for curve in curves]
    cells.require_real(states)
    parts = [
        epoch_table("curve", curves, evidence.curves, (VALIDATION, TRAINING), EPOCHS),
        NOTES,
        seed_table(states, QUANTITY, VALIDATION, name),
    ]
    if searched := [state for state in states if len(state.search) > 1]:
        parts.append(search_table(searched, QUANTITY, VALIDATION, name=name))
    ours = (f"Ours with weight decay: {_verdict(state)}." for state in states if name(state.cell) == BASELINE)
    return document("Figure 9", *parts, "\n".join([paper.imagenet().remark, *ours]))


def _verdict(state: CellState) -> str:
    """Whether the mean over seeds meets the target, once all seeds are logged."""
    result = cells.read_cell(state)
    if result.status is not CellStatus.COMPLETE:
        return str(result.status)
    error = scale(VALIDATION) * statistics.fmean(result.finals)
    return f"{number(error)} %, {'passed' if error <= paper.IMAGENET_TARGET else 'not passed'}"
