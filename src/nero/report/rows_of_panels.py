"""Rows of two panels: a quantity of the training set (left) and of the validation set (right) against the epoch.

Beside our curves stand the paper's final values, and the authors' curves where they logged any.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D

from nero.plans.plan import Cell, CellState
from nero.report import cells, paper, style
from nero.report.drawing import Notes, draw, draw_authors, of_cell, rate_text
from nero.report.units import number, scale

# In parts of the training's length:
MARGIN = 0.015  # left and right of the curves
APART = 0.04  # between the paper's marks
TICKS = 4

MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")


@dataclass(frozen=True)
class Followed:
    """What a row follows, and for how long."""

    training: str  # its keys in the log
    validation: str
    quantity: str  # as axes write it, with its unit
    seen: str  # how the network saw the training set: as it came in the epoch's batches
    epochs: int


@dataclass(frozen=True)
class Curve:
    """A cell and how its panels show it."""

    state: CellState
    name: str
    colour: str

    @property
    def cell(self) -> Cell:
        return self.state.cell

    @property
    def label(self) -> str:
        return f"{self.name}{rate_text(self.state.leading_lr)}"


def by_optimiser(states: dict[str, CellState]) -> list[Curve]:
    """In house order; each in its own colour, whatever it is constrained to."""
    palette = style.colours(states)
    return [Curve(states[optim], style.name(optim), palette[optim]) for optim in style.in_order(states)]


def of_task(task: str, states: Iterable[CellState]) -> list[Curve]:
    """One for each optimiser that an experiment asks for."""
    return by_optimiser(cells.one_each((s for s in states if s.cell.task == task), lambda cell: cell.optim))


def draw_row(
    panels: Sequence[Axes],
    followed: Followed,
    heading: str,
    shown: Sequence[Curve],
    curves: pd.DataFrame,
    published: paper.Published,
    authors: pd.DataFrame | None = None,
) -> None:
    """Training on the left, validation on the right, and there the paper's finals; both say in what arithmetic.

    `authors` has curves of theirs under the keys of our logs.
    """
    cells.require_real(curve.state for curve in shown)
    left, right = panels
    heading += _arithmetic(shown)
    lines = _ours(left, followed.training, followed, shown, curves, f"{heading}, training")
    dashed = _authors(left, followed.training, shown, authors)
    left.set_ylabel(f"training {followed.quantity} as it ran\n({followed.seen})")
    _legend(left, lines, dashed)
    lines = _ours(right, followed.validation, followed, shown, curves, f"{heading}, validation")
    dashed = _authors(right, followed.validation, shown, authors)
    right.set_ylabel(f"validation {followed.quantity}")
    marks = _published(right, followed.epochs, shown, published)
    # A curve of theirs ends at their mark: one entry, under the words of the mark, stands for both.
    _legend(right, lines, [both if all(both) else both[1] or both[0] for both in zip(dashed, marks, strict=True)])


def _arithmetic(shown: Sequence[Curve]) -> str:
    """Such as " (TF32)"."""
    asked = {cells.precision(curve.cell) for curve in shown}
    named = [name for precision, name in style.PRECISIONS.items() if precision in asked]
    return f" ({', '.join(named)})" if named else ""


def _ours(
    axes: Axes, key: str, followed: Followed, shown: Sequence[Curve], curves: pd.DataFrame, title: str
) -> list[Line2D | None]:
    """A line for each curve, None for one without runs; what is missing or diverged is said below the title."""
    notes = Notes()
    lines = []
    for curve in shown:
        ours = of_cell(curve.state, curves, key, curve.name, notes)
        planned = len(curve.cell.seeds)
        lines.append(draw(axes, ours, "epoch", scale(key), curve.colour, curve.label, planned=planned))
    epochs = followed.epochs
    axes.set(xlabel="epoch", xlim=(-MARGIN * epochs, epochs + MARGIN * epochs))
    axes.set_xticks(range(0, epochs + 1, epochs // TICKS))
    style.head(axes, title, notes.lines())
    return lines


def _authors(axes: Axes, key: str, shown: Sequence[Curve], authors: pd.DataFrame | None) -> list[Line2D | None]:
    """Theirs for each curve, None where they logged none."""
    if authors is None:
        return [None] * len(shown)
    palette = {curve.cell.optim: curve.colour for curve in shown}
    lines = draw_authors(axes, authors[(authors.key == key) & authors.optim.isin(palette)], scale(key), palette)
    return [lines.get(optim) for optim in palette]


def _published(
    axes: Axes, epochs: int, shown: Sequence[Curve], published: paper.Published
) -> list[ErrorbarContainer | None]:
    """The paper's mean ± deviation after its last epoch, in a strip of their own, where no curve runs."""
    marks: list[ErrorbarContainer | None] = []
    for place, curve in enumerate(shown, start=1):
        result = published.results.get(paper.key(curve.cell))
        if result is None:
            marks.append(None)
            continue
        label = f"{curve.name}, paper: {number(result.mean)} ± {number(result.std)}{rate_text(result.lr)}"
        look = {"color": style.darker(curve.colour), "ecolor": curve.colour, **MARK}
        marks.append(axes.errorbar(_place(epochs, place), result.mean, result.std, label=label, **look))
    if any(marks):
        begin, end = (_place(epochs, place) for place in (0.5, len(marks) + 0.5))
        axes.axvspan(begin, end, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate("paper", ((begin + end) / 2, 0.98), xycoords=axes.get_xaxis_transform(), ha="center", va="top")
        axes.set_xlim(right=end)
    return marks


def _place(epochs: int, place: float) -> float:
    return epochs + APART * epochs * place


def _legend(axes: Axes, lines: Sequence[Line2D | None], theirs: Sequence[Any]) -> None:
    """Of two columns: what is ours stands beside what is the paper's, also where some are missing."""
    ours = [line or BLANK for line in lines] if any(lines) else []
    style.legend_below(axes, handles=[*ours, *(handle or BLANK for handle in theirs)] if any(theirs) else None)
