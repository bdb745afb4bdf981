"""Layers of networks before and after training: how balanced their neurons are, and statistics of their outputs."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Printed, Text
from nero.report.theory import panels, tables
from nero.report.theory.evidence import LINKS, Evidence, Group, precision_text, rows
from nero.report.theory.tables import share_text, short, span, spread
from nero.theory.records import NETWORKS

NOTES = (
    "A layer is balanced if the weights of each neuron have sum 0 and norm 1, up to rounding. Norm: of a neuron's "
    "weights, the median over layers of the layers' medians, with the least and the largest of those in brackets. "
    "Imbalance: the part of a neuron along the vector of ones, |sum| / (square root of fan-in × norm), from 0 "
    "(excitation and inhibition balanced) to 1; median over layers of medians. With several seeds, over the layers of "
    "all of them."
)
TITLE = "Balanced networks (Definitions 1 and 2), before and after training"
BALANCE = "Neurons of each layer (Definition 1): median and 5th to 95th percentile"
ACTIVATIONS = "Outputs of each layer (Section 3.1): median and 5th to 95th percentile of its neurons"
FLOOR = 1e-9  # a smaller imbalance is drawn here: it is below float32's resolution
LINEAR = 0.01  # the axis of means, which have both signs, is linear up to here
# Larger and smaller outputs leave the panel: variances that explode over layers would leave no room for the others.
BOUNDS = {"variance": (1e-18, 1e18), "mean": (-1e9, 1e9)}
LABELS = {
    "norm": "norm of a neuron (balanced: 1)",
    "lean": "imbalance of a neuron (balanced: 0)\n|sum of weights| / (√fan-in × norm)",
}
STAGES = {"start": style.VARIANT, "end": style.OURS}  # before and after training, and their lines


class Network:
    """One of a group's networks: a line per layer and seed, before and after training."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name
        found = [record["networks"].get(name, {}) for record in group.records]
        self.start, self.end = (_frame([stages.get(when) or [] for stages in found]) for when in STAGES)


def _networks(groups: Iterable[Group]) -> dict[str, None]:
    """The names that the tasks give their networks."""
    return dict.fromkeys(name for group in groups for record in group.records for name in record["networks"])


def _frame(seeds: Sequence[Sequence[Mapping[str, Any]]]) -> pd.DataFrame:
    """Layers of all seeds, counted from 1, with quantiles of their neurons, such as "norm.median"."""
    found = [{**layer, "layer": place} for layers in seeds for place, layer in enumerate(layers, 1)]
    quantities = ("norm", "lean", "mean", "variance", "predicted_mean", "predicted_variance")
    quantiles = [".".join(pair) for pair in itertools.product(quantities, ("low", "median", "high", "max"))]
    return pd.json_normalize(found).reindex(columns=["layer", "balanced", *quantiles]).astype(float)


# Table


def _norm_text(layers: pd.DataFrame) -> Text:
    return Text(short(layers["norm.median"].median()), span(layers["norm.median"]))


COLUMNS: tables.Columns = {
    "optimiser": lambda network: Text(network.group.label, runs=network.group.links),
    "network": lambda network: network.name,
    "epochs": lambda network: network.group.epochs,
    "balanced layers, start": lambda network: share_text(network.start["balanced"] == 1),
    "balanced layers, end": lambda network: share_text(network.end["balanced"] == 1),
    "norm, start": lambda network: _norm_text(network.start),
    "norm, end": lambda network: _norm_text(network.end),
    "largest norm, end": lambda network: short(network.end["norm.max"].max()),
    "imbalance, start": lambda network: short(network.start["lean.median"].median()),
    "imbalance, end": lambda network: short(network.end["lean.median"].median()),
}


def balance_table(evidence: Evidence) -> Printed:
    """A line per optimiser and network."""

    def notes(groups: Sequence[Group]) -> list[str]:
        return [NOTES, LINKS, precision_text(groups)]

    def networks(group: Group) -> Iterator[Network]:
        return (Network(group, name) for name in _networks([group]))

    return tables.build(evidence, NETWORKS, "theory_balance", TITLE, COLUMNS, notes, networks, _record, labels=3)


def _record(network: Network) -> dict[str, Any]:
    found: dict[str, Any] = {"network": network.name}
    for when, layers in (("start", network.start), ("end", network.end)):
        found |= {f"layers_{when}": len(layers), f"balanced_{when}": (layers["balanced"] == 1).sum()}
        found |= spread(f"norm_{when}", layers["norm.median"], "median")
        found[f"norm_{when}_of_any_neuron"] = layers["norm.max"].max()
        found[f"imbalance_{when}"] = layers["lean.median"].median()
    return found


# Figures


def balance_figure(evidence: Evidence) -> Figure:
    """A row per task, variant and network: norm on the left, imbalance on the right; start dotted, end solid."""

    def lines(groups: Sequence[Group]) -> Iterator[panels.Line]:
        for row, of_row in rows(groups).items():
            for name in _networks(of_row):
                title = cells.row_text(row) + ("" if name == "network" else f", {name}")
                networks = [Network(group, name) for group in of_row]
                left = partial(_draw_balance, networks, "norm", 0.0, (0.5, 2.0))
                yield [(title, left), (title, partial(_draw_balance, networks, "lean", FLOOR, (FLOOR / 2, 1.0)))]

    return panels.figure(evidence, NETWORKS, BALANCE, panels.LARGE, lines, share=False)


def _draw_balance(
    networks: Sequence[Network], quantity: str, floor: float, limits: tuple[float, float], axes: Axes
) -> Iterable[str]:
    palette = panels.colours([network.group for network in networks])
    for network in networks:
        for when, linestyle in STAGES.items():
            layers = getattr(network, when).clip(lower=floor)
            label = f"{network.group.label}, {when}"
            _draw(axes, layers, quantity, network.group, label, palette[network.group.label], linestyle, when == "end")
    # All values drawn and these limits, so that small deviations from one are not magnified.
    drawn = [values for series in style.record(axes).series for values in (series.mean, series.low, series.high)]
    shown = np.concatenate([limits, *(part[part > 0] for part in drawn if part is not None)])
    axes.set(ylim=(shown.min() / 1.15, shown.max() * 1.15))
    axes.set_yscale("log")
    panels.log_axis(axes.yaxis)
    axes.set(xlabel="layer", ylabel=LABELS[quantity])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return []


def activations_figure(evidence: Evidence) -> Figure:
    """A row per task and variant: variance and mean of outputs, at the start and the end; predictions dotted."""

    def lines(groups: Sequence[Group]) -> Iterator[panels.Line]:
        for row, of_row in rows(groups).items():
            shown = list(itertools.product(("variance", "mean"), STAGES))
            titles = [f"{quantity.capitalize()}, {when}: {cells.row_text(row)}" for quantity, when in shown]
            yield [
                (title, partial(_draw_activations, of_row, *which)) for title, which in zip(titles, shown, strict=True)
            ]

    return panels.figure(evidence, "activations", ACTIVATIONS, panels.LARGE, lines)


def _draw_activations(groups: Sequence[Group], quantity: str, when: str, axes: Axes) -> Iterable[str]:
    """Draw every optimiser; returns a note on those that are missing."""
    palette, missing = panels.colours(groups), []
    for group in groups:
        layers = _frame([record["activations"].get(when) or [] for record in group.records])
        if layers.empty:
            missing.append(group.name)
            continue
        if quantity == "variance":
            layers = layers.where(layers > 0)
        colour = palette[group.label]
        _draw(axes, layers, quantity, group, group.label, colour, style.OURS, True)
        _draw(axes, layers, f"predicted_{quantity}", group, f"{group.label}, predicted", colour, style.VARIANT, False)
    if quantity == "variance":
        axes.set_yscale("log")
        panels.log_axis(axes.yaxis)
    else:
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.yaxis.set_major_locator(panels.SignedPowers(LINEAR))
    axes.set(xlabel="layer", ylabel=f"{quantity} of a neuron's output")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    notes = [f"missing: {', '.join(missing)}"] if missing else []
    return [*notes, *_bound(axes, *BOUNDS[quantity])]


def _bound(axes: Axes, least: float, most: float) -> Iterator[str]:
    """Limit the y axis, and note what lies beyond."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, least), min(high, most))
    for series in style.record(axes).series:
        values = series.mean[np.isfinite(series.mean)]
        if beyond := [short(value) for value in (values.min(), values.max()) if not least <= value <= most]:
            yield f"beyond the axis: {series.label}, to {' and '.join(beyond)}"


def _draw(
    axes: Axes, layers: pd.DataFrame, quantity: str, group: Group, label: str, colour: str, linestyle: str, spread: bool
) -> None:
    """Against the layer: the mean over seeds of medians, and the outermost of 5th and 95th percentiles."""
    by_layer = layers.groupby("layer")
    middle = by_layer[f"{quantity}.median"].mean()
    ends = (by_layer[f"{quantity}.low"].min(), by_layer[f"{quantity}.high"].max()) if spread else None
    marker = "." if len(middle) <= 12 else ""  # a line through one point alone is invisible
    panels.band(axes, middle.index, middle, ends, colour, group, label, linestyle, marker)
