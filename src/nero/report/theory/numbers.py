"""How tables of the theory write what was measured, where some of it may be null: not finite, or not there."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from nero.report.tables.sheets import Text

DIGITS = 3


def known(values: Iterable[Any]) -> list[float]:
    """Without those that are null."""
    return [float(value) for value in values if value is not None]


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolated between neighbours, as numpy does."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def short(value: float | None) -> str:
    """In three digits; with a power of ten where it is small or large, such as 1.23e-5."""
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
    """Such as "0.5 to 2"; nothing where all are one value in these digits."""
    ends = [short(end) for end in (min(values), max(values))] if values else []
    return " to ".join(ends) if len(set(ends)) > 1 else ""


def seeds_text(values: Sequence[float], of: int, nothing: str = "") -> Text:
    """Mean over seeds, with their range; how many, where fewer than all `of` them have a value."""
    if not values:
        return Text(nothing)
    fewer = f"n = {len(values)} of {of}" if len(values) < of else ""
    return Text(short(mean(values)), ", ".join(filter(None, [span(values), fewer])))


def share_text(part: int, of: int) -> Text:
    """Such as "97.0 %" with "98 of 101"."""
    return Text(f"{100 * part / of:.1f} %", f"{part} of {of}") if of else Text("")
