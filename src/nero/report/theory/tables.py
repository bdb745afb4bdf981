"""Shared by the theory's tables: their layout, and texts of numbers that may be null (not finite, or not measured)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from nero.report import cells
from nero.report.tables.sheets import EMBEDDED, Printed, Sheet, Text, exact, row_label
from nero.report.theory.evidence import Evidence, Group, absent, rows
from nero.report.units import rate

DIGITS = 3

Columns = Mapping[str, Callable[[Any], Text | str]]
"""Heads of columns, and a column's text of an item, which is what a line is about."""


def build(
    evidence: Evidence,
    key: str,
    name: str,
    title: str,
    columns: Columns,
    notes: Callable[[Sequence[Group]], Iterable[str]],
    items: Callable[[Group], Iterable[Any]],
    record: Callable[[Any], Mapping[str, Any]],
    shown: Callable[[Any], bool] = lambda item: True,
    labels: int = 2,
) -> Printed:
    """A table of the records in which `key` was measured, with a block per task and variant.

    Args:
        columns: all but the task
        items: what lines are about
        record: the columns of an item in the CSV, after those of all tables
        shown: whether an item has a line in the table, and not in the CSV alone
        labels: number of columns before those of numbers
    """
    groups, without = evidence.measured(key), evidence.unmeasured(key)
    parts = [*(notes(groups) if groups else [absent(key)]), *([f"Not measured: {without}."] if without else [])]
    blocks, csv = [], []
    for row, of_row in rows(groups).items():
        block: list[list[Text]] = []
        for group in of_row:
            head = {
                "task": group.task,
                "variant": cells.variant_as_typed(group.variant),
                "optim": group.optim,
                "lr": rate(group.lr),
                "seeds": group.seeds,
                "data": "embedded" if evidence.embedded else "real",
                "epochs_done": " ".join(f"{record['epochs_done']:g}" for record in group.records),
            }
            for item in items(group):
                csv.append({column: _csv_text(value) for column, value in {**head, **record(item)}.items()})
                if shown(item):
                    texts = (column(item) for column in columns.values())
                    line = [text if isinstance(text, Text) else Text(text) for text in texts]
                    block.append([Text("") if block else row_label(row), *line])
        blocks.append(block)
    sheet = Sheet(["task", *columns], blocks, labels)
    return Printed(name, title, sheet, " ".join(parts), tuple(csv), EMBEDDED if evidence.embedded else "")


def _csv_text(value: Any) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else exact(value)
    return "" if value is None else str(value)


def series(values: Iterable[Any]) -> "pd.Series[float]":
    """The values that are not null."""
    return pd.Series(list(values), dtype=float).dropna()


def short(value: float | None) -> str:
    """Three digits, with a power of ten where it is small or large, such as 1.23e-5."""
    if value is None or pd.isna(value):
        return ""
    if value == 0:
        return "0"
    text = f"{value:#.{DIGITS}g}" if 1e-3 <= abs(value) < 10**DIGITS else f"{value:.{DIGITS - 1}e}"
    if "e" not in text:
        return text.rstrip(".")
    digits, _, power = text.partition("e")
    return f"{value:,.0f}" if 0 < int(power) < 6 else f"{digits}e{int(power)}"


def span(values: "pd.Series[float]") -> str:
    """Such as "0.5 to 2"; empty where all values look the same."""
    ends = dict.fromkeys([short(values.min()), short(values.max())])
    return " to ".join(ends) if len(ends) > 1 else ""


def share_text(flags: "pd.Series[bool]") -> Text:
    """Such as "97.0 %" with "98 of 101"."""
    return Text(f"{100 * flags.sum() / len(flags):.1f} %", f"{flags.sum()} of {len(flags)}") if len(flags) else Text("")


def spread(name: str, values: "pd.Series[float]", middle: str = "mean") -> dict[str, float]:
    """Columns of a CSV: the middle, the least and the largest value."""
    return {name: values.agg(middle), f"{name}_least": values.min(), f"{name}_most": values.max()}
