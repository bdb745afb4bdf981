"""Figure 9: training and validation error of ResNet-50 on ImageNet, and the target that one of the paper's runs passed.

`pipeline` draws the same settings on CIFAR-10. The authors' curves are not logged anywhere, and the paper prints none
of their errors.
"""

import statistics
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.cells import CellStatus
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import Curve, named_curves
from nero.report.figures.numbers import epochs, numbers_of_curves
from nero.report.figures.panels import Pair, pair_figure
from nero.report.figures.scales import LogScale
from nero.report.tables.listings import BASELINE, OOTB, curve_name
from nero.report.units import number, scale

TRAINING, VALIDATION = "train/error", paper.ERROR["key"]

START = 5  # epochs: before that, few of the thousand classes are learnt
LEAST = 1.0  # per cent: a log scale has no zero
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
FINE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 70, 80, 100)
CLOSE = 4  # times the lowest value: up to there is room for the fine ticks
XTICKS = range(0, paper.IMAGENET_EPOCHS + 1, 15)
SCALE = LogScale(lambda low, high: FINE if high <= CLOSE * low else COARSE, (LEAST, 100), paper.IMAGENET_EPOCHS, START)

COLOURS = {OOTB: style.COLOURS["nero"], BASELINE: style.VARIANTS[1]}  # by name, beside those of optimisers

TARGET = (
    f"target: {paper.IMAGENET_TARGET:g} % ({100 - paper.IMAGENET_TARGET:g} % top-1), passed by the paper's {BASELINE}"
)

LINE = 0.15  # inches that a panel is higher for each line of its legend beyond two
LONG = 24  # characters: longer names leave no room for a second column

QUANTITY = "validation error (%)"
NOTES = (
    "Top-1 error (%) on the validation images / on the augmented training batches while the network learnt from them: "
    "each the mean over n seeds, at the only learning rate planned, or at the best of the search by the former."
)


@style.house_style()
def figure9(evidence: Evidence) -> Figure:
    """SGD with and without weight decay, Nero out of the box and tuned."""
    figure, panels = _panels(evidence, paper.IMAGENET, "ImageNet (Figure 9)")
    # The target is drawn before the scale is fitted, so that it is visible; its label is below it, where curves end.
    axes, target = panels[1], paper.IMAGENET_TARGET
    style.record(axes).rule = (target, TARGET)
    axes.plot((0, paper.IMAGENET_EPOCHS), (target, target), style.TARGET, color=style.GREY, linewidth=0.7, zorder=1)
    axes.annotate(
        TARGET.replace(", ", ",\n"),
        (0, target),
        (0, -3),
        textcoords="offset points",
        va="top",
        fontsize=style.SMALL_SIZE,
        color=style.GREY,
    )
    return SCALE.fit_each(figure, panels)


@style.house_style()
def pipeline(evidence: Evidence) -> Figure:
    """The same four settings on CIFAR-10 as JPEG files, which is not in the paper."""
    return SCALE.fit_each(*_panels(evidence, paper.IMAGENET_STAND_IN, evidence.experiment.title))


def _panels(evidence: Evidence, task: str, title: str) -> tuple[Figure, list[Axes]]:
    """Training and validation of the cells on one task, before the scale is fitted."""
    curves = _curves(evidence.states, task)
    columns = 1 if any(len(curve.name) > LONG for curve in curves) else 2
    further = max(0, -(-len(curves) // columns) - 2)
    width, height = style.PANEL
    rows, size = [Pair("ResNet-50", curves, "top-1 error (%)", "error", "augmented")], (width, height + LINE * further)
    figure, panels = pair_figure(title, rows, evidence.curves, SCALE, size=size)
    for panel in panels:
        style.legend_below(panel, columns)  # replaces one that always has two columns
        panel.set_xticks(XTICKS)
    return figure, panels


def _curves(states: Iterable[CellState], task: str = paper.IMAGENET) -> list[Curve]:
    """A curve for each cell on the task, in the usual order of optimisers."""
    named = cells.unique_cells((state for state in states if state.cell.task == task), curve_name)
    order = style.in_order(state.cell.optim for state in named.values())
    return sorted(named_curves(named, style.named_colours() | COLOURS), key=lambda curve: order.index(curve.cell.optim))


def numbers(evidence: Evidence) -> str:
    """Both panels at some epochs, the final values of all seeds and of searches, and whether the target is met."""
    curves, keys = _curves(evidence.states), (VALIDATION, TRAINING)
    points = epochs(1, 10, 30, 60, paper.IMAGENET_EPOCHS)
    ours = (f"Ours with weight decay: {_verdict(curve.state)}." for curve in curves if curve.name == BASELINE)
    remarks = "\n".join([paper.imagenet().remark, *ours])
    return numbers_of_curves("Figure 9", "curve", curves, evidence.curves, keys, points, NOTES, QUANTITY, remarks)


def _verdict(state: CellState) -> str:
    """Whether the mean over seeds meets the target, once all seeds are logged."""
    if cells.status(state) is not CellStatus.COMPLETE:
        return str(cells.status(state))
    error = scale(VALIDATION) * statistics.fmean(run["final"] for run in cells.leading_runs(state))
    return f"{number(error)} %, {'passed' if error <= paper.IMAGENET_TARGET else 'not passed'}"
