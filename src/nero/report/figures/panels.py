"""Panels: our curves, the authors' where they logged any, and the paper's final values in a strip beside them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.curves import Curve, draw_authors, draw_curves, rate_text
from nero.report.figures.scales import LogScale
from nero.report.units import number, scale

# As fractions of the training's length:
MARGIN = 0.015  # left and right of the curves
MARK_SPACING = 0.04  # between the paper's marks
TICKS = 4  # or a few more where the length is no multiple of this

MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")


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
    log_scale: LogScale,
    published: paper.Published | None = None,
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
    rows = [row for row in zip(lines, theirs, strict=True) if any(row)]
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    style.legend_below(axes, handles=[handle or BLANK for column in columns for handle in column])


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
