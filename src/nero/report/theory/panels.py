"""What the theory's figures have in common: lines with bands over groups of records, panels by task and optimiser."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogFormatter

from nero.report import cells
from nero.report.figures import style
from nero.report.figures.recorded import Series, record
from nero.report.theory.evidence import Evidence, Group, rows

# Inches of a panel, words included
SMALL = (3.7, 3.4)
LARGE = (4.6, 3.6)
TALL = (4.6, 4.4)  # with a long legend
LETTERS_AN_INCH = 13  # of a figure's title
LETTERS = 44  # of a small panel's title in a line
LETTERS_OF_TALL = 54
Draw = Callable[[Axes, Group, str], Iterable[str]]
"""Draws a group in a panel, in a colour, and returns what is to be said of it below the title."""

DrawTask = Callable[[Axes, Sequence[Group], Mapping[str, str]], Iterable[str]]
"""The same with all groups of a panel, in colours by their labels."""

Values = Sequence[float | None]


def band(
    axes: Axes,
    x: Sequence[float],
    middle: Values,
    ends: tuple[Values, Values] | None,
    colour: str,
    group: Group,
    label: str,
    linestyle: str = style.OURS,
    marker: str = "",
    width: float = 1.2,
) -> None:
    """A line and, where there are ends, a band between them; a gap where a number is null."""
    at, line = np.asarray(x, dtype=float), numbers(middle)
    if not np.isfinite(line).any():
        return
    axes.plot(at, line, linestyle, color=colour, label=label, marker=marker, markersize=3, linewidth=width)
    low = high = None
    if ends is not None:
        low, high = map(numbers, ends)
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    runs = tuple(of_seed["run_id"] for of_seed in group.records)
    record(axes).series.append(Series(group.label, label, colour, linestyle, at, line, low, high, runs))


def numbers(values: Values) -> np.ndarray:
    """Null as NaN."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def positive(values: np.ndarray | Values) -> list[float | None]:
    """What a log axis can show; the rest null."""
    return [None if value is None or not value > 0 else float(value) for value in values]


def colours(groups: Sequence[Group]) -> dict[str, str]:
    """By a group's label: its optimiser's colour, and others for further learning rates of the same one."""
    palette = style.colours(group.optim for group in groups)
    found: dict[str, str] = {}
    spare = iter([*style.OTHERS, *style.VARIANTS] * len(groups))
    seen = set()
    for group in groups:
        if group.label not in found:
            found[group.label] = palette[group.optim] if group.optim not in seen else next(spare)
            seen.add(group.optim)
    return found


def empty(
    evidence: Evidence, title: str, down: int, across: int, size: tuple[float, float] = LARGE
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row, with a title in as many lines as its width takes."""
    figure, axes = style.panels(down, across, "", size)
    letters = int(LETTERS_AN_INCH * size[0] * across)
    wrapped = [line for part in evidence.title(title).split("\n") for line in textwrap.wrap(part, letters)]
    figure.suptitle("\n".join(wrapped), fontsize=10)
    return figure, axes


def by_optimiser(evidence: Evidence, title: str, groups: Sequence[Group], draw: Draw) -> Figure:
    """A row per task and variant, with a panel per optimiser and one scale for all of them."""
    by_row = rows(groups)
    across = max(len(of_row) for of_row in by_row.values())
    figure, axes = empty(evidence, title, len(by_row), across, SMALL)
    for place, (row, of_row) in enumerate(by_row.items()):
        palette = colours(of_row)
        panels = axes[across * place : across * (place + 1)]
        for panel, group in zip(panels, of_row, strict=False):
            notes = draw(panel, group, palette[group.label])
            style.head(panel, f"{group.label} ({cells.row_text(row)})", notes, LETTERS)
            style.legend_below(panel)
        one_scale(panels[: len(of_row)])
        for spare in panels[len(of_row) :]:
            spare.remove()
    return style.settle(figure)


def by_task(
    evidence: Evidence,
    title: str,
    groups: Sequence[Group],
    draw: DrawTask,
) -> Figure:
    """A panel per task and variant, with all optimisers in it."""
    by_row = rows(groups)
    across = min(len(by_row), 3)
    figure, axes = empty(evidence, title, -(-len(by_row) // across), across, TALL)
    for panel, (row, of_row) in zip(axes, by_row.items(), strict=False):
        notes = draw(panel, of_row, colours(of_row))
        style.head(panel, cells.row_text(row), notes, LETTERS_OF_TALL)
    for spare in axes[len(by_row) :]:
        spare.remove()
    return style.settle(figure)


def nothing(evidence: Evidence, title: str, words: str) -> Figure:
    """A figure that says why it is empty."""
    figure, [axes] = empty(evidence, title, 1, 1)
    style.head(axes, "nothing to draw", [words])
    axes.set(xticks=[], yticks=[])
    return style.settle(figure)


def one_scale(panels: Sequence[Axes]) -> None:
    """The same limits for all that show something, so that they can be compared."""
    drawn = [panel for panel in panels if panel.lines]
    limits = [panel.get_ylim() for panel in drawn]
    for panel in drawn:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def log_axis(axis: Axis) -> None:
    """Ticks in plain numbers, also where the scale is less than a power of ten long."""
    axis.set_major_formatter(_Plain())
    axis.set_minor_formatter(_Plain(minor_thresholds=(1, 0.5)))


class _Plain(LogFormatter):
    """0.6 where matplotlib has 6e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


class SignedPowers(Locator):
    """Ticks at 0 and at powers of ten of either sign, for a scale that is linear about zero; few, so none touch.

    matplotlib's own always has the ends of the linear part, which on a long scale lie over the zero.
    """

    MOST = 5

    def __init__(self, linear: float) -> None:
        self.least = round(math.log10(linear))

    def __call__(self) -> Sequence[float]:
        assert self.axis is not None  # it is asked by its axis
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        reach = max(-vmin, vmax, 10.0**self.least)
        powers = range(math.floor(math.log10(reach)), self.least - 1, -1)
        every = math.ceil(len(powers) / self.MOST)
        values = [10.0**power for power in powers[::every] if every == 1 or power - self.least > every / 2]
        return [value for value in (*(-value for value in values), 0.0, *reversed(values)) if vmin <= value <= vmax]
