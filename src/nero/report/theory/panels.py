"""Shared by the theory's figures: lines with bands, and panels by task and by optimiser."""

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
from nero.report.theory.evidence import Evidence, Group, rows

# Inches of a panel, text included
SMALL = (3.7, 3.4)
LARGE = (4.6, 3.6)
TALL = (4.6, 4.4)  # with a long legend
TITLE_WIDTH = 13  # characters per inch of a figure's title
SMALL_WIDTH, TALL_WIDTH = 44, 54  # characters of a panel's title per line
BLACK = "#000000"

DrawGroup = Callable[[Axes, Group, str], Iterable[str]]
"""Draws a group in a colour and returns notes for below the title."""

DrawTask = Callable[[Axes, Sequence[Group], Mapping[str, str]], Iterable[str]]
"""Likewise for all groups of a panel, in colours by label."""

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
    """Draw a line and, if there are ends, a band between them; null leaves a gap."""
    at, line = np.asarray(x, dtype=float), np.array(middle, dtype=float)  # null becomes NaN
    if not np.isfinite(line).any():
        return
    axes.plot(at, line, linestyle, color=colour, label=label, marker=marker, markersize=3, linewidth=width)
    low = high = None
    if ends is not None:
        low, high = (np.array(end, dtype=float) for end in ends)
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    runs = tuple(record["run_id"] for record in group.records)
    style.record(axes).series.append(style.Series(group.label, label, colour, linestyle, at, line, low, high, runs))


def positive(values: Values) -> list[float | None]:
    """The values that a log axis can show; null in place of others."""
    return [None if value is None or not value > 0 else float(value) for value in values]


def colours(groups: Sequence[Group]) -> dict[str, str]:
    """Colours by label: the optimiser's own, and others for its further learning rates."""
    palette = style.colours(group.optim for group in groups)
    spare = iter([*style.OTHERS, *style.VARIANTS] * len(groups))
    found: dict[str, str] = {}
    seen = set()
    for group in groups:
        if group.label not in found:
            found[group.label] = palette[group.optim] if group.optim not in seen else next(spare)
            seen.add(group.optim)
    return found


def empty(
    evidence: Evidence, title: str, down: int, across: int, size: tuple[float, float] = LARGE
) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, row by row, with a wrapped title."""
    figure, axes = style.panels(down, across, "", size)
    width = int(TITLE_WIDTH * size[0] * across)
    lines = [line for part in evidence.title(title).split("\n") for line in textwrap.wrap(part, width)]
    figure.suptitle("\n".join(lines), fontsize=10)
    return figure, axes


def by_optimizer(evidence: Evidence, title: str, groups: Sequence[Group], draw: DrawGroup) -> Figure:
    """A row per task and variant, with a panel per optimiser and one scale for all of them."""
    by_row = rows(groups)
    across = max(map(len, by_row.values()))
    figure, axes = empty(evidence, title, len(by_row), across, SMALL)
    for place, (row, of_row) in enumerate(by_row.items()):
        palette = colours(of_row)
        panels = axes[across * place : across * (place + 1)]
        for panel, group in zip(panels, of_row, strict=False):
            notes = draw(panel, group, palette[group.label])
            style.set_title(panel, f"{group.label} ({cells.row_text(row)})", notes, SMALL_WIDTH)
            style.legend_below(panel)
        share_limits(panels[: len(of_row)])
        for spare in panels[len(of_row) :]:
            spare.remove()
    return style.freeze_layout(figure)


def by_task(evidence: Evidence, title: str, groups: Sequence[Group], draw: DrawTask) -> Figure:
    """A panel per task and variant, with all optimisers in it."""
    by_row = rows(groups)
    across = min(len(by_row), 3)
    figure, axes = empty(evidence, title, -(-len(by_row) // across), across, TALL)
    for panel, (row, of_row) in zip(axes, by_row.items(), strict=False):
        style.set_title(panel, cells.row_text(row), draw(panel, of_row, colours(of_row)), TALL_WIDTH)
    for spare in axes[len(by_row) :]:
        spare.remove()
    return style.freeze_layout(figure)


def nothing(evidence: Evidence, title: str, reason: str) -> Figure:
    """A figure that says why it is empty."""
    figure, [axes] = empty(evidence, title, 1, 1)
    style.set_title(axes, "nothing to draw", [reason])
    axes.set(xticks=[], yticks=[])
    return style.freeze_layout(figure)


def share_limits(panels: Sequence[Axes]) -> None:
    """Set the same limits for all panels that show something, so that they can be compared."""
    drawn = [panel for panel in panels if panel.lines]
    limits = [panel.get_ylim() for panel in drawn]
    for panel in drawn:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def log_axis(axis: Axis) -> None:
    """Label ticks with plain numbers, also where the scale is shorter than a power of ten."""
    axis.set_major_formatter(_PlainFormatter())
    axis.set_minor_formatter(_PlainFormatter(minor_thresholds=(1, 0.5)))


class _PlainFormatter(LogFormatter):
    """0.6 where matplotlib has 6e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


class SignedPowers(Locator):
    """A few ticks at 0 and at powers of ten of either sign, for a symlog scale.

    matplotlib's own locator always includes the ends of the linear part, which on a long scale overlap the zero.
    """

    MOST = 5

    def __init__(self, linear: float) -> None:
        self.least = round(math.log10(linear))

    def __call__(self) -> Sequence[float]:
        assert self.axis is not None  # the axis calls it
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        reach = max(-vmin, vmax, 10.0**self.least)
        powers = range(math.floor(math.log10(reach)), self.least - 1, -1)
        every = math.ceil(len(powers) / self.MOST)
        values = [10.0**power for power in powers[::every] if every == 1 or power - self.least > every / 2]
        return [value for value in (*(-value for value in values), 0.0, *reversed(values)) if vmin <= value <= vmax]
