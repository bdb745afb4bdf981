"""Figures over the steps of a training: deep relative trust, and how far steps move and turn neurons."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.report.figures import style
from nero.report.theory.evidence import Evidence, Group, absent
from nero.report.theory.numbers import known, median
from nero.report.theory.panels import Draw, band, by_optimiser, log_axis, nothing, positive
from nero.theory.records import STEPS

TRUST = "Stable steps and deep relative trust (Definitions 3 and 4): median and range over layers"
STEP_SIZES = "Relative size of steps and turning angles of neurons (Definition 5): median, 5th to 95th percentile"
GREY, BLUE = style.VARIANTS
BLACK = "#000000"
FROM_ONE = "step (the first is 1)"
SIZES = {"neuron_steps": ("relative step", 3.0), "angles": ("turning angle (radians)", 1.2)}
"""Of neurons, by their keys; as wide as shows that one lies on the other."""

Layer = Mapping[str, Any]
Drawn = tuple[list[float | None], tuple[list[float | None], list[float | None]]]


@style.house_style()
def trust_figure(evidence: Evidence) -> Figure:
    """Gradient change, bound and cosine against the step, a panel per optimiser."""
    return _of_steps(evidence, TRUST, _draw_trust)


@style.house_style()
def steps_figure(evidence: Evidence) -> Figure:
    """Relative steps and angles of neurons against the step, and the learning rate, a panel per optimiser."""
    return _of_steps(evidence, STEP_SIZES, _draw_steps)


def _of_steps(evidence: Evidence, title: str, draw: Draw) -> Figure:
    if not evidence.steps:
        return nothing(evidence, title, absent(STEPS))
    return by_optimiser(evidence, title, evidence.steps, draw)


def _draw_trust(axes: Axes, group: Group, colour: str) -> Iterator[str]:
    steps = by_step(group)
    at = list(steps)
    change = _over_layers(steps, lambda layer: (layer["gradient_change"],) * 3)
    cosine = _over_layers(steps, lambda layer: (layer["cosine"],) * 3)
    trust = positive([median(known(step["trust"] for step in of_step)) for of_step in steps.values()])
    band(axes, at, *cosine, BLUE, group, "cosine to the negative gradient", marker="." * _few(at))
    band(axes, at, *change, colour, group, "relative change of the gradient", marker="." * _few(at))
    band(axes, at, trust, None, BLACK, group, "deep relative trust", style.THEIRS)
    axes.set(xlabel=FROM_ONE, ylabel="relative change, cosine")
    _log(axes)
    return _below_zero(steps)


def _below_zero(steps: Mapping[float, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Cosines that a log axis has no place for, in words."""
    cosines = known(layer["cosine"] for of_step in steps.values() for step in of_step for layer in step["layers"])
    if below := sum(cosine <= 0 for cosine in cosines):
        yield f"not drawn: {below} of {len(cosines)} cosines that are 0 or less"


def _draw_steps(axes: Axes, group: Group, colour: str) -> Iterator[str]:
    steps = by_step(group)
    at = list(steps)
    for key, (words, width) in SIZES.items():
        spread = _over_layers(steps, partial(_quantiles, key=key))
        shade = colour if key == "angles" else GREY
        band(axes, at, *spread, shade, group, words, marker="." * _few(at), width=width)
    rates = positive([median(known(step["lr"] for step in of_step)) for of_step in steps.values()])
    band(axes, at, rates, None, BLACK, group, "learning rate", style.THEIRS)
    axes.set(xlabel=FROM_ONE, ylabel="of neurons")
    _log(axes)
    return iter(())


def _quantiles(layer: Layer, key: str) -> Sequence[float | None]:
    return [layer[key][end] for end in ("low", "median", "high")]


def by_step(group: Group) -> dict[float, list[Mapping[str, Any]]]:
    """What was seen at each step, of all seeds; steps in order, the first being step 1, for a log axis has no 0."""
    found: dict[float, list[Mapping[str, Any]]] = {}
    for record in group.records:
        for step in record["steps"]:
            found.setdefault(float(step["step"]) + 1, []).append(step)
    return dict(sorted(found.items()))


def _over_layers(
    steps: Mapping[float, Sequence[Mapping[str, Any]]], spread: Callable[[Layer], Sequence[float | None]]
) -> Drawn:
    """Of what `spread` says of a layer (low, middle, high): the median of middles, the outermost of the others."""
    middles, lows, highs = [], [], []
    for of_step in steps.values():
        layers = [positive(spread(layer)) for step in of_step for layer in step["layers"]]
        low, middle, high = (known(values) for values in zip(*layers, strict=True)) if layers else ([], [], [])
        middles.append(median(middle))
        lows.append(min(low, default=None))
        highs.append(max(high, default=None))
    return middles, (lows, highs)


def _log(axes: Axes) -> None:
    if axes.lines:
        axes.set(xscale="log", yscale="log")
        log_axis(axes.yaxis)


def _few(at: Sequence[float]) -> bool:
    """Whether the steps are seen one by one."""
    return len(at) <= 60
