"""Shared by the theory's figures: lines with bands, and panels in lines."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogFormatter

from nero.report.figures import style
from nero.report.theory.evidence import Evidence, Group, absent

# Inches of a panel, text included, and characters of its title per line
SMALL = (3.7, 3.4, 44)
LARGE = (4.6, 3.6, 44)
TALL = (4.6, 4.4, 54)  # with a long legend
EMPTY = (4.6, 3.6, 62)
TITLE_WIDTH = 13  # characters per inch of a figure's title
BLACK = "#000000"

Line = Sequence[tuple[str, Callable[[Axes], Iterable[str]]]]
"""Panels side by side: their titles, and what draws them and returns notes for below the title."""


@style.house_style()
def figure(
    evidence: Evidence,
    key: str,
    title: str,
    size: tuple[float, float, int],
    lines_of: Callable[[Sequence[Group]], Iterable[Line]],
    share: bool = True,
) -> Figure:
    """A figure of the records in which `key` was measured, or one that says why it is empty.

    Args:
        share: whether panels of a line with the same label of their y axis get the same limits, to be compared
    """
    groups, without = evidence.measured(key), evidence.unmeasured(key)
    if groups:
        lines = list(lines_of(groups))
        title += f"\n(not measured: {without})" if without else ""
    else:
        reason, size = f"Not measured: {without}." if without else absent(key), EMPTY

        def draw_nothing(axes: Axes) -> Iterable[str]:
            axes.set(xticks=[], yticks=[])
            return [reason]

        lines = [[("nothing to draw", draw_nothing)]]
    if evidence.embedded:
        title += "\nEmbedded data, not the paper's"
    width, height, characters = size
    across = max(map(len, lines))
    made, axes = style.panels(len(lines), across, "", (width, height))
    wrapped = (textwrap.wrap(part, int(TITLE_WIDTH * width * across)) for part in title.split("\n"))
    made.suptitle("\n".join(line for part in wrapped for line in part), fontsize=10)
    for number, line in enumerate(lines):
        panels = axes[across * number : across * (number + 1)]
        for panel, (panel_title, draw) in zip(panels, line, strict=False):
            style.set_title(panel, panel_title, draw(panel), characters)
            if panel.get_legend() is None:
                style.legend_below(panel)
        if share:
            _share_limits([panel for panel in panels if panel.lines])
        for spare in panels[len(line) :]:
            spare.remove()
    return style.freeze_layout(made)


def _share_limits(panels: Sequence[Axes]) -> None:
    limits = [(panel.get_ylabel(), *panel.get_ylim()) for panel in panels]
    for panel in panels:
        alike = [(low, high) for label, low, high in limits if label == panel.get_ylabel()]
        panel.set_ylim(min(low for low, _ in alike), max(high for _, high in alike))


def band(
    axes: Axes,
    x: Any,
    middle: Any,
    ends: tuple[Any, Any] | None,
    colour: str,
    group: Group,
    label: str,
    linestyle: str = style.OURS,
    marker: str = "",
    width: float = 1.2,
) -> None:
    """Draw a line and, if there are ends, a band between them; NaN leaves a gap."""
    at, line = np.asarray(x, dtype=float), np.asarray(middle, dtype=float)
    if not np.isfinite(line).any():
        return
    axes.plot(at, line, linestyle, color=colour, label=label, marker=marker, markersize=3, linewidth=width)
    low = high = None
    if ends is not None:
        low, high = (np.asarray(end, dtype=float) for end in ends)
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    runs = tuple(record["run_id"] for record in group.records)
    style.record(axes).series.append(style.Series(group.label, label, colour, linestyle, at, line, low, high, runs))


def colours(groups: Sequence[Group]) -> dict[str, str]:
    """Colours by label: the optimiser's own, and others for its further learning rates."""
    palette = style.colours(group.optim for group in groups)
    spare = iter([*style.OTHERS, *style.VARIANTS] * len(groups))
    found: dict[str, str] = {}
    for group in groups:
        found.setdefault(group.label, palette.pop(group.optim, "") or next(spare))
    return found


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
