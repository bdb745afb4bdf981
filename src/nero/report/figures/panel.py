"""One panel: our curves, the authors' where they logged any, and the paper's final values in a strip beside them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D

from nero.plans.plan import Cell, CellState
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.drawing import Notes, draw, draw_authors, of_cell, precision_text, rate_text
from nero.report.figures.recorded import Mark, record
from nero.report.units import number, scale

# In parts of the training's length:
MARGIN = 0.015  # left and right of the curves
APART = 0.04  # between the paper's marks
TICKS = 4  # or a few more, where the length is no multiple of that

MARK: Any = {"fmt": "_", "markersize": 7, "markeredgewidth": 1.2, "elinewidth": 3, "capsize": 0}
BLANK = Line2D([], [], linestyle="none", label=" ")


@dataclass(frozen=True)
class Span:
    """What a panel runs along, and how far training goes."""

    x: str  # column of the curves
    label: str
    end: int


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


def by_optimiser(states: Iterable[CellState], optimiser: Callable[[Cell], str]) -> list[Curve]:
    """In house order; each in its own colour, whatever it is constrained to. Two of one optimiser need other labels."""
    named = cells.one_each(states, lambda cell: (optimiser(cell), cell.label))
    order = style.in_order(optim for optim, _ in named)
    by_name = {
        cells.labelled(style.name(optim), state.cell): state
        for (optim, _), state in sorted(named.items(), key=lambda item: order.index(item[0][0]))
    }
    palette = style.palette(by_name, dict(style.OPTIMS.values()))
    return [Curve(state, name, palette[name]) for name, state in by_name.items()]


def of_task(task: str, states: Iterable[CellState]) -> list[Curve]:
    """One for each optimiser that an experiment asks for."""
    return by_optimiser((state for state in states if state.cell.task == task), lambda cell: cell.optim)


def draw_panel(
    axes: Axes,
    key: str,
    span: Span,
    title: str,
    ylabel: str,
    shown: Sequence[Curve],
    curves: pd.DataFrame,
    published: paper.Published | None = None,
    authors: pd.DataFrame | None = None,
) -> None:
    """What is logged under `key`; `published` has the paper's finals, `authors` curves of theirs under our keys."""
    cells.require_real(curve.state for curve in shown)
    lines = _ours(axes, key, span, shown, curves, title)
    dashed = _authors(axes, key, shown, authors)
    axes.set_ylabel(ylabel)
    marks = _published(axes, span.end, shown, published)
    # A curve of theirs ends at their mark: one entry, under the words of the mark, stands for both.
    _legend(axes, lines, [both if all(both) else both[1] or both[0] for both in zip(dashed, marks, strict=True)])


def arithmetic(shown: Sequence[Curve]) -> str:
    """Such as " (TF32)": that of most curves. The legend says which have another."""
    usual = cells.usual_precision(curve.cell for curve in shown)
    return f" ({style.precision(usual)})" if usual else ""


def _ours(
    axes: Axes, key: str, span: Span, shown: Sequence[Curve], curves: pd.DataFrame, title: str
) -> list[Line2D | None]:
    """A line for each curve, None for one without runs; what is missing or diverged is said below the title."""
    notes = Notes()
    lines = []
    usual = cells.usual_precision(curve.cell for curve in shown)
    for curve in shown:
        ours = of_cell(curve.state, curves, key, curve.name, notes)
        planned = len(curve.cell.seeds)
        label = f"{curve.label}{precision_text(curve.cell, usual)}"
        lines.append(draw(axes, ours, span.x, scale(key), curve.colour, curve.name, label, planned=planned))
    margin = MARGIN * span.end
    axes.set(xlabel=span.label, xlim=(-margin, span.end + margin))
    axes.set_xticks(range(0, span.end + 1, span.end // TICKS))
    style.head(axes, title, notes.lines())
    return lines


def _authors(axes: Axes, key: str, shown: Sequence[Curve], authors: pd.DataFrame | None) -> list[Line2D | None]:
    """Theirs for each curve, None where they logged none."""
    if authors is None:
        return [None] * len(shown)
    first = {curve.cell.optim: curve for curve in reversed(shown)}
    palette = {optim: curve.colour for optim, curve in first.items()}
    lines = draw_authors(axes, authors[(authors.key == key) & authors.optim.isin(palette)], scale(key), palette)
    return [lines.get(curve.cell.optim) if curve is first[curve.cell.optim] else None for curve in shown]


def _published(
    axes: Axes, end: int, shown: Sequence[Curve], published: paper.Published | None
) -> list[ErrorbarContainer | None]:
    """The paper's mean ± deviation at the end of training, in a strip of their own, where no curve runs."""
    results = _results(shown, published)
    marks: list[ErrorbarContainer | None] = []
    place = 0
    for curve, result in zip(shown, results, strict=True):
        if result is None:
            marks.append(None)
            continue
        place += 1
        label = f"{curve.name}, paper: {number(result.mean)} ± {number(result.std)}{rate_text(result.lr)}"
        look = {"color": style.darker(curve.colour), "ecolor": curve.colour, **MARK}
        marks.append(axes.errorbar(_place(end, place), result.mean, result.std, label=label, **look))
        record(axes).marks.append(Mark(curve.name, label, curve.colour, result.mean, result.std))
    if place:
        begin, close = (_place(end, edge) for edge in (0.5, place + 0.5))
        axes.axvspan(begin, close, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate("paper", ((begin + close) / 2, 0.98), xycoords=axes.get_xaxis_transform(), ha="center", va="top")
        axes.set_xlim(right=close)
    return marks


def _results(shown: Sequence[Curve], published: paper.Published | None) -> list[paper.Result | None]:
    """The paper's result for each curve; of several curves with the same, for the first alone."""
    keys = [paper.key(curve.cell) for curve in shown]
    every = published.results if published else {}
    return [None if key in keys[:place] else every.get(key) for place, key in enumerate(keys)]


def _place(end: int, place: float) -> float:
    return end + APART * end * place


def _legend(axes: Axes, lines: Sequence[Line2D | None], theirs: Sequence[Any]) -> None:
    """Of two columns: what is ours stands beside what is the paper's, also where some are missing."""
    if not any(lines):
        style.legend_below(axes, handles=[handle for handle in theirs if handle])
    elif any(theirs):
        style.legend_below(axes, handles=[handle or BLANK for handle in (*lines, *theirs)])
    else:
        style.legend_below(axes)
