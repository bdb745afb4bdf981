"""The contents of a figure's panels as plain data, for the charts of the page."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.report.figures import style
from nero.report.figures.style import RecordedAxes, Series

DASHES = {style.OURS: "solid", style.THEIRS: "dashed", style.VARIANT: "dotted"}
DIGITS = 6
"""Significant digits: more than a screen shows, and a third of the size of full floats."""

MOST_POINTS = 1000
"""Of a curve: more than a screen has room for. Longer curves keep every k-th point and the last."""


def figure_data(figure: Figure) -> dict[str, Any]:
    return {"panels": [_panel(axes) for axes in figure.axes if isinstance(axes, RecordedAxes)]}


def numbers(values: np.ndarray) -> list[float | None]:
    """Rounded to DIGITS for JSON; values that are not finite become null."""
    usual = (np.abs(values) >= 1e-12) & (np.abs(values) < 1e16)
    safe = np.where(usual, values, 1.0)
    places = DIGITS - 1 - np.floor(np.log10(np.abs(safe))).astype(int)
    # Multiply or divide by integer powers of ten: others are inexact, which would show in the last digit.
    up, down = 10.0 ** np.clip(places, 0, None), 10.0 ** np.clip(-places, 0, None)
    rounded = (np.round(safe / down * up) / up * down).tolist()
    return [near if is_usual else _number(value) for near, is_usual, value in zip(rounded, usual, values, strict=True)]


def _number(value: float) -> float | None:
    """The same for any number, more slowly."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def thinned(count: int) -> np.ndarray:
    """Indices of the points to keep."""
    step = max(1, -(-count // MOST_POINTS))
    return np.unique([*range(0, count, step), *range(count)[-1:]]).astype(int)


def _panel(axes: RecordedAxes) -> dict[str, Any]:
    shown = axes.record
    return {
        "title": shown.title,
        "notes": list(shown.notes),
        "xlabel": axes.get_xlabel(),
        "ylabel": " ".join(axes.get_ylabel().split()),
        "xlim": _extent(shown.series) or list(map(float, axes.get_xlim())),
        "ylim": list(map(float, axes.get_ylim())),
        "yscale": axes.get_yscale(),
        "yticks": _ticks(axes),
        "series": [_series(series) for series in shown.series],
        "marks": [asdict(mark) for mark in shown.marks],
        **({"rule": {"at": shown.rule[0], "label": shown.rule[1]}} if shown.rule else {}),
    }


def _extent(series: list[Series]) -> list[float] | None:
    drawn = [each.x for each in series if len(each.x)]
    return [float(min(x[0] for x in drawn)), float(max(x[-1] for x in drawn))] if drawn else None


def _ticks(axes: Axes) -> list[list[Any]]:
    low, high = axes.get_ylim()
    places = [float(place) for place in axes.get_yticks() if low <= place <= high]
    return [[place, f"{place:g}"] for place in places]


def _series(series: Series) -> dict[str, Any]:
    kept = thinned(len(series.x))
    drawn = {"x": series.x, "mean": series.mean, "low": series.low, "high": series.high}
    return {
        "label": series.label,
        "group": series.group,
        "colour": series.colour,
        "dash": DASHES[series.linestyle],
        "whose": "authors" if series.linestyle == style.THEIRS else "ours",
        **{name: numbers(values[kept]) for name, values in drawn.items() if values is not None},
        "runs": list(series.runs),
    }
