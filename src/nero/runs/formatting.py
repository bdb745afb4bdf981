"""Numbers and tables as text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from nero.runs.store import Status

NARROWEST = 8  # characters that a column keeps in a narrow terminal


def lay_out(rows: Sequence[Sequence[str]], to_the_right: Sequence[bool] | None = None, width: int | None = None) -> str:
    """Text in columns. Where they are wider than `width`, the widest columns are shortened in the middle of a word."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    justify = [str.rjust if right else str.ljust for right in to_the_right or [False] * len(widths)]
    return "\n".join(
        "  ".join(
            fill(_shortened(word, room), room) for word, room, fill in zip(row, widths, justify, strict=True)
        ).rstrip()
        for row in rows
    )


def _shortened(word: str, room: int) -> str:
    start = room // 2
    return word if len(word) <= room else f"{word[:start]}…{word[len(word) - (room - start - 1) :]}"


def seconds_per_epoch(record: Mapping[str, Any]) -> float:
    """Of a line of metrics.jsonl, which may stand for several epochs."""
    return float(record["seconds"]) / int(record.get("epochs", 1))


def final_text(summary: Mapping[str, Any]) -> str | None:
    """The final value of a run's metric; None if the run has none."""
    if (final := summary.get("final")) is not None:
        return metric_text(final)
    return "not finite" if summary["status"] == Status.DONE else None


def metric_text(value: float) -> str:
    """Four decimals; scientific notation from a million."""
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.3e}"


def clock(seconds: float) -> str:
    """90 -> '1:30', 4000 -> '1:06:40'."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
