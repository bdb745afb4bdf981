"""Table: how stable steps are, and how far they move and turn neurons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nero.report.tables.csv_format import exact
from nero.report.tables.sheets import Line, Printed, Sheet, Text, row_label
from nero.report.theory.evidence import Evidence, Group, absent, arithmetic, rows
from nero.report.theory.numbers import known, median, percentile, share_text, short
from nero.theory.records import STEPS

NAME = "theory_steps"
TITLE = "Steps of training: stability, deep relative trust, relative size (Definitions 3 to 5)"
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
    "Of steps chosen along a training, gradients being those of the step's own batch. Stable: in every layer the "
    "gradient changes, relatively, by less than the cosine between the step and the negative gradient. Within deep "
    "relative trust: layers and steps where it changes by no more than the product over layers of (1 + relative step), "
    "less 1. Gradient change / trust: the median of their ratio. Loss: of the step's batch, before and after. "
    "Relative step of a layer: norm of the step over norm of the weights, median and, in brackets, 95th percentile "
    "over layers and steps. Turning angle: of a layer's median neuron, the same over layers and steps. η is the "
    "learning rate at the time, which Definition 5 asks no neuron's step to exceed; Nero's steps are about as long "
    "where a gradient is as long as it has been on average."
)


@dataclass(frozen=True)
class Looked:
    """Steps that were looked at, of all seeds."""

    steps: Sequence[dict[str, Any]]

    @property
    def stable(self) -> list[bool]:
        return [bool(step["stable"]) for step in self.steps if step["stable"] is not None]

    @property
    def lowered(self) -> list[bool]:
        """Whether a step's batch has less loss after it; a loss that is no number any more is not less."""
        return [
            step["loss_after"] is not None and step["loss_after"] < step["loss"]
            for step in self.steps
            if step["loss"] is not None
        ]

    @property
    def trust(self) -> list[tuple[float, float]]:
        """(gradient change, bound) of layers and steps that have both."""
        return [
            (float(layer["gradient_change"]), float(step["trust"]))
            for step in self.steps
            for layer in step["layers"]
            if layer["gradient_change"] is not None and step["trust"] is not None
        ]

    @property
    def within(self) -> list[bool]:
        """Of layers and steps that have a bound; a gradient that is no number any more is not within it."""
        return [
            layer["gradient_change"] is not None and layer["gradient_change"] <= step["trust"]
            for step in self.steps
            for layer in step["layers"]
            if step["trust"] is not None
        ]

    @property
    def trust_ratios(self) -> list[float]:
        return [change / bound for change, bound in self.trust if bound > 0]

    @property
    def relative_steps(self) -> list[float]:
        return known(layer["relative_step"] for step in self.steps for layer in step["layers"])

    @property
    def angles(self) -> list[float]:
        return known(layer["angles"]["median"] for step in self.steps for layer in step["layers"])

    @property
    def relative_steps_in_rates(self) -> list[float]:
        return [
            layer["relative_step"] / step["lr"]
            for step in self.steps
            for layer in step["layers"]
            if step["lr"] and layer["relative_step"] is not None
        ]

    @property
    def angles_in_rates(self) -> list[float]:
        return [
            layer["angles"]["median"] / step["lr"]
            for step in self.steps
            for layer in step["layers"]
            if step["lr"] and layer["angles"]["median"] is not None
        ]


def steps_table(evidence: Evidence) -> Printed:
    """A line per optimiser, a block per task and its settings."""
    blocks: list[list[Line]] = []
    records = []
    for row, groups in rows(evidence.steps).items():
        lines: list[Line] = []
        for group in groups:
            looked = Looked([step for record in group.records for step in record["steps"]])
            lines.append([row_label(row) if not lines else Text(""), *_line(evidence, group, looked)])
            records.append({**group.head(evidence.embedded), **_numbers(looked)})
        blocks.append(lines)
    notes = f"{NOTES} {arithmetic(evidence.steps)}" if blocks else absent(STEPS)
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 2), notes, tuple(records), evidence.warning)


def _line(evidence: Evidence, group: Group, looked: Looked) -> Line:
    return [
        Text(group.label),
        Text(str(len(looked.steps)), runs=group.links(evidence.store)),
        _share(looked.stable),
        _share(looked.within),
        Text(short(median(looked.trust_ratios))),
        _share(looked.lowered),
        _spread(looked.relative_steps),
        _spread(looked.relative_steps_in_rates),
        _spread(looked.angles),
        _spread(looked.angles_in_rates),
    ]


def _share(found: Sequence[bool]) -> Text:
    return share_text(sum(found), len(found))


def _spread(values: Sequence[float]) -> Text:
    return Text(short(median(values)), short(percentile(values, 0.95)))


def _numbers(looked: Looked) -> dict[str, str]:
    counted = {"stable": looked.stable, "within_trust": looked.within, "lowered": looked.lowered}
    spread = {
        "relative_step": looked.relative_steps,
        "relative_step_over_lr": looked.relative_steps_in_rates,
        "angle": looked.angles,
        "angle_over_lr": looked.angles_in_rates,
    }
    found = {"steps": str(len(looked.steps))}
    for name, values in counted.items():
        found |= {name: str(sum(values)), f"{name}_of": str(len(values))}
    found["trust_ratio"] = exact(median(looked.trust_ratios))
    for name, numbers in spread.items():
        found |= {name: exact(median(numbers)), f"{name}_95": exact(percentile(numbers, 0.95))}
    return found
