"""Read back what a drawn panel shows, for tests of figures."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.lines import Line2D

from nero.report.figures import style

OURS, AUTHORS, VARIANT = "-", "--", ":"


def lines(axes: Axes, linestyle: str = OURS) -> dict[str, np.ndarray]:
    """Points of each line, keyed by its label up to the first comma."""
    return {_name(line): line.get_xydata() for line in _lines(axes, linestyle)}


def labels(axes: Axes, linestyle: str = OURS) -> list[str]:
    return [str(line.get_label()) for line in _lines(axes, linestyle)]


def colours(axes: Axes, linestyle: str = OURS) -> dict[str, str]:
    return {_name(line): str(line.get_color()) for line in _lines(axes, linestyle)}


def bands(axes: Axes) -> list[np.ndarray]:
    """The vertices of each shaded band; the parts of a band with gaps are joined."""
    found = [c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]
    return [np.concatenate([path.vertices for path in band.get_paths()]) for band in found]


def band_at(band: np.ndarray, epoch: int) -> tuple[float, float]:
    values = band[band[:, 0] == epoch, 1]
    return values.min(), values.max()


def marks(axes: Axes) -> dict[str, tuple[float, float, float, float]]:
    """The paper's marks by name: epoch, mean and both ends of the error bar."""
    found = {}
    for bar in axes.containers:
        point, _, (stem,) = bar
        [(x, y)] = point.get_xydata()
        (_, low), (_, high) = stem.get_segments()[0]
        found[str(bar.get_label()).split(",")[0]] = (x, y, low, high)
    return found


def face(axes: Axes) -> str:
    """The title, and the notes on it in the figure's caption."""
    shown = style.record(axes)
    return " ".join([shown.title, *shown.notes])


def _lines(axes: Axes, linestyle: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_linestyle() == linestyle]


def _name(line: Line2D) -> str:
    return str(line.get_label()).split(",")[0]
