"""Steps of training: stability, deep relative trust, and how far steps move and turn neurons."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Printed, Text
from nero.report.theory import panels, tables
from nero.report.theory.evidence import Evidence, Group, precision_text, rows
from nero.report.theory.panels import BLACK, Line, band
from nero.report.theory.tables import share_text, short
from nero.theory.records import STEPS

NOTES = (
    "For steps chosen along a training, with gradients of the step's own batch. Stable: in every layer the gradient "
    "changes, relatively, by less than the cosine between the step and the negative gradient. Within deep relative "
    "trust: layers and steps where it changes by no more than the product over layers of (1 + relative step), less 1. "
    "Gradient change / trust: the median of their ratio. Loss: of the step's batch, before and after. Relative step of "
    "a layer: norm of the step over norm of the weights, median and, in brackets, 95th percentile over layers and "
    "steps. Turning angle: of a layer's median neuron, likewise over layers and steps. η is the learning rate at the "
    "time, which Definition 5 asks no neuron's step to exceed; Nero's steps are about as long where a gradient is as "
    "long as it has been on average."
)
TITLE = "Steps of training: stability, deep relative trust, relative size (Definitions 3 to 5)"
TRUST = "Stable steps and deep relative trust (Definitions 3 and 4): median and range over layers"
SIZES = "Relative size of steps and turning angles of neurons (Definition 5): median, 5th to 95th percentile"
GREY, BLUE = style.VARIANTS


class Steps:
    """The measured steps of all seeds of a group.

    steps, layers:  a line per step, and per layer of a step
    flags:          which steps, or layers of steps, have a property; null counts as no, where it is no longer a number
    sizes:          relative steps and turning angles of layers, plain and over the learning rate
    """

    def __init__(self, group: Group) -> None:
        found = [step for record in group.records for step in record["steps"]]
        columns = ["step", "lr", "trust", "loss", "loss_after", "stable"]
        self.group, self.steps = group, pd.DataFrame(found)[columns].astype(float)
        layers = pd.json_normalize(found, "layers", ["step", "lr", "trust"])
        self.layers = layers = layers.drop(columns="name").astype(float)
        lr = layers["lr"].where(layers["lr"] != 0)
        trusted, known = layers[layers["trust"].notna()], self.steps[self.steps["loss"].notna()]
        self.flags = {
            "stable": self.steps["stable"].dropna() == 1,
            "within_trust": trusted["gradient_change"] <= trusted["trust"],
            "lowered": known["loss_after"] < known["loss"],
        }
        self.sizes = {
            "relative_step": layers["relative_step"],
            "relative_step_over_lr": layers["relative_step"] / lr,
            "angle": layers["angles.median"],
            "angle_over_lr": layers["angles.median"] / lr,
        }
        self.trust_ratio = (layers["gradient_change"] / layers["trust"].where(layers["trust"] > 0)).median()


# Table


def _size_column(name: str) -> Callable[[Steps], Text]:
    return lambda steps: Text(short(steps.sizes[name].median()), short(float(steps.sizes[name].quantile(0.95))))


COLUMNS: tables.Columns = {
    "optimiser": lambda steps: steps.group.label,
    "steps": lambda steps: Text(str(len(steps.steps)), runs=steps.group.links),
    "stable (Definition 3)": lambda steps: share_text(steps.flags["stable"]),
    "within deep relative trust (Definition 4)": lambda steps: share_text(steps.flags["within_trust"]),
    "gradient change / trust": lambda steps: short(steps.trust_ratio),
    "steps that lowered their loss": lambda steps: share_text(steps.flags["lowered"]),
    "relative step of a layer": _size_column("relative_step"),
    "relative step / η": _size_column("relative_step_over_lr"),
    "turning angle (radians)": _size_column("angle"),
    "turning angle / η": _size_column("angle_over_lr"),
}


def steps_table(evidence: Evidence) -> Printed:
    """A line per optimiser."""

    def notes(groups: Sequence[Group]) -> list[str]:
        return [NOTES, precision_text(groups)]

    return tables.build(evidence, STEPS, "theory_steps", TITLE, COLUMNS, notes, lambda group: [Steps(group)], _record)


def _record(steps: Steps) -> dict[str, Any]:
    found: dict[str, Any] = {"steps": len(steps.steps)}
    for name, flags in steps.flags.items():
        found |= {name: flags.sum(), f"{name}_of": len(flags)}
    found["trust_ratio"] = steps.trust_ratio
    for name, values in steps.sizes.items():
        found |= {name: values.median(), f"{name}_95": values.quantile(0.95)}
    return found


# Figures


def trust_figure(evidence: Evidence) -> Figure:
    """Gradient change, bound and cosine against the step, a panel per optimiser."""
    return panels.figure(evidence, STEPS, TRUST, panels.LARGE, partial(_lines, _draw_trust))


def steps_figure(evidence: Evidence) -> Figure:
    """Relative steps and angles of neurons against the step, and the learning rate, a panel per optimiser."""
    return panels.figure(evidence, STEPS, SIZES, panels.LARGE, partial(_lines, _draw_sizes))


def _lines(draw: Callable[[Steps, str, Axes], Iterable[str]], groups: Sequence[Group]) -> Iterator[Line]:
    for row, of_row in rows(groups).items():
        palette = panels.colours(of_row)
        titles = [f"{group.label} ({cells.row_text(row)})" for group in of_row]
        yield [(title, partial(draw, Steps(g), palette[g.label])) for title, g in zip(titles, of_row, strict=True)]


def _draw_trust(steps: Steps, colour: str, axes: Axes) -> Iterable[str]:
    _draw(axes, steps, "cosine to the negative gradient", BLUE, ["cosine"] * 3)
    _draw(axes, steps, "relative change of the gradient", colour, ["gradient_change"] * 3)
    _draw_over_steps(axes, steps, "deep relative trust", "trust")
    _set_scales(axes, "relative change, cosine")
    cosines = steps.layers["cosine"].dropna()
    below = (cosines <= 0).sum()
    return [f"not drawn: {below} of {len(cosines)} cosines that are 0 or less"] if below else []


def _draw_sizes(steps: Steps, colour: str, axes: Axes) -> Iterable[str]:
    sizes, angles = (
        [f"{quantity}.{end}" for end in ("low", "median", "high")] for quantity in ("neuron_steps", "angles")
    )
    _draw(axes, steps, "relative step", GREY, sizes)
    _draw(axes, steps, "turning angle (radians)", colour, angles)
    _draw_over_steps(axes, steps, "learning rate", "lr")
    _set_scales(axes, "relative step, angle of neurons")
    return []


def _draw(axes: Axes, steps: Steps, label: str, colour: str, columns: Sequence[str]) -> None:
    """At each step, over layers, the median of the middle column and the outermost of the others."""
    layers, (low, middle, high) = steps.layers, columns
    by_step = layers.where(layers > 0).groupby(layers["step"] + 1)  # the first is 1, as a log axis has no 0
    middles, ends = by_step[middle].median(), (by_step[low].min(), by_step[high].max())
    marker = "." if len(middles) <= 60 else ""
    band(axes, middles.index, middles, ends, colour, steps.group, label, marker=marker)


def _draw_over_steps(axes: Axes, steps: Steps, label: str, column: str) -> None:
    middles = steps.steps[column].groupby(steps.steps["step"] + 1).median()
    band(axes, middles.index, middles.where(middles > 0), None, BLACK, steps.group, label, style.THEIRS)


def _set_scales(axes: Axes, ylabel: str) -> None:
    axes.set(xlabel="step (the first is 1)", ylabel=ylabel)
    if axes.lines:
        axes.set(xscale="log", yscale="log")
        panels.log_axis(axes.yaxis)
