"""Panels: our curves, the authors' where they logged any, and the paper's final values in a strip beside them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from nero.plans.plan import Cell, CellState
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.curves import Notes, draw, draw_authors, precision_text, rate_text, select
from nero.report.units import number, scale

# As fractions of the training's length:
MARGIN = 0.015  # left and right of the curves
MARK_SPACING = 0.04  # between the paper's marks
TICKS = 4  # or a few more where the length is no multiple of this

MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")
NOTHING_DRAWN = 10.0


@dataclass(frozen=True)
class Curve:
    """A cell with its name and colour in the panels."""

    state: CellState
    name: str
    colour: str

    @property
    def cell(self) -> Cell:
        return self.state.cell


def by_optimizer(states: Iterable[CellState], optimizer: Callable[[Cell], str]) -> list[Curve]:
    """Curves in the usual order and colours of optimisers. Two of one optimiser need different labels."""
    unique = cells.unique_cells(states, lambda cell: (optimizer(cell), cell.label))
    order = style.in_order(optim for optim, _ in unique)
    by_name = {
        cells.labelled(style.name(optim), state.cell): state
        for (optim, _), state in sorted(unique.items(), key=lambda item: order.index(item[0][0]))
    }
    palette = style.palette(by_name, dict(style.OPTIMS.values()))
    return [Curve(state, name, palette[name]) for name, state in by_name.items()]


def curves_of_task(task: str, states: Iterable[CellState]) -> list[Curve]:
    """A curve for each optimiser of an experiment on this task."""
    return by_optimizer((state for state in states if state.cell.task == task), lambda cell: cell.optim)


def precision_of(curves: Sequence[Curve]) -> str:
    """The precision of most curves, such as " (TF32)". The legend marks those with another."""
    usual = cells.usual_precision(curve.cell for curve in curves)
    return f" ({style.precision(usual)})" if usual else ""


@dataclass(frozen=True)
class XAxis:
    """What a panel's x axis shows, up to the end of training."""

    column: str  # of the frame
    label: str
    end: int


@dataclass(frozen=True)
class Pair:
    """What a row of two panels shows against the epoch: training on the left, validation on the right."""

    training: str  # keys in the log
    validation: str
    quantity: str  # with its unit
    conditions: str  # of the training batches that the training value is measured on
    epochs: int

    def draw(
        self,
        panels: Sequence[Axes],
        title: str,
        curves: Sequence[Curve],
        frame: pd.DataFrame,
        published: paper.Published,
        authors: pd.DataFrame | None = None,
    ) -> None:
        """Draw the row, with the paper's final values on the right; titles state the precision."""
        left, right = panels
        title += precision_of(curves)
        x = XAxis("epoch", "epoch", self.epochs)
        ylabel = f"training {self.quantity} during the epoch\n({self.conditions})"
        draw_panel(left, self.training, x, f"{title}, training", ylabel, curves, frame, authors=authors)
        ylabel = f"validation {self.quantity}"
        draw_panel(right, self.validation, x, f"{title}, validation", ylabel, curves, frame, published, authors)


def draw_panel(
    axes: Axes,
    key: str,
    x: XAxis,
    title: str,
    ylabel: str,
    curves: Sequence[Curve],
    frame: pd.DataFrame,
    published: paper.Published | None = None,
    authors: pd.DataFrame | None = None,
) -> None:
    """Draw what is logged under `key`, the paper's final values, and the authors' curves under the same keys."""
    cells.require_real(curve.state for curve in curves)
    lines = _draw_ours(axes, key, x, curves, frame, title)
    dashed = _draw_authors(axes, key, curves, authors)
    axes.set_ylabel(ylabel)
    marks = _draw_marks(axes, x.end, curves, published)
    # A curve of the authors ends at their mark: one legend entry, with the mark's label, stands for both.
    theirs: list[Any] = [both if all(both) else both[1] or both[0] for both in zip(dashed, marks, strict=True)]
    # The legend has two columns: our entries beside the paper's, also where some are missing.
    if not any(lines):
        style.legend_below(axes, handles=[handle for handle in theirs if handle])
    elif any(theirs):
        style.legend_below(axes, handles=[handle or BLANK for handle in (*lines, *theirs)])
    else:
        style.legend_below(axes)


def _draw_ours(
    axes: Axes, key: str, x: XAxis, curves: Sequence[Curve], frame: pd.DataFrame, title: str
) -> list[Line2D | None]:
    """A line for each curve, or None without runs; notes below the title say what is missing or diverged."""
    notes = Notes()
    lines = []
    usual = cells.usual_precision(curve.cell for curve in curves)
    for curve in curves:
        ours = select(curve.state, frame, key, curve.name, notes)
        label = f"{curve.name}{rate_text(curve.state.leading_lr)}{precision_text(curve.cell, usual)}"
        planned = len(curve.cell.seeds)
        lines.append(draw(axes, ours, x.column, scale(key), curve.colour, curve.name, label, planned=planned))
    margin = MARGIN * x.end
    axes.set(xlabel=x.label, xlim=(-margin, x.end + margin))
    axes.set_xticks(range(0, x.end + 1, x.end // TICKS))
    style.set_title(axes, title, notes.lines())
    return lines


def _draw_authors(axes: Axes, key: str, curves: Sequence[Curve], authors: pd.DataFrame | None) -> list[Line2D | None]:
    """The authors' line for each curve, or None where they logged none."""
    if authors is None:
        return [None] * len(curves)
    first = {curve.cell.optim: curve for curve in reversed(curves)}
    palette = {optim: curve.colour for optim, curve in first.items()}
    lines = draw_authors(axes, authors[(authors.key == key) & authors.optim.isin(palette)], scale(key), palette)
    return [lines.get(curve.cell.optim) if curve is first[curve.cell.optim] else None for curve in curves]


def _draw_marks(
    axes: Axes, end: int, curves: Sequence[Curve], published: paper.Published | None
) -> list[ErrorbarContainer | None]:
    """The paper's mean ± deviation at the end of training, in a strip to the right of all curves."""
    spacing = MARK_SPACING * end
    results = published.results if published else {}
    seen = set()  # several curves may have the same result: the first gets the mark
    marks: list[ErrorbarContainer | None] = []
    place = 0
    for curve in curves:
        key = paper.key(curve.cell)
        result = None if key in seen else results.get(key)
        seen.add(key)
        if result is None:
            marks.append(None)
            continue
        place += 1
        label = f"{curve.name}, paper: {number(result.mean)} ± {number(result.std)}{rate_text(result.lr)}"
        look = {"color": style.darker(curve.colour), "ecolor": curve.colour, **MARK}
        marks.append(axes.errorbar(end + spacing * place, result.mean, result.std, label=label, **look))
        style.record(axes).marks.append(style.Mark(curve.name, label, curve.colour, result.mean, result.std))
    if place:
        left, right = (end + spacing * edge for edge in (0.5, place + 0.5))
        axes.axvspan(left, right, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate("paper", ((left + right) / 2, 0.98), xycoords=axes.get_xaxis_transform(), ha="center", va="top")
        axes.set_xlim(right=right)
    return marks


@dataclass(frozen=True)
class LogScale:
    """A log scale for panels over epochs, from the lowest value to the tick above what follows the first epochs.

    A curve that ends before that is visible where it ends. There are at least three ticks, which are plain numbers.
    """

    ticks: Callable[[float, float], Sequence[float]]  # for a range of values; the last is the highest shown
    bounds: tuple[float, float]  # of the lowest value shown
    epochs: int  # of training; the paper's marks lie beyond
    start: int  # first epochs, whose values may lie above the panel
    share: float = 1.0  # of each curve that is visible; higher values leave the panel
    with_bars: bool = True  # whether the deviations of the paper's marks are fully visible

    def fit(self, panels: Sequence[Axes]) -> None:
        """Set one scale for all these panels."""
        drawn = [points for axes in panels for points in self._drawn(axes)]
        least = min((value for points in drawn for value in points[:, 1] if value > 0), default=NOTHING_DRAWN)
        low = float(np.clip(least, *self.bounds)) / 1.15
        curves = any(points[0, 0] <= self.epochs for points in drawn)
        late = max(self._late(points) for points in drawn) if curves else np.inf
        ticks = [tick for tick in self.ticks(low, late) if tick > low]
        top = next(tick for tick in ticks if tick >= min(late, ticks[-1]))
        high = max(top, *ticks[:3])
        for axes in panels:
            # In this order: automatic limits of a log axis would overflow.
            axes.set(ylim=(low, high))
            axes.set(yscale="log")
            axes.set_yticks([tick for tick in ticks if tick <= high])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_locator(NullLocator())

    def _late(self, points: np.ndarray) -> float:
        """How high the scale has to go for a curve."""
        epochs, values = points.T
        end = values[epochs == epochs[-1]].max()
        return float(max(end, np.quantile(values[epochs >= min(self.start + 1, epochs[-1])], self.share)))

    def _drawn(self, axes: Axes) -> Iterator[np.ndarray]:
        """The points (epoch, value) of each line, band and mark, by epoch."""
        shown = [c for c in axes.collections if self.with_bars or not isinstance(c, LineCollection)]
        paths = [path.vertices for collection in shown for path in collection.get_paths()]
        for path in [*(line.get_xydata() for line in axes.lines), *paths]:
            points = np.asarray(path)
            points = points[np.isfinite(points).all(axis=1)]
            if len(points):
                yield points[np.argsort(points[:, 0], kind="stable")]
