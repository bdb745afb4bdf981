"""Scales of the y axis: from the lowest value to what a curve reaches after its first epochs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from nero.report.figures.finishing import finish

NOTHING_DRAWN = 10.0
# Largest ratio of highest to lowest value -> ticks of each decade.
TICKS = (
    (3, (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)),
    (10, (1, 1.5, 2, 3, 5, 7)),
    (1000, (1, 2, 5)),
    (math.inf, (1,)),
)


def plain_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a log axis: the more, the shorter it is."""
    ticks = next(ticks for ratio, ticks in TICKS if high <= ratio * low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    return [tick * 10.0**decade for decade in decades for tick in ticks]


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
        return finish(figure)

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
            _mark_cut_bars(axes)

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


def _mark_cut_bars(axes: Axes) -> None:
    """An arrow at the end of the panel for a deviation of the paper's that goes on beyond it."""
    for bar in axes.containers:
        line, _, (stem,) = bar
        [(x, _)] = line.get_xydata()
        (_, low), (_, high) = stem.get_segments()[0]
        for end, cut, marker in zip(
            axes.get_ylim(), (low < axes.get_ylim()[0], high > axes.get_ylim()[1]), "v^", strict=True
        ):
            if cut:
                axes.plot(x, end, marker, color=stem.get_color()[0], markersize=6, clip_on=False, zorder=3)
