"""Layers of networks before and after training: how balanced their neurons are, and statistics of their outputs."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, Text, exact
from nero.report.theory import panels, tables
from nero.report.theory.evidence import LINKS, Evidence, Group, absent, precision_text, rows
from nero.report.theory.tables import known, mean, median, share_text, short, span, spread
from nero.theory.records import NETWORKS

Layers = Sequence[Mapping[str, Any]]

HEADS = [
    "task",
    "optimiser",
    "network",
    "epochs",
    "balanced layers, start",
    "balanced layers, end",
    "norm, start",
    "norm, end",
    "largest norm, end",
    "lean, start",
    "lean, end",
]
NOTES = (
    "A layer is balanced if the weights of each neuron have sum 0 and norm 1, up to rounding. Norm: of a neuron's "
    "weights, the median over layers of the layers' medians, with the least and the largest of those in brackets. "
    "Lean: the part of a neuron along the vector of ones, |sum| / (square root of fan-in × norm), from 0 (excitation "
    "and inhibition balanced) to 1; median over layers of medians. With several seeds, over the layers of all of them."
)
BALANCE = "Neurons of each layer (Definition 1): median and 5th to 95th percentile"
ACTIVATIONS = "Outputs of each layer (Section 3.1): median and 5th to 95th percentile of its neurons"
FLOOR = 1e-9
"""A smaller lean is drawn here: it is below float32's resolution."""

LINEAR = 0.01
"""The axis of means, which have both signs, is linear up to here."""


# Table


def balance_table(evidence: Evidence) -> Printed:
    """A line per optimiser and network."""

    def lines(group: Group) -> Iterator[Line]:
        for network in _networks([group]):
            start, end = (_layers(group, network, when) for when in ("start", "end"))
            largest = _of_layers(end, "norm", "max")
            norms = [_of_layers(layers, "norm") for layers in (start, end)]
            yield [
                Text(group.label, runs=group.links(evidence.store)),
                Text(network),
                Text(group.epochs),
                *(share_text(_balanced(layers), len(layers)) for layers in (start, end)),
                *(Text(short(median(values)), span(values)) for values in norms),
                Text(short(max(largest)) if largest else ""),
                *(Text(short(median(_of_layers(layers, "lean")))) for layers in (start, end)),
            ]

    groups = evidence.networks
    title = "Balanced networks (Definitions 1 and 2), before and after training"
    notes = f"{NOTES} {LINKS} {precision_text(groups)}" if groups else absent(NETWORKS)
    return tables.build(evidence, "theory_balance", title, HEADS, 3, notes, groups, lines, _records)


def _networks(groups: Sequence[Group]) -> list[str]:
    """The names that the tasks give their networks."""
    return list(dict.fromkeys(name for group in groups for record in group.records for name in record["networks"]))


def _layers(group: Group, network: str, when: str) -> Layers:
    """The layers of all seeds."""
    return [layer for record in group.records for layer in record["networks"].get(network, {}).get(when) or []]


def _balanced(layers: Layers) -> int:
    return sum(bool(layer["balanced"]) for layer in layers)


def _of_layers(layers: Layers, quantity: str, quantile: str = "median") -> list[float]:
    return known(layer[quantity][quantile] for layer in layers)


def _records(group: Group) -> Iterator[dict[str, str]]:
    for network in _networks([group]):
        found = {"network": network}
        for when in ("start", "end"):
            layers = _layers(group, network, when)
            found |= {f"layers_{when}": str(len(layers)), f"balanced_{when}": str(_balanced(layers))}
            found |= spread(f"norm_{when}", _of_layers(layers, "norm"), median)
            found[f"norm_{when}_of_any_neuron"] = exact(max(_of_layers(layers, "norm", "max"), default=None))
            found[f"lean_{when}"] = exact(median(_of_layers(layers, "lean")))
        yield found


# Figures


@style.house_style()
def balance_figure(evidence: Evidence) -> Figure:
    """A row per task, variant and network: norm on the left, lean on the right; start dotted, end solid."""
    shown = [(row, network, groups) for row, groups in rows(evidence.networks).items() for network in _networks(groups)]
    if not shown:
        return panels.nothing(evidence, BALANCE, absent(NETWORKS))
    figure, axes = panels.empty(evidence, BALANCE, len(shown), 2)
    for place, (row, network, groups) in enumerate(shown):
        left, right = axes[2 * place : 2 * place + 2]
        palette = panels.colours(groups)
        for group in groups:
            _draw_balance(left, group, network, "norm", palette[group.label], 0.0)
            _draw_balance(right, group, network, "lean", palette[group.label], FLOOR)
        of_network = "" if network == "network" else f", {network}"
        _log_limits(left, 0.5, 2.0)
        _log_limits(right, FLOOR / 2, 1.0)
        for panel, label in ((left, "norm of a neuron (balanced: 1)"), (right, "lean of a neuron (balanced: 0)")):
            panel.set(xlabel="layer", ylabel=label)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.set_title(panel, f"{cells.row_text(row)}{of_network}", [], panels.SMALL_WIDTH)
            style.legend_below(panel)
    return style.freeze_layout(figure)


def _draw_balance(axes: Axes, group: Group, network: str, quantity: str, colour: str, floor: float) -> None:
    for when, linestyle in (("start", style.VARIANT), ("end", style.OURS)):
        seeds = [record["networks"].get(network, {}).get(when) or [] for record in group.records]
        if any(seeds):
            places, middle, ends = _over_seeds(seeds, quantity, lambda value: max(value, floor))
            shown, label = None if when == "start" else ends, f"{group.label}, {when}"
            panels.band(axes, places, middle, shown, colour, group, label, linestyle, _marker(places))


def _log_limits(axes: Axes, low: float, high: float) -> None:
    """A log scale for all values drawn and these two, so that small deviations from one are not magnified."""
    drawn = [values for series in style.record(axes).series for values in (series.mean, series.low, series.high)]
    values = np.concatenate([[low, high], *(part[part > 0] for part in drawn if part is not None)])
    axes.set(ylim=(values.min() / 1.15, values.max() * 1.15))
    axes.set_yscale("log")
    panels.log_axis(axes.yaxis)


@style.house_style()
def activations_figure(evidence: Evidence) -> Figure:
    """A row per task and variant: variance and mean of outputs, at the start and the end; predictions dotted."""
    measured, without = evidence.measured("activations"), evidence.unmeasured("activations")
    if not measured:
        return panels.nothing(evidence, ACTIVATIONS, f"Not measured: {without}." if without else absent(NETWORKS))
    by_row = rows(measured)
    title = f"{ACTIVATIONS}\n(not measured: {without})" if without else ACTIVATIONS
    figure, axes = panels.empty(evidence, title, len(by_row), 4, panels.SMALL)
    for place, (row, groups) in enumerate(by_row.items()):
        row_panels = axes[4 * place : 4 * place + 4]
        shown = itertools.product(("variance", "mean"), ("start", "end"))
        for panel, (quantity, when) in zip(row_panels, shown, strict=True):
            notes = _draw_activations(panel, groups, quantity, when)
            style.set_title(panel, f"{cells.row_text(row)}: {quantity}, {when}", notes, panels.SMALL_WIDTH)
            style.legend_below(panel)
        panels.share_limits(row_panels[:2])
        panels.share_limits(row_panels[2:])
    return style.freeze_layout(figure)


def _draw_activations(axes: Axes, groups: Sequence[Group], quantity: str, when: str) -> list[str]:
    """Draw every optimiser; returns a note on those that are missing."""
    palette = panels.colours(groups)
    log, missing = quantity == "variance", []
    for group in groups:
        seeds = [record["activations"].get(when) or [] for record in group.records]
        if not any(seeds):
            missing.append(group.name)
            continue
        measured, predicted = (quantity, style.OURS, ""), (f"predicted_{quantity}", style.VARIANT, ", predicted")
        for key, linestyle, suffix in (measured, predicted):
            places, middle, ends = _over_seeds(seeds, key)
            if log:
                middle, ends = panels.positive(middle), (panels.positive(ends[0]), panels.positive(ends[1]))
            shown, label = None if suffix else ends, f"{group.label}{suffix}"
            panels.band(axes, places, middle, shown, palette[group.label], group, label, linestyle, _marker(places))
    if log:
        axes.set_yscale("log")
        panels.log_axis(axes.yaxis)
    else:
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.yaxis.set_major_locator(panels.SignedPowers(LINEAR))
    axes.set(xlabel="layer", ylabel=f"{quantity} of a neuron's output")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return [f"missing: {', '.join(missing)}"] if missing else []


def _over_seeds(
    seeds: Sequence[Layers], quantity: str, transform: Callable[[float], float] = float
) -> tuple[list[float], panels.Values, tuple[panels.Values, panels.Values]]:
    """Layers counted from 1; the mean over seeds of medians, and the outermost of 5th and 95th percentiles."""
    places = range(max(map(len, seeds)))

    def of_layers(quantile: str) -> Iterator[list[float]]:
        for place in places:
            found = known(layers[place][quantity][quantile] for layers in seeds if place < len(layers))
            yield [transform(value) for value in found]

    middle = [mean(values) for values in of_layers("median")]
    low = [min(values, default=None) for values in of_layers("low")]
    high = [max(values, default=None) for values in of_layers("high")]
    return [float(place + 1) for place in places], middle, (low, high)


def _marker(places: Sequence[float]) -> str:
    """Mark the points of a few layers: a line through one alone is invisible."""
    return "." if len(places) <= 12 else ""
