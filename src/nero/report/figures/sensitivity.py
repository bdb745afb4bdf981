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

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import label_metric, note_texts, panels_of_rows
from nero.report.units import ShownMetric, rate, shown_metric

WIDE = 100  # highest to lowest value from which a panel has a log scale
HIGHEST = 1e4  # to the lowest value: lines to higher ones leave the panel
CROSSES = 0.03  # of a panel's height, between crosses of different optimisers
RING: Any = {"marker": "o", "markersize": 9, "fillstyle": "none"}
PAPERS = Line2D([], [], linestyle="none", color="#444444", label="at the paper's best η", **RING)


@style.house_style()
def sensitivity_curves(evidence: Evidence) -> Figure:
    """A panel per task and variant: a line per optimiser over the learning rates of its search, with one seed."""
    figure, panels = panels_of_rows(evidence, f"{evidence.experiment.title}: final metric at every learning rate")
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
        label_metric(axes, metrics[0]["key"] if metrics else "", metric)
        shown = [value for series in style.record(axes).series for value in series.mean if math.isfinite(value)]
        if shown and max(shown) > WIDE * min(shown) > 0:
            axes.set_yscale("log")
            if max(shown) > HIGHEST * min(shown):
                axes.set_ylim(min(shown) / 2, HIGHEST * min(shown))
        axes.set(xscale="log", xlabel="learning rate η")
        handles = axes.get_legend_handles_labels()[0]
        style.legend_below(axes, handles=[*handles, *([PAPERS] if style.record(axes).rings else [])])
    return style.freeze_layout(figure)


def _draw(
    axes: Axes, state: CellState, metric: ShownMetric | None, colour: str, their_lr: float | None, place: int
) -> None:
    """A line over the logged rates, a ring at the paper's, and a cross at the worse end for each that diverged."""
    runs = {lr: run for lr, run in sorted(state.search.items()) if run is not None}
    if metric is None or not runs:
        return
    finals = [math.nan if cells.has_diverged(run) else metric.scale * run["final"] for run in runs.values()]
    rates, values = np.array(list(runs)), np.array(finals)
    name, shown = style.name(state.cell.optim), style.record(axes)
    best = f", best η = {rate(state.best_lr)}" if state.best_lr is not None and len(state.search) > 1 else ""
    label = name + best + (f" (paper: {rate(their_lr)})" if their_lr is not None else "")
    run_ids = tuple(run["run_id"] for run in runs.values())
    axes.plot(rates, values, "-", marker="o", markersize=3, color=colour, label=label)
    shown.series.append(style.Series(name, label, colour, style.OURS, rates, values, runs=run_ids))
    for lr, value in zip(rates.tolist(), values.tolist(), strict=True):
        found = {"group": name, "colour": colour, "x": lr}
        if math.isnan(value):
            height = CROSSES * (place + 1)
            at = 1 - height if metric.goal == "min" else height
            axes.plot(lr, at, "x", color=colour, markersize=5, transform=axes.get_xaxis_transform())
            shown.crosses.append({**found, "label": f"{name} diverged at η = {rate(lr)}"})
        elif lr == their_lr:
            axes.plot(lr, value, color=colour, **RING)
            shown.rings.append({**found, "y": value, "label": f"{name}: the paper's best η = {rate(lr)}"})


def _notes(states: Sequence[CellState]) -> list[str]:
    """What is missing of searches, and which rates diverged."""
    notes: dict[str, dict[str, list[str]]] = {"search incomplete": {}, "missing": {}, "diverged": {}}
    for state in states:
        found = cells.problems(state)
        rates = [rate(lr) for lr, run in state.search.items() if run is not None and cells.has_diverged(run)]
        details = {
            "search incomplete": found.get("search incomplete"),
            "missing": state.cell.missing_config or (None if state.logged or state.searching else "no run"),
            "diverged": f"η = {', '.join(rates)}" if rates else None,
        }
        for topic, detail in details.items():
            if detail:
                notes[topic].setdefault(detail, []).append(style.name(state.cell.optim))
    return note_texts(notes)
