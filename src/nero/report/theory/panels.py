"""Shared by the theory's figures: lines with bands, and panels in lines."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogFormatter

from nero.report.figures import style
from nero.report.figures.finishing import finish
from nero.report.theory.evidence import Evidence, Group, absent

# Inches of a panel, text included
LARGE = (4.2, 3.4)
TALL = (4.2, 4.0)  # with a long legend
ACROSS = 2
POWERS = range(-3, 5)  # of ten, which are written out; others as such
BLACK = "#000000"

Line = Sequence[tuple[str, Callable[[Axes], Iterable[str]]]]
"""Panels that are compared: their titles, and what draws them and returns notes for the caption."""


@style.house_style()
def figure(
    evidence: Evidence,
    key: str,
    title: str,
    size: tuple[float, float],
    lines_of: Callable[[Sequence[Group]], Iterable[Line]],
    share: bool = True,
    over_seeds: bool = False,
) -> Figure:
    """A figure of the records in which `key` was measured, or one that says why it is empty.

    Args:
        share: whether panels of a line with the same label of their y axis get the same limits, to be compared
        over_seeds: whether bands are the range over seeds
    """
    groups, without = evidence.measured(key), evidence.unmeasured(key)
    missing = f"Not measured: {without}." if without else "" if groups else absent(key)
    lines: list[Line] = list(lines_of(groups)) or [[("nothing to draw", lambda axes: [missing])]]
    across = min(ACROSS, max(map(len, lines)))
    title += "\nEmbedded data, not the paper's" if evidence.embedded else ""
    starts = list(itertools.accumulate((-(-len(line) // across) for line in lines), initial=0))
    made, axes = style.panels(starts[-1], across, title, size)
    for line, start, end in zip(lines, starts[:-1], starts[1:], strict=True):
        panels = axes[across * start : across * end]
        for panel, (panel_title, draw) in zip(panels, line, strict=False):
            style.record(panel).empty = "not measured"
            style.set_title(panel, panel_title, draw(panel))
            if panel.get_legend() is None:
                style.legend_below(panel)
        if share:
            _share_limits([panel for panel in panels if panel.lines])
        for spare in panels[len(line) :]:
            spare.remove()
    return finish(made, over_seeds, [missing] if groups and missing else [])


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
) -> None:
    """Draw a line and, if there are ends, a band between them; NaN leaves a gap."""
    at, line = style.rounded(x), style.rounded(middle)
    if not np.isfinite(line).any():
        return
    axes.plot(at, line, linestyle, color=colour, label=label, marker=marker, markersize=3)
    low = high = None
    if ends is not None:
        low, high = map(style.rounded, ends)
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
    """0.6 where matplotlib has 6e-01, and powers of ten where such a number would be long."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        power = math.log10(x) if x > 0 else 0
        text = f"{x:g}" if power in POWERS or power % 1 else f"$10^{{{power:.0f}}}$"
        return text if super().__call__(x, pos) else ""


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
