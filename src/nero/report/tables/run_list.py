"""Runs as a table in a terminal."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nero.report.units import rate
from nero.runs.columns import lay_out
from nero.runs.logged import UNMEASURED, LoggedRun
from nero.runs.tracking import clock, final_text


class UnknownColumn(ValueError):
    """Said in one line."""


@dataclass(frozen=True)
class Column:
    """text:   what stands there
    order:  what runs are sorted by; None comes last
    """

    text: Callable[[LoggedRun], str]
    order: Callable[[LoggedRun], Any]
    to_the_right: bool = False


def _said(key: str) -> Callable[[LoggedRun], Any]:
    return lambda run: run.summary.get(key)


def _words(key: str) -> Column:
    return Column(lambda run: str(run.summary.get(key) or "-"), _said(key))


def _epochs(run: LoggedRun) -> str:
    done, of = run.summary["epochs_done"], run.summary.get("epochs")
    return f"{done}/{of}" if of is not None else str(done)


def _metric(run: LoggedRun) -> str | None:
    metric = run.summary.get("metric")
    return metric["key"] if metric else None


def _final(run: LoggedRun) -> str:
    return "-" if run.standing == UNMEASURED else final_text(run.summary) or "-"


COLUMNS: dict[str, Column] = {
    "run": Column(lambda run: run.run_id, lambda run: run.run_id),
    "task": _words("task"),
    "optim": _words("optim"),
    "lr": Column(lambda run: rate(run.summary["lr"]), _said("lr"), True),
    "seed": Column(lambda run: str(run.summary["seed"]), _said("seed"), True),
    "status": Column(lambda run: run.standing, lambda run: run.standing),
    "epochs": Column(_epochs, _said("epochs_done"), True),
    "metric": Column(lambda run: _metric(run) or "-", _metric),
    "final": Column(_final, _said("final"), True),
    "time": Column(lambda run: clock(run.summary["seconds"]), _said("seconds"), True),
    "data": _words("data"),
    "device": _words("device"),
}
SHOWN = ("run", "status", "epochs", "metric", "final", "time")


def known_columns(names: Sequence[str]) -> list[str]:
    """The same; UnknownColumn for one that there is not."""
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(f"there is no column {name!r}; there are: {', '.join(COLUMNS)}")
    return list(names)


def in_order(runs: Sequence[LoggedRun], by: Sequence[str], backwards: bool = False) -> list[LoggedRun]:
    """Sorted by columns, the first first; runs that have nothing there come last, either way."""
    found = list(runs)
    for name in reversed(known_columns(by)):
        order = COLUMNS[name].order
        having = [run for run in found if not _is_missing(order(run))]
        found = sorted(having, key=order, reverse=backwards) + [run for run in found if _is_missing(order(run))]
    return found


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def describe_runs(
    runs: Sequence[LoggedRun], columns: Sequence[str] = SHOWN, limit: int | None = None, width: int | None = None
) -> str:
    """A head, a line per run, and how many were left out by the limit. None has no limit, and no width."""
    chosen = [COLUMNS[name] for name in known_columns(columns)]
    shown = runs if limit is None else runs[:limit]
    rows = [list(columns), *([column.text(run) for column in chosen] for run in shown)]
    text = lay_out(rows, [column.to_the_right for column in chosen], width)
    if len(shown) < len(runs):
        text += f"\n{len(runs) - len(shown)} more of {len(runs)}"
    return text
