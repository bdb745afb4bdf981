"""A log scale for panels over epochs: it shows what follows the first of them, and its ticks are plain numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import NullLocator

NOTHING_DRAWN = 10.0


@dataclass(frozen=True)
class LogScale:
    """From the least that is drawn to the tick above all, or a share, of what follows the first epochs.

    A curve that ends before that is in sight where it ends. Where all lie close together, there are three ticks still.
    """

    ladder: Callable[[float, float], Sequence[float]]  # ticks for values in a range; the last is the most that is shown
    bounds: tuple[float, float]  # of the least that is shown
    epochs: int  # of training; beyond them stand the paper's marks
    start: int  # first epochs, whose values may come in from above
    share: float = 1.0  # how much of each curve is in sight; what is higher runs out of the panel
    with_bars: bool = True  # whether the deviations of the paper's marks are all in sight

    def fit(self, panels: Sequence[Axes]) -> None:
        """One scale for all of them."""
        drawn = [points for axes in panels for points in self._drawn(axes)]
        least = min((value for points in drawn for value in points[:, 1] if value > 0), default=NOTHING_DRAWN)
        low = float(np.clip(least, *self.bounds)) / 1.15
        curves = any(points[0, 0] <= self.epochs for points in drawn)
        late = max(self._late(points) for points in drawn) if curves else np.inf
        ticks = [tick for tick in self.ladder(low, late) if tick > low]
        top = next(tick for tick in ticks if tick >= min(late, ticks[-1]))
        high = max(top, *ticks[:3])
        for axes in panels:
            # In this order: to work out limits of its own, the log axis would go beyond the largest of numbers.
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
        """The points (epoch, value) that each line, band and mark goes through, from the first epoch to the last."""
        shown = [c for c in axes.collections if self.with_bars or not isinstance(c, LineCollection)]
        paths = [path.vertices for collection in shown for path in collection.get_paths()]
        for path in [*(line.get_xydata() for line in axes.lines), *paths]:
            points = np.asarray(path)
            points = points[np.isfinite(points).all(axis=1)]
            if len(points):
                yield points[np.argsort(points[:, 0], kind="stable")]
