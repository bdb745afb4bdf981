"""Table: how balanced networks are when their training starts, and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nero.report.tables.csv_format import exact
from nero.report.tables.sheets import Line, Printed, Sheet, Text, row_label
from nero.report.theory.evidence import LINKS, Evidence, Group, absent, arithmetic, rows
from nero.report.theory.numbers import known, median, share_text, short, span
from nero.theory.records import NETWORKS

NAME = "theory_balance"
TITLE = "Balanced networks (Definitions 1 and 2), before and after training"
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
    "A layer is balanced where each of its neurons has weights of sum 0 and norm 1, but for rounding. Norm: of a "
    "neuron's weights, the median over layers of a layer's median; in brackets the least and the largest of those "
    "medians. Lean: how much of a neuron lies along the vector of ones, |sum| / (square root of fan-in × norm), from 0 "
    "(excitation and inhibition balanced) to 1; median over layers of medians. Over the layers of all seeds, where "
    "there are several."
)


@dataclass(frozen=True)
class Layers:
    """Those of one network at one time, of all seeds."""

    layers: Sequence[dict[str, Any]]

    @property
    def balanced(self) -> int:
        return sum(bool(layer["balanced"]) for layer in self.layers)

    def of(self, quantity: str, place: str = "median") -> list[float]:
        return known(layer[quantity][place] for layer in self.layers)


def balance_table(evidence: Evidence) -> Printed:
    """A line per optimiser and network, a block per task and its settings."""
    blocks: list[list[Line]] = []
    records = []
    for row, groups in rows(evidence.networks).items():
        lines: list[Line] = []
        for group in groups:
            for network in networks(group):
                start, end = (_layers(group, network, when) for when in ("start", "end"))
                first = row_label(row) if not lines else Text("")
                lines.append([first, *_line(evidence, group, network, start, end)])
                records.append({**group.head(evidence.embedded), "network": network, **_numbers(start, end)})
        blocks.append(lines)
    notes = f"{NOTES} {LINKS} {arithmetic(evidence.networks)}" if blocks else absent(NETWORKS)
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 3), notes, tuple(records), evidence.warning)


def networks(group: Group) -> list[str]:
    """Their names, as the task has them."""
    return list(dict.fromkeys(name for record in group.records for name in record["networks"]))


def _layers(group: Group, network: str, when: str) -> Layers:
    return Layers([layer for record in group.records for layer in record["networks"].get(network, {}).get(when) or []])


def _line(evidence: Evidence, group: Group, network: str, start: Layers, end: Layers) -> Line:
    largest = end.of("norm", "max")
    return [
        Text(group.label, runs=group.links(evidence.store)),
        Text(network),
        Text(group.epochs),
        share_text(start.balanced, len(start.layers)),
        share_text(end.balanced, len(end.layers)),
        *(Text(short(median(when.of("norm"))), span(when.of("norm"))) for when in (start, end)),
        Text(short(max(largest)) if largest else ""),
        *(Text(short(median(when.of("lean")))) for when in (start, end)),
    ]


def _numbers(start: Layers, end: Layers) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, when in (("start", start), ("end", end)):
        norms, largest = when.of("norm"), when.of("norm", "max")
        found |= {
            f"layers_{name}": str(len(when.layers)),
            f"balanced_{name}": str(when.balanced),
            f"norm_{name}": exact(median(norms)),
            f"norm_{name}_least": exact(min(norms, default=None)),
            f"norm_{name}_most": exact(max(norms, default=None)),
            f"norm_{name}_of_any_neuron": exact(max(largest, default=None)),
            f"lean_{name}": exact(median(when.of("lean"))),
        }
    return found
