"""Sensitivity to the learning rate, of any experiment: the final metric of every run of its searches.

The table `sensitivity` has the same numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import note_texts, panels_of_rows
from nero.report.figures.finishing import finish
from nero.report.figures.scales import plain_ticks
from nero.report.units import ShownMetric, rate, shown_metric

SIZE = (3.2, 2.8)  # inches of a panel, of up to three in a row
WIDE = 3  # highest to lowest value from which a panel has a log scale
HIGHEST = 100.0  # to the lowest value: an arrow at the top of the panel stands for higher ones
MARGIN = 1.5  # of a log scale, left and right of the rates and around the values
SPARE = 0.1  # of the height of a linear scale, above and below
CROSSES = 0.04  # of a panel's height, between crosses of different optimisers
RING: Any = {"marker": "o", "markersize": 9, "fillstyle": "none", "linestyle": "none"}
CROSS: Any = {"marker": "x", "markersize": 5, "markeredgewidth": 1.5, "linestyle": "none"}
BEYOND: Any = {"marker": "^", "markersize": 5, "linestyle": "none"}


@style.house_style()
def sensitivity_curves(evidence: Evidence) -> Figure:
    """A panel per task and variant: a line per optimiser over the learning rates of its search, with one seed."""
    figure, panels = panels_of_rows(evidence, f"{evidence.experiment.title}: final metric at every learning rate", SIZE)
    palette = style.colours(state.cell.optim for state in evidence.states)
    published = paper.of_cells([state.cell for state in evidence.states])
    results = published.results if published else {}
    for axes, row, states in panels:
        order = style.in_order(state.cell.optim for state in states)
        ordered = sorted(states, key=lambda state: order.index(state.cell.optim))
        metrics = [run["metric"] for state in states for run in state.logged.values()]
        metric = shown_metric(metrics[0], row.task) if metrics else None
        for place, state in enumerate(ordered):
            theirs = results.get(paper.key(state.cell))
            _draw(axes, state, metric, palette[state.cell.optim], theirs.lr if theirs else None, place)
        style.set_title(axes, cells.row_text(row), _notes(ordered))
        axes.margins(y=SPARE)
        axes.set(xscale="log", xlabel="learning rate η", ylabel=metric.label if metric else "")
        lrs = sorted({lr for state in states for lr in state.cell.lrs})
        axes.set_xlim(lrs[0] / MARGIN, lrs[-1] * MARGIN)
        beyond = metric is not None and metric.goal == "min" and _set_scale(axes)
        marks = (
            (style.record(axes).rings, RING, "at the paper's best η"),
            (style.record(axes).crosses, CROSS, "diverged"),
            (beyond, BEYOND, "higher than the axis"),
        )
        marked = [Line2D([], [], color=style.GREY, label=label, **look) for found, look, label in marks if found]
        style.legend_below(axes, 3, [*axes.get_legend_handles_labels()[0], *marked])
    return finish(figure)


def _draw(
    axes: Axes, state: CellState, metric: ShownMetric | None, colour: str, their_lr: float | None, place: int
) -> None:
    """A line over the logged rates, a ring at the paper's, and a cross at the worse end for each that diverged."""
    runs = {lr: run for lr, run in sorted(state.search.items()) if run is not None}
    if metric is None or not runs:
        return
    finals = [math.nan if cells.has_diverged(run) else metric.scale * run["final"] for run in runs.values()]
    rates, values = np.array(list(runs)), style.rounded(finals)
    name, shown = style.name(state.cell.optim), style.record(axes)
    best = f", best η = {rate(state.best_lr)}" if state.best_lr is not None and len(state.search) > 1 else ""
    label = name + best + (f" (paper: {rate(their_lr)})" if their_lr is not None else "")
    run_ids = tuple(run["run_id"] for run in runs.values())
    axes.plot(rates, values, "-", marker="o", markersize=3, color=colour, label=name)
    shown.series.append(style.Series(name, label, colour, style.OURS, rates, values, runs=run_ids))
    for lr, value in zip(rates.tolist(), values.tolist(), strict=True):
        found = {"group": name, "colour": colour, "x": lr}
        if math.isnan(value):
            height = CROSSES * (place + 1)
            at = 1 - height if metric.goal == "min" else height
            axes.plot(lr, at, color=colour, transform=axes.get_xaxis_transform(), **CROSS)
            shown.crosses.append({**found, "label": f"{name} diverged at η = {rate(lr)}"})
        elif lr == their_lr:
            axes.plot(lr, value, color=colour, **RING)
            shown.rings.append({**found, "y": value, "label": f"{name}: the paper's best η = {rate(lr)}"})


def _set_scale(axes: Axes) -> bool:
    """A log scale where values differ much. Returns whether some are higher than it goes: an arrow marks each."""
    series = style.record(axes).series
    shown = np.concatenate([each.mean[np.isfinite(each.mean)] for each in series] or [np.array([])])
    if not len(shown) or not shown.max() > WIDE * shown.min() > 0:
        return False
    low, top = shown.min(), min(shown.max(), HIGHEST * shown.min())
    axes.set(ylim=(low / MARGIN, top * MARGIN))
    axes.set(yscale="log")
    axes.yaxis.set_major_locator(
        FixedLocator([tick for tick in plain_ticks(low, top) if low / MARGIN < tick < top * MARGIN])
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    for each in series:
        for lr in each.x[each.mean > top]:
            axes.plot(lr, 0.97, color=each.colour, transform=axes.get_xaxis_transform(), **BEYOND)
    return bool((shown > top).any())


def _notes(states: Sequence[CellState]) -> list[str]:
    """What is missing of searches."""
    notes: dict[str, dict[str, list[str]]] = {"search incomplete": {}, "missing": {}}
    for state in states:
        found = cells.problems(state)
        details = {
            "search incomplete": found.get("search incomplete"),
            "missing": state.cell.missing_config or (None if state.logged or state.searching else "no run"),
        }
        for topic, detail in details.items():
            if detail:
                notes[topic].setdefault(detail, []).append(style.name(state.cell.optim))
    return note_texts(notes)
