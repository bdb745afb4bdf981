"""Shared by the theory's tables: a line per group, and numbers that may be null (not finite, or not measured)."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nero.report.tables.sheets import Line, Printed, Sheet, Text, exact, row_label
from nero.report.theory.evidence import Evidence, Group, rows

DIGITS = 3


def build(
    evidence: Evidence,
    name: str,
    title: str,
    heads: list[str],
    labels: int,
    notes: str,
    groups: Sequence[Group],
    lines: Callable[[Group], Iterable[Line]],
    records: Callable[[Group], Iterable[dict[str, str]]],
) -> Printed:
    """A table with a block per task and variant; `lines` leave out the task, `records` the columns of all CSVs."""
    blocks = []
    for row, of_row in rows(groups).items():
        block = [line for group in of_row for line in lines(group)]
        blocks.append([[Text("") if place else row_label(row), *line] for place, line in enumerate(block)])
    csv = tuple({**group.head(evidence.embedded), **record} for group in groups for record in records(group))
    return Printed(name, title, Sheet(heads, blocks, labels), notes, csv, evidence.warning)


def known(values: Iterable[Any]) -> list[float]:
    """The values that are not null."""
    return [float(value) for value in values if value is not None]


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def short(value: float | None) -> str:
    """Three digits, with a power of ten where it is small or large, such as 1.23e-5."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    text = f"{value:#.{DIGITS}g}" if 1e-3 <= abs(value) < 10**DIGITS else f"{value:.{DIGITS - 1}e}"
    if "e" not in text:
        return text.rstrip(".")
    digits, _, power = text.partition("e")
    return f"{value:,.0f}" if 0 < int(power) < 6 else f"{digits}e{int(power)}"


def span(values: Sequence[float]) -> str:
    """Such as "0.5 to 2"; empty where all values look the same."""
    ends = [short(end) for end in (min(values), max(values))] if values else []
    return " to ".join(ends) if len(set(ends)) > 1 else ""


def seeds_text(values: Sequence[float], planned: int, nothing: str = "") -> Text:
    """Mean and range over seeds, and their number where some have no value."""
    if not values:
        return Text(nothing)
    fewer = f"n = {len(values)} of {planned}" if len(values) < planned else ""
    return Text(short(mean(values)), ", ".join(filter(None, [span(values), fewer])))


def share_text(part: int, of: int) -> Text:
    """Such as "97.0 %" with "98 of 101"."""
    return Text(f"{100 * part / of:.1f} %", f"{part} of {of}") if of else Text("")


def spread(
    name: str, values: Sequence[float], middle: Callable[[Sequence[float]], float | None] = mean
) -> dict[str, str]:
    """Columns of a CSV: the middle, the least and the largest value."""
    return {
        name: exact(middle(values)),
        f"{name}_least": exact(min(values, default=None)),
        f"{name}_most": exact(max(values, default=None)),
    }
