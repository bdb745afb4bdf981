"""Panels: our curves, the authors' where they logged any, and the paper's final values in a strip beside them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.curves import Curve, draw_authors, draw_curves, rate_text
from nero.report.units import number, scale

# As fractions of the training's length:
MARGIN = 0.015  # left and right of the curves
MARK_SPACING = 0.04  # between the paper's marks
TICKS = 4  # or a few more where the length is no multiple of this

MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")
NOTHING_DRAWN = 10.0


def precision_of(curves: Sequence[Curve]) -> str:
    """The precision of most curves, such as " (TF32)". The legend marks those with another."""
    usual = cells.usual_precision(curve.state for curve in curves)
    return f" ({style.precision(usual)})" if usual else ""


class Pair(NamedTuple):
    """A row of two panels against the epoch: training on the left, validation on the right."""

    name: str
    curves: Sequence[Curve]
    quantity: str  # with its unit
    key: str  # in the log, after "train/" and "val/"
    conditions: str  # of the training batches that the training value is measured on


def pair_figure(
    title: str,
    rows: Sequence[Pair],
    frame: pd.DataFrame,
    log_scale: "LogScale",
    published: paper.Published,
    authors: pd.DataFrame | None = None,
    size: tuple[float, float] = style.PANEL,
) -> tuple[Figure, list[Axes]]:
    """A figure of such rows, with the paper's final values on the right, before its scales are fitted."""
    figure, panels = style.panels(len(rows), 2, title, size)
    for row, left, right in zip(rows, panels[::2], panels[1::2], strict=True):
        name, end = row.name + precision_of(row.curves), log_scale.epochs
        draw_panel(left, f"train/{row.key}", f"{name}, training", row.curves, frame, end, authors=authors)
        left.set_ylabel(f"training {row.quantity} during the epoch\n({row.conditions})")
        draw_panel(right, f"val/{row.key}", f"{name}, validation", row.curves, frame, end, published, authors)
        right.set_ylabel(f"validation {row.quantity}")
    return figure, panels


def draw_panel(
    axes: Axes,
    key: str,
    title: str,
    curves: Sequence[Curve],
    frame: pd.DataFrame,
    end: int,
    published: paper.Published | None = None,
    authors: pd.DataFrame | None = None,
    x: str = "epoch",
) -> None:
    """Draw what is logged under `key`, the paper's final values, and the authors' curves under the same key.

    `x` is the column of the frame on the x axis, which goes to the `end` of training.
    """
    cells.require_real(curve.state for curve in curves)
    lines = draw_curves(axes, title, curves, frame, key, x)
    axes.set(xlabel="epoch", xlim=(-MARGIN * end, end + MARGIN * end), xticks=range(0, end + 1, end // TICKS))
    dashed: dict[str, Line2D | None] = {}
    if authors is not None:
        palette = {curve.cell.optim: curve.colour for curve in reversed(curves)}
        dashed = draw_authors(axes, authors[(authors.key == key) & authors.optim.isin(palette)], scale(key), palette)
    marks = _draw_marks(axes, end, curves, published)
    # The first curve of an optimiser has the authors' line. That ends at the mark: one legend entry, with the mark's
    # label, stands for both.
    theirs: list[Any] = []
    for curve, mark in zip(curves, marks, strict=True):
        line = dashed.pop(curve.cell.optim, None)
        theirs.append((line, mark) if line and mark else mark or line)
    # The legend has two columns: our entries beside the paper's, also where some are missing.
    if not any(lines):
        style.legend_below(axes, handles=[handle for handle in theirs if handle])
    elif any(theirs):
        style.legend_below(axes, handles=[handle or BLANK for handle in (*lines, *theirs)])
    else:
        style.legend_below(axes)


def _draw_marks(
    axes: Axes, end: int, curves: Sequence[Curve], published: paper.Published | None
) -> list[ErrorbarContainer | None]:
    """The paper's mean ± deviation at the end of training, in a strip to the right of all curves."""
    spacing = MARK_SPACING * end
    results = dict(published.results) if published else {}
    marks: list[ErrorbarContainer | None] = []
    place = 0
    for curve in curves:
        result = results.pop(paper.key(curve.cell), None)  # of several curves with one result the first gets the mark
        if result is None:
            marks.append(None)
            continue
        place += 1
        label = f"{curve.name}, paper: {number(result.mean)} ± {number(result.std)}{rate_text(result.lr)}"
        look = {"color": style.darker(curve.colour), "ecolor": curve.colour, **MARK}
        marks.append(axes.errorbar(end + spacing * place, result.mean, result.std, label=label, **look))
        shown = {"group": curve.name, "label": label, "colour": curve.colour, "mean": result.mean, "std": result.std}
        style.record(axes).marks.append(shown)
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
    most: float = np.inf  # the highest tick, or three times the lowest value where that is more

    def fit_each(self, figure: Figure, panels: Sequence[Axes]) -> Figure:
        """Set a scale for each panel, and fix the layout."""
        for axes in panels:
            self.fit([axes])
        return style.freeze_layout(figure)

    def fit(self, panels: Sequence[Axes]) -> None:
        """Set one scale for all these panels."""
        drawn = [points for axes in panels for points in self._drawn(axes)]
        least = min((value for points in drawn for value in points[:, 1] if value > 0), default=NOTHING_DRAWN)
        low = float(np.clip(least, *self.bounds)) / 1.15
        curves = any(points[0, 0] <= self.epochs for points in drawn)
        most = max(self.most, 3 * low)
        late = min(most, max(self._late(points) for points in drawn)) if curves else most
        ticks = [tick for tick in self.ticks(low, late) if low < tick <= most]
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
