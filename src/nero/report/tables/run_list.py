"""Runs as text in a terminal: a table of many, or a comparison of a few."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nero.report.units import rate
from nero.runs.formatting import clock, final_text, lay_out, metric_text
from nero.runs.logged import UNMEASURED, LoggedRun, same_value

ABSENT = "-"


class UnknownColumn(ValueError):
    """There is no such column; the message is one line."""


class Column(NamedTuple):
    value: Callable[[LoggedRun], Any]  # what runs are sorted by; None comes last
    text: Callable[[LoggedRun], str]  # what the column shows
    align_right: bool = False


def _column(key: str, text: Callable[[Any], str] = str, align_right: bool = False) -> Column:
    """A key of the summary."""
    return Column(
        lambda run: run.summary.get(key),
        lambda run: ABSENT if run.summary.get(key) in (None, "") else text(run.summary[key]),
        align_right,
    )


def _metric(run: LoggedRun) -> str | None:
    metric = run.summary.get("metric")
    return metric["key"] if metric else None


def _final(run: LoggedRun) -> str:
    return ABSENT if run.status == UNMEASURED else final_text(run.summary) or ABSENT


COLUMNS: dict[str, Column] = {
    "run": Column(lambda run: run.run_id, lambda run: run.run_id),
    "task": _column("task"),
    "optim": _column("optim"),
    "lr": _column("lr", rate, True),
    "seed": _column("seed", align_right=True),
    "status": Column(lambda run: run.status, lambda run: run.status),
    "epochs": Column(
        lambda run: run.summary["epochs_done"],
        lambda run: "/".join(
            str(run.summary[key]) for key in ("epochs_done", "epochs") if run.summary.get(key) is not None
        ),
        align_right=True,
    ),
    "metric": Column(_metric, lambda run: _metric(run) or ABSENT),
    "final": Column(lambda run: run.summary.get("final"), _final, True),
    "time": _column("seconds", clock, True),
    "data": _column("data"),
    "device": _column("device"),
}
SHOWN = ("run", "status", "epochs", "metric", "final", "time")


def known_columns(names: Sequence[str]) -> list[str]:
    """The names as a list; raises UnknownColumn."""
    if unknown := [name for name in names if name not in COLUMNS]:
        raise UnknownColumn(f"there is no column {unknown[0]!r}; there are: {', '.join(COLUMNS)}")
    return list(names)


def in_order(runs: Sequence[LoggedRun], by: Sequence[str], backwards: bool = False) -> list[LoggedRun]:
    """Runs sorted by columns, most significant first; runs without a value come last in either direction."""
    found = list(runs)
    for name in reversed(known_columns(by)):
        value = COLUMNS[name].value
        missing = [(v := value(run)) is None or (isinstance(v, float) and math.isnan(v)) for run in found]
        having = [run for run, lacks in zip(found, missing, strict=True) if not lacks]
        found = sorted(having, key=value, reverse=backwards) + list(itertools.compress(found, missing))
    return found


def describe_runs(
    runs: Sequence[LoggedRun], columns: Sequence[str] = SHOWN, limit: int | None = None, width: int | None = None
) -> str:
    """A heading, one line per run, and how many the limit left out. None means no limit, and no width."""
    chosen = [COLUMNS[name] for name in known_columns(columns)]
    shown = runs if limit is None else runs[:limit]
    rows = [list(columns), *([column.text(run) for column in chosen] for run in shown)]
    text = lay_out(rows, [column.align_right for column in chosen], width)
    return text + (f"\n{len(runs) - len(shown)} more of {len(runs)}" if len(shown) < len(runs) else "")


def compare_runs(runs: Sequence[LoggedRun], width: int | None = None) -> str:
    """The runs by number, then a column for each: settings that differ, final metrics, and provenance."""
    rows = [["", *(str(number) for number in range(1, len(runs) + 1))]]
    for title, lines in comparison(runs).items():
        rows += [[title, *([""] * len(runs))], *([f"  {name}", *values] for name, values in lines.items())]
    names = "\n".join(f"{number}  {run.run_id}" for number, run in enumerate(runs, start=1))
    return f"{names}\n{lay_out(rows, width=width)}"


def comparison(runs: Sequence[LoggedRun]) -> dict[str, dict[str, list[str]]]:
    """The same by title of a part and name of a line: a text for each run."""
    absent = object()
    settings = {key: [run.settings.get(key, absent) for run in runs] for run in runs for key in run.settings}
    differing = {
        key: [ABSENT if value is absent else _as_yaml(value) for value in values]
        for key, values in sorted(settings.items())
        if not all(same_value(values[0], value) for value in values)
    }
    provenance = {name: COLUMNS[name].text for name in ("status", "epochs", "time", "device")} | {"commit": _commits}
    return {
        "settings that differ" if differing else "no settings differ": differing,
        "final metrics": _finals(runs),
        "provenance": {name: [*map(text, runs)] for name, text in provenance.items()},
    }


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _finals(runs: Sequence[LoggedRun]) -> dict[str, list[str]]:
    """Final values by metric; the metrics that tables report come first, with a star."""
    reported = list(dict.fromkeys(filter(None, map(_metric, runs))))
    every = [run.summary["final_metrics"] for run in runs]
    others = sorted({key for finals in every for key in finals} - set(reported))
    return {
        f"{key} *" if key in reported else key: [
            ABSENT if key not in finals else "not finite" if finals[key] is None else metric_text(finals[key])
            for finals in every
        ]
        for key in (*reported, *others)
    }


def _commits(run: LoggedRun) -> str:
    """The commit of each start, in order."""
    starts = run.directory.read_provenance()
    words = [f"{str(start.get('commit'))[:10]}{' with changes' if start.get('dirty') else ''}" for start in starts]
    return ", ".join(dict.fromkeys(words)) or ABSENT
