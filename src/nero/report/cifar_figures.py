"""Figures 1, 2 and 5: training and validation error on CIFAR-10, the paper's final errors beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from nero.plans.plan import CellState
from nero.report import cells, paper, style
from nero.report.constraints import base, kept
from nero.report.drawing import Notes, draw, of_cell, rate_text
from nero.report.units import number, scale

TRAINING, VALIDATION = "train/error", paper.ERROR["key"]

NETWORKS = {
    paper.VGG11: ("VGG-11", "augmented, dropout on"),
    paper.RESNET18: ("ResNet-18", "augmented"),
}
"""Task -> its network, and how it saw the images of its training error: as they came in the epoch's batches."""

START = 5  # epochs of warm-up: the scale is that of what follows, and first values come in from above
EVERY = 50  # epochs between ticks
APART = 8  # epochs between the paper's marks
MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")
LEAST = 0.01  # per cent, 5 of the 50,000 training images: a zero has no place on a log scale
COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 50, 70, 100)


@dataclass(frozen=True)
class Curve:
    """A cell and how its panels show it."""

    state: CellState
    name: str
    colour: str

    @property
    def label(self) -> str:
        return f"{self.name}{rate_text(self.state.leading_lr)}"


@style.house_style()
def figure1(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 1: VGG-11, Nero with either constraint on and off."""
    published = paper.ablation()
    swept = [state for state in states if state.cell.variant and paper.key(state.cell) in published.results]
    ablated = cells.one_each(swept, kept)
    shown = [Curve(ablated[halves], *look) for halves, look in style.CONSTRAINTS.items() if halves in ablated]
    figure, panels = style.panels(1, 2, "Nero's constraints, VGG-11 on CIFAR-10 (Figure 1): mean and range over seeds")
    _row(panels, paper.VGG11, "Nero's constraints", shown, curves, published)
    _scale(panels[:1])
    _scale(panels[1:])
    return style.settle(figure)


@style.house_style()
def figure2(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 2: VGG-11, relative updates per neuron, layer and synapse. Top: without constraints. Bottom: with both."""
    title = "Relative updates, VGG-11 on CIFAR-10 (Figure 2): mean and range over seeds"
    figure, panels = style.panels(2, 2, title)
    rows = (("Without constraints", (False, False)), ("With both constraints", (True, True)))
    for place, (heading, constraints) in enumerate(rows):
        shown = _optimisers(cells.one_each((state for state in states if kept(state.cell) == constraints), base))
        _row(panels[2 * place : 2 * place + 2], paper.VGG11, heading, shown, curves, paper.ablation())
    _scale(panels[::2])  # the rows are to be compared
    _scale(panels[1::2])
    return style.settle(figure)


@style.house_style()
def figure5(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 5: VGG-11 (top) and ResNet-18 (bottom), each optimiser at its best learning rate."""
    figure, panels = style.panels(len(NETWORKS), 2, "CIFAR-10 (Figure 5): mean and range over seeds")
    for place, (task, (network, _)) in enumerate(NETWORKS.items()):
        of_task = (state for state in states if state.cell.task == task)
        shown = _optimisers(cells.one_each(of_task, lambda cell: cell.optim))
        row = panels[2 * place : 2 * place + 2]
        _row(row, task, network, shown, curves, paper.table1())
        for panel in row:
            _scale([panel])
    return style.settle(figure)


def _optimisers(states: dict[str, CellState]) -> list[Curve]:
    """In house order; each in its own colour, whatever it is constrained to."""
    palette = style.colours(states)
    return [Curve(states[optim], style.name(optim), palette[optim]) for optim in style.in_order(states)]


def _row(
    panels: Sequence[Axes],
    task: str,
    heading: str,
    shown: Sequence[Curve],
    curves: pd.DataFrame,
    published: paper.Published,
) -> None:
    """Training error on the left, validation error on the right, and there the paper's; both say in what arithmetic."""
    cells.require_real(curve.state for curve in shown)
    left, right = panels
    heading += _arithmetic(shown)
    _ours(left, TRAINING, shown, curves, f"{heading}, training")
    left.set_ylabel(f"training error (%) as it ran\n({NETWORKS[task][1]})")
    style.legend_below(left)
    lines = _ours(right, VALIDATION, shown, curves, f"{heading}, validation")
    right.set_ylabel("validation error (%)")
    marks = _published(right, shown, published)
    # In a legend of two columns, what is ours stands beside what is the paper's, also where some are missing.
    beside = [line or BLANK for line in lines] if any(lines) else []
    style.legend_below(right, handles=[*beside, *(mark or BLANK for mark in marks)] if any(marks) else None)


def _arithmetic(shown: Sequence[Curve]) -> str:
    """Such as " (TF32)"."""
    asked = {cells.precision(curve.state.cell) for curve in shown}
    named = [name for precision, name in style.PRECISIONS.items() if precision in asked]
    return f" ({', '.join(named)})" if named else ""


def _ours(axes: Axes, key: str, shown: Sequence[Curve], curves: pd.DataFrame, title: str) -> list[Line2D | None]:
    """A line for each curve, None for one without runs; what is missing or diverged is said below the title."""
    notes = Notes()
    lines = []
    for curve in shown:
        ours = of_cell(curve.state, curves, key, curve.name, notes)
        planned = len(curve.state.cell.seeds)
        lines.append(draw(axes, ours, "epoch", scale(key), curve.colour, curve.label, planned=planned))
    axes.set(xlabel="epoch", xlim=(-3, paper.CIFAR10_EPOCHS + 3))
    axes.set_xticks(range(0, paper.CIFAR10_EPOCHS + 1, EVERY))
    style.head(axes, title, notes.lines())
    return lines


def _published(axes: Axes, shown: Sequence[Curve], published: paper.Published) -> list[ErrorbarContainer | None]:
    """The paper's mean ± deviation after its last epoch, in a strip of their own, where no curve of ours runs."""
    marks: list[ErrorbarContainer | None] = []
    for place, curve in enumerate(shown, start=1):
        result = published.results.get(paper.key(curve.state.cell))
        if result is None:
            marks.append(None)
            continue
        label = f"{curve.name}, paper: {number(result.mean)} ± {number(result.std)}{rate_text(result.lr)}"
        look = {"color": style.darker(curve.colour), "ecolor": curve.colour, **MARK}
        at = paper.CIFAR10_EPOCHS + APART * place
        marks.append(axes.errorbar(at, result.mean, result.std, label=label, **look))
    if any(marks):
        begin, end = (paper.CIFAR10_EPOCHS + APART * place for place in (0.5, len(marks) + 0.5))
        axes.axvspan(begin, end, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate("paper", ((begin + end) / 2, 0.98), xycoords=axes.get_xaxis_transform(), ha="center", va="top")
        axes.set_xlim(right=end)
    return marks


def _scale(panels: Sequence[Axes]) -> None:
    """One log scale for all of them: from the least that is drawn to the tick above all that follows the first epochs.

    A curve that ends before that is in sight where it ends. Where all lie close together, there are three ticks still.
    """
    drawn = [points for axes in panels for points in _drawn(axes)]
    least = min((error for points in drawn for error in points[:, 1] if error > 0), default=10.0)
    low = max(LEAST, least) / 1.15
    late = [points[points[:, 0] >= min(START + 1, points[-1, 0]), 1].max() for points in drawn]
    curves = any(points[0, 0] <= paper.CIFAR10_EPOCHS for points in drawn)
    ticks = [tick for tick in (FINE if low >= FINE[0] else COARSE) if tick > low]
    top = next(tick for tick in ticks if tick >= min(max(late), ticks[-1])) if curves else ticks[-1]
    high = max(top, *ticks[:3])
    for axes in panels:
        axes.set(yscale="log", ylim=(low, high))
        axes.set_yticks([tick for tick in ticks if tick <= high])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _drawn(axes: Axes) -> Iterator[np.ndarray]:
    """The points (epoch, error) that each line, band and mark goes through, from the first epoch to the last."""
    paths = [path.vertices for collection in axes.collections for path in collection.get_paths()]
    for points in [*(line.get_xydata() for line in axes.lines), *paths]:
        yield np.asarray(points)[np.argsort(np.asarray(points)[:, 0], kind="stable")]
