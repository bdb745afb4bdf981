"""Steps of training: stability, deep relative trust, and how far steps move and turn neurons."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, Text, exact
from nero.report.theory import tables
from nero.report.theory.evidence import Evidence, Group, absent, precision_text
from nero.report.theory.panels import BLACK, DrawGroup, Values, band, by_optimizer, log_axis, nothing, positive
from nero.report.theory.tables import known, median, percentile, share_text, short
from nero.theory.records import STEPS

Step = Mapping[str, Any]
Layer = Mapping[str, Any]

HEADS = [
    "task",
    "optimiser",
    "steps",
    "stable (Definition 3)",
    "within deep relative trust (Definition 4)",
    "gradient change / trust",
    "steps that lowered their loss",
    "relative step of a layer",
    "relative step / η",
    "turning angle (radians)",
    "turning angle / η",
]
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
TRUST = "Stable steps and deep relative trust (Definitions 3 and 4): median and range over layers"
SIZES = "Relative size of steps and turning angles of neurons (Definition 5): median, 5th to 95th percentile"
GREY, BLUE = style.VARIANTS
XLABEL = "step (the first is 1)"


# Table


def steps_table(evidence: Evidence) -> Printed:
    """A line per optimiser."""

    def lines(group: Group) -> Iterator[Line]:
        stable, within, lowered = (share_text(sum(found), len(found)) for found in _counts(group).values())
        sizes = (Text(short(median(found)), short(percentile(found, 0.95))) for found in _sizes(group).values())
        steps = Text(str(len(_steps(group))), runs=group.links(evidence.store))
        yield [Text(group.label), steps, stable, within, Text(short(_trust_ratio(group))), lowered, *sizes]

    title = "Steps of training: stability, deep relative trust, relative size (Definitions 3 to 5)"
    notes = f"{NOTES} {precision_text(evidence.steps)}" if evidence.steps else absent(STEPS)
    return tables.build(evidence, "theory_steps", title, HEADS, 2, notes, evidence.steps, lines, _records)


def _records(group: Group) -> Iterator[dict[str, str]]:
    found = {"steps": str(len(_steps(group)))}
    for name, flags in _counts(group).items():
        found |= {name: str(sum(flags)), f"{name}_of": str(len(flags))}
    found["trust_ratio"] = exact(_trust_ratio(group))
    for name, values in _sizes(group).items():
        found |= {name: exact(median(values)), f"{name}_95": exact(percentile(values, 0.95))}
    yield found


def _steps(group: Group) -> list[Step]:
    """The measured steps of all seeds."""
    return [step for record in group.records for step in record["steps"]]


def _layers(group: Group) -> list[tuple[Step, Layer]]:
    return [(step, layer) for step in _steps(group) for layer in step["layers"]]


def _counts(group: Group) -> dict[str, list[bool]]:
    """Which steps, or layers of steps, have a property; null counts as no, where it is no longer a number."""
    return {
        "stable": [bool(step["stable"]) for step in _steps(group) if step["stable"] is not None],
        "within_trust": [
            layer["gradient_change"] is not None and layer["gradient_change"] <= step["trust"]
            for step, layer in _layers(group)
            if step["trust"] is not None
        ],
        "lowered": [
            step["loss_after"] is not None and step["loss_after"] < step["loss"]
            for step in _steps(group)
            if step["loss"] is not None
        ],
    }


def _sizes(group: Group) -> dict[str, list[float]]:
    """Relative steps and turning angles of layers, plain and over the learning rate."""
    found = {}
    for name, of_layer in _SIZES.items():
        sizes = [(step["lr"], of_layer(layer)) for step, layer in _layers(group)]
        found[name] = known(size for _, size in sizes)
        found[f"{name}_over_lr"] = [size / lr for lr, size in sizes if lr and size is not None]
    return found


_SIZES: dict[str, Callable[[Layer], float | None]] = {
    "relative_step": lambda layer: layer["relative_step"],
    "angle": lambda layer: layer["angles"]["median"],
}


def _trust_ratio(group: Group) -> float | None:
    """The median of gradient change over deep relative trust, for layers and steps that have both."""
    both = ((layer["gradient_change"], step["trust"]) for step, layer in _layers(group))
    return median([change / trust for change, trust in both if change is not None and trust is not None and trust > 0])


# Figures


@style.house_style()
def trust_figure(evidence: Evidence) -> Figure:
    """Gradient change, bound and cosine against the step, a panel per optimiser."""
    return _figure(evidence, TRUST, _draw_trust)


@style.house_style()
def steps_figure(evidence: Evidence) -> Figure:
    """Relative steps and angles of neurons against the step, and the learning rate, a panel per optimiser."""
    return _figure(evidence, SIZES, _draw_steps)


def _figure(evidence: Evidence, title: str, draw: DrawGroup) -> Figure:
    if not evidence.steps:
        return nothing(evidence, title, absent(STEPS))
    return by_optimizer(evidence, title, evidence.steps, draw)


def _draw_trust(axes: Axes, group: Group, colour: str) -> list[str]:
    steps = by_step(group)
    at, marker = list(steps), _marker(steps)
    cosine = _over_layers(steps, lambda layer: [layer["cosine"]] * 3)
    change = _over_layers(steps, lambda layer: [layer["gradient_change"]] * 3)
    band(axes, at, *cosine, BLUE, group, "cosine to the negative gradient", marker=marker)
    band(axes, at, *change, colour, group, "relative change of the gradient", marker=marker)
    band(axes, at, _medians(steps, "trust"), None, BLACK, group, "deep relative trust", style.THEIRS)
    _set_scales(axes, "relative change, cosine")
    cosines = known(layer["cosine"] for _, layer in _layers(group))
    below = sum(cosine <= 0 for cosine in cosines)
    return [f"not drawn: {below} of {len(cosines)} cosines that are 0 or less"] if below else []


def _draw_steps(axes: Axes, group: Group, colour: str) -> list[str]:
    steps = by_step(group)
    at, marker = list(steps), _marker(steps)
    sizes = _over_layers(steps, lambda layer: _quantiles(layer["neuron_steps"]))
    angles = _over_layers(steps, lambda layer: _quantiles(layer["angles"]))
    # The relative step is wide enough to stay visible below the angle.
    band(axes, at, *sizes, GREY, group, "relative step", marker=marker, width=3.0)
    band(axes, at, *angles, colour, group, "turning angle (radians)", marker=marker)
    band(axes, at, _medians(steps, "lr"), None, BLACK, group, "learning rate", style.THEIRS)
    _set_scales(axes, "of neurons")
    return []


def _quantiles(found: Mapping[str, float | None]) -> Values:
    return [found[end] for end in ("low", "median", "high")]


def by_step(group: Group) -> dict[float, list[Step]]:
    """The measurements of all seeds at each step, in order. The first step is 1, as a log axis has no 0."""
    found: dict[float, list[Step]] = {}
    for step in _steps(group):
        found.setdefault(float(step["step"]) + 1, []).append(step)
    return dict(sorted(found.items()))


def _medians(steps: Mapping[float, Sequence[Step]], key: str) -> Values:
    return positive([median(known(step[key] for step in of_step)) for of_step in steps.values()])


def _over_layers(
    steps: Mapping[float, Sequence[Step]], spread: Callable[[Layer], Values]
) -> tuple[Values, tuple[Values, Values]]:
    """For (low, middle, high) of each layer: the median of the middles, and the outermost of the others."""
    middles, lows, highs = [], [], []
    for of_step in steps.values():
        layers = [positive(spread(layer)) for step in of_step for layer in step["layers"]]
        low, middle, high = (known(values) for values in zip(*layers, strict=True)) if layers else ([], [], [])
        middles.append(median(middle))
        lows.append(min(low, default=None))
        highs.append(max(high, default=None))
    return middles, (lows, highs)


def _set_scales(axes: Axes, ylabel: str) -> None:
    axes.set(xlabel=XLABEL, ylabel=ylabel)
    if axes.lines:
        axes.set(xscale="log", yscale="log")
        log_axis(axes.yaxis)


def _marker(steps: Mapping[float, Sequence[Step]]) -> str:
    return "." if len(steps) <= 60 else ""
