"""Complete a figure: titles, caption, panels without curves, curves that cover each other, and the layout."""

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from nero.report.figures import style
from nero.report.figures.texts import wrap

PASSES = 3  # of the layout: that of titles, ticks and legends depends on the axes' sizes, and these on it
EDGE = 6  # points left and right of titles and captions
WIDER = 1.4  # points that a curve is wider for each that covers it
HIDDEN, MOST = 1.5, 0.75  # pixels between two curves, and the share of points, where one covers the other


def finish(figure: Figure, over_seeds: bool = True, remarks: Sequence[str] = ()) -> Figure:
    """Complete a figure whose curves and scales are drawn: titles, caption, empty panels, and the layout.

    The layout is computed once; otherwise each file format would change it slightly.

    Args:
        over_seeds: bands are the range over seeds, and the figure's title says so
        remarks: lines of the caption before the notes on panels
    """
    panels = [axes for axes in figure.axes if isinstance(axes, style.RecordedAxes)]
    if over_seeds and any(series.low is not None for axes in panels for series in axes.record.series):
        figure.suptitle(f"{figure.get_suptitle()}: mean and range over seeds")
    for axes in panels:
        if not _is_drawn(axes):
            _say_empty(axes)
    layout = figure.get_layout_engine()
    assert layout is not None
    for _ in range(PASSES):  # titles are as wide as panels, whose width depends on the layout
        _write_texts(figure, panels, remarks)
        layout.execute(figure)
    figure.set_layout_engine("none")
    # The last digits of a layout depend on the machine.
    for panel in figure.axes:
        panel.set_position(Bbox(np.round(panel.get_position().get_points(), 4)))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 4), round(y, 4)))
    for axes in panels:
        _widen_covered(axes)
    return figure


def _write_texts(figure: Figure, panels: Sequence[style.RecordedAxes], remarks: Sequence[str]) -> None:
    """Titles of the figure and of panels, of two lines at most; the caption has what does not fit, and the notes."""
    notes: dict[str, list[str]] = {}  # -> letters of panels
    for letter, axes in zip(_letters(len(panels)), panels, strict=True):
        for note in _write_title(axes, letter):
            notes.setdefault(note, []).append(letter)
    of_panels: dict[str, list[str]] = {}
    for note, letters in notes.items():
        of_panels.setdefault("" if len(letters) == len(panels) else f"({', '.join(letters)}) ", []).append(note)
    caption = [*remarks, *(panel + "; ".join(texts) for panel, texts in of_panels.items())]

    width = style.POINTS * figure.get_figwidth() - 2 * EDGE
    title = [line for part in figure.get_suptitle().split("\n") for line in wrap(part, width, style.TITLE_SIZE)]
    figure.suptitle("\n".join(title))
    if caption or figure.get_supxlabel():
        text = "\n".join(line for part in caption for line in wrap(part, width, style.SMALL_SIZE))
        figure.supxlabel(text, x=EDGE / (width + 2 * EDGE), ha="left", fontsize=style.SMALL_SIZE)


def _write_title(axes: style.RecordedAxes, letter: str) -> list[str]:
    """Write a panel's title as wide as its axes; returns what belongs in the caption."""
    shown, figure = axes.record, axes.get_figure(root=True)
    assert figure is not None
    width = style.POINTS * figure.get_figwidth() * axes.get_position().width
    lines = wrap(f"({letter}) {shown.title}" if letter else shown.title, width, style.PANEL_TITLE_SIZE)
    cut = len(lines) > 2
    axes.set_title("\n".join([lines[0], f"{lines[1]} …"] if cut else lines), loc="left")
    return [*([shown.title] if cut else []), *(shown.notes if _is_drawn(axes) else ())]


def _letters(count: int) -> Sequence[str]:
    """Of panels; none for a single one."""
    if count == 1:
        return [""]
    alphabet = string.ascii_lowercase
    return alphabet[:count] if count <= len(alphabet) else [str(place + 1) for place in range(count)]


def _is_drawn(axes: style.RecordedAxes) -> bool:
    return bool(axes.record.series or axes.images)


def _say_empty(axes: style.RecordedAxes) -> None:
    """Say in the panel why it has no curves; its axes have a meaning only if the paper's results are there."""
    if not (axes.record.marks or axes.record.rule):
        axes.grid(False)
        axes.set(xticks=[], yticks=[])
        axes.minorticks_off()
    width = 0.6 * style.panel_width(axes)
    lines = [line for text in (axes.record.empty, *axes.record.notes) for line in wrap(text, width, style.SMALL_SIZE)]
    text = "\n".join(lines)
    look: Any = {"ha": "center", "va": "center", "fontsize": style.SMALL_SIZE, "color": style.GREY}
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 2}
    axes.text(0.45, 0.5, text, transform=axes.transAxes, bbox=behind, **look)


def _widen_covered(axes: style.RecordedAxes) -> None:
    """Widen each curve by a step for every later one of the same kind that covers it, so that its edges show."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_") and np.size(line.get_xdata()) > 1]
    for place, line in enumerate(lines):
        later = [other for other in lines[place + 1 :] if other.get_linestyle() == line.get_linestyle()]
        line.set_linewidth(line.get_linewidth() + WIDER * sum(_covers(other, line) for other in later))


def _covers(top: Line2D, below: Line2D) -> bool:
    """Whether a curve hides most of another."""
    hiding, hidden = map(_heights, (top, below))
    near = sum(abs(hiding[x] - height) < HIDDEN for x, height in hidden.items() if x in hiding)
    return near >= MOST * len(hidden)


def _heights(line: Line2D) -> dict[float, float]:
    """In pixels, by x."""
    points = np.asarray(line.get_xydata(), dtype=float)
    return dict(zip(points[:, 0].tolist(), line.get_transform().transform(points)[:, 1].tolist(), strict=True))
