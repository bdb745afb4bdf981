"""Figures over a network's layers: balance of neurons, and statistics of what layers give."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.report import cells
from nero.report.figures import style
from nero.report.figures.recorded import record
from nero.report.theory.balance_table import networks
from nero.report.theory.evidence import Evidence, Group, absent, rows, unmeasured
from nero.report.theory.numbers import known, mean
from nero.report.theory.panels import (
    LETTERS,
    SMALL,
    SignedPowers,
    band,
    colours,
    empty,
    log_axis,
    nothing,
    one_scale,
    positive,
)
from nero.theory.records import NETWORKS

BALANCE = "Neurons of each layer (Definition 1): median and 5th to 95th percentile"
ACTIVATIONS = "Outputs of each layer (Section 3.1): median and 5th to 95th percentile of its neurons"
FLOOR = 1e-9
"""Where a lean that is smaller is drawn: float32 knows no difference there."""

LINEAR = 0.01
"""Up to where the axis of means, which have both signs, is linear."""

Layers = Sequence[Mapping[str, Any]]


@style.house_style()
def balance_figure(evidence: Evidence) -> Figure:
    """A row per task, variant and network: norm on the left, lean on the right; start dotted, end solid."""
    shown = [
        (row, network, groups)
        for row, groups in rows(evidence.networks).items()
        for network in dict.fromkeys(name for group in groups for name in networks(group))
    ]
    if not shown:
        return nothing(evidence, BALANCE, absent(NETWORKS))
    figure, axes = empty(evidence, BALANCE, len(shown), 2)
    for place, (row, network, groups) in enumerate(shown):
        left, right = axes[2 * place : 2 * place + 2]
        palette = colours(groups)
        for group in groups:
            _draw_balance(left, group, network, "norm", palette[group.label], 0.0)
            _draw_balance(right, group, network, "lean", palette[group.label], FLOOR)
        of_network = "" if network == "network" else f", {network}"
        _at_least(left, 0.5, 2.0)
        _at_least(right, FLOOR / 2, 1.0)
        for panel, label in ((left, "norm of a neuron (balanced: 1)"), (right, "lean of a neuron (balanced: 0)")):
            panel.set(xlabel="layer", ylabel=label)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.head(panel, f"{cells.row_text(row)}{of_network}", [], LETTERS)
            style.legend_below(panel)
    return style.settle(figure)


def _draw_balance(axes: Axes, group: Group, network: str, quantity: str, colour: str, floor: float) -> None:
    for when, linestyle in (("start", style.VARIANT), ("end", style.OURS)):
        seeds = [record["networks"].get(network, {}).get(when) or [] for record in group.records]
        if any(seeds):
            places, middle, ends = over_seeds(seeds, quantity, lambda value: max(value, floor))
            shown = None if when == "start" else ends
            band(axes, places, middle, shown, colour, group, f"{group.label}, {when}", linestyle, _dot(places))


def _at_least(axes: Axes, low: float, high: float) -> None:
    """A log scale for all that is drawn and these two, so that what is nearly one is not blown up."""
    drawn = [values for series in record(axes).series for values in (series.mean, series.low, series.high)]
    values = np.concatenate([[low, high], *(part[part > 0] for part in drawn if part is not None)])
    axes.set(ylim=(values.min() / 1.15, values.max() * 1.15))
    axes.set_yscale("log")
    log_axis(axes.yaxis)


@style.house_style()
def activations_figure(evidence: Evidence) -> Figure:
    """A row per task and variant: variance and mean of outputs, at the start and the end; predictions dotted."""
    measured = [kept for group in evidence.networks if (kept := group.having("activations"))]
    without = unmeasured(evidence.networks, "activations")
    if not measured:
        return nothing(evidence, ACTIVATIONS, f"Not measured: {without}." if without else absent(NETWORKS))
    by_row = rows(measured)
    title = f"{ACTIVATIONS}\n(not measured: {without})" if without else ACTIVATIONS
    figure, axes = empty(evidence, title, len(by_row), 4, SMALL)
    for place, (row, groups) in enumerate(by_row.items()):
        panels = axes[4 * place : 4 * place + 4]
        for panel, (quantity, when) in zip(
            panels, itertools.product(("variance", "mean"), ("start", "end")), strict=True
        ):
            notes = _draw_activations(panel, groups, quantity, when)
            style.head(panel, f"{cells.row_text(row)}: {quantity}, {when}", notes, LETTERS)
            style.legend_below(panel)
        one_scale(panels[:2])
        one_scale(panels[2:])
    return style.settle(figure)


def _draw_activations(axes: Axes, groups: Sequence[Group], quantity: str, when: str) -> list[str]:
    """Every optimiser's; returns what is missing."""
    palette = colours(groups)
    log, missing = quantity == "variance", []
    for group in groups:
        seeds = [record["activations"].get(when) or [] for record in group.records]
        if not any(seeds):
            missing.append(group.name)
            continue
        for key, linestyle, words in (
            (quantity, style.OURS, ""),
            (f"predicted_{quantity}", style.VARIANT, ", predicted"),
        ):
            places, middle, ends = over_seeds(seeds, key)
            if log:
                middle, ends = positive(middle), (positive(ends[0]), positive(ends[1]))
            shown = None if words else ends
            band(
                axes,
                places,
                middle,
                shown,
                palette[group.label],
                group,
                f"{group.label}{words}",
                linestyle,
                _dot(places),
            )
    if log:
        axes.set_yscale("log")
        log_axis(axes.yaxis)
    else:
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.yaxis.set_major_locator(SignedPowers(LINEAR))
    axes.set(xlabel="layer", ylabel=f"{quantity} of a neuron's output")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return [f"missing: {', '.join(missing)}"] if missing else []


# Over seeds

Middle = list[float | None]


def over_seeds(
    seeds: Sequence[Layers], quantity: str, change: Callable[[float], float] = lambda value: value
) -> tuple[list[float], Middle, tuple[Middle, Middle]]:
    """Layers counted from 1; the mean over seeds of medians, and the outermost of 5th and 95th percentiles."""
    depth = max(len(layers) for layers in seeds)

    def of_layer(place: int, key: str) -> list[float]:
        found: Iterable[Any] = (layers[place][quantity][key] for layers in seeds if place < len(layers))
        return [change(value) for value in known(found)]

    places = range(depth)
    middle = [mean(of_layer(place, "median")) for place in places]
    low: Middle = [min(of_layer(place, "low"), default=None) for place in places]
    high: Middle = [max(of_layer(place, "high"), default=None) for place in places]
    return [float(place + 1) for place in places], middle, (low, high)


def _dot(places: Sequence[float]) -> str:
    """Few layers are seen as points too, and one alone as nothing else."""
    return "." if len(places) <= 12 else ""
