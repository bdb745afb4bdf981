"""Runs as text in a terminal: a table of many, or a comparison of a few."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nero.report.units import rate
from nero.runs.formatting import clock, final_text, lay_out, metric_text
from nero.runs.logged import UNMEASURED, LoggedRun, same_value

ABSENT = "-"


class UnknownColumn(ValueError):
    """There is no such column; the message is one line."""


@dataclass(frozen=True)
class Column:
    """text:        what the column shows
    order:       what runs are sorted by; None comes last
    align_right: for numbers
    """

    text: Callable[[LoggedRun], str]
    order: Callable[[LoggedRun], Any]
    align_right: bool = False


def _summary(key: str) -> Callable[[LoggedRun], Any]:
    return lambda run: run.summary.get(key)


def _plain(key: str) -> Column:
    return Column(lambda run: str(run.summary.get(key) or ABSENT), _summary(key))


def _epochs(run: LoggedRun) -> str:
    done, of = run.summary["epochs_done"], run.summary.get("epochs")
    return f"{done}/{of}" if of is not None else str(done)


def _metric(run: LoggedRun) -> str | None:
    metric = run.summary.get("metric")
    return metric["key"] if metric else None


def _final(run: LoggedRun) -> str:
    return ABSENT if run.standing == UNMEASURED else final_text(run.summary) or ABSENT


COLUMNS: dict[str, Column] = {
    "run": Column(lambda run: run.run_id, lambda run: run.run_id),
    "task": _plain("task"),
    "optim": _plain("optim"),
    "lr": Column(lambda run: rate(run.summary["lr"]), _summary("lr"), True),
    "seed": Column(lambda run: str(run.summary["seed"]), _summary("seed"), True),
    "status": Column(lambda run: run.standing, lambda run: run.standing),
    "epochs": Column(_epochs, _summary("epochs_done"), True),
    "metric": Column(lambda run: _metric(run) or ABSENT, _metric),
    "final": Column(_final, _summary("final"), True),
    "time": Column(lambda run: clock(run.summary["seconds"]), _summary("seconds"), True),
    "data": _plain("data"),
    "device": _plain("device"),
}
SHOWN = ("run", "status", "epochs", "metric", "final", "time")


def known_columns(names: Sequence[str]) -> list[str]:
    """The names as a list; raises UnknownColumn."""
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(f"there is no column {name!r}; there are: {', '.join(COLUMNS)}")
    return list(names)


def in_order(runs: Sequence[LoggedRun], by: Sequence[str], backwards: bool = False) -> list[LoggedRun]:
    """Runs sorted by columns, most significant first; runs without a value come last in either direction."""
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
    """A heading, one line per run, and how many the limit left out. None means no limit, and no width."""
    chosen = [COLUMNS[name] for name in known_columns(columns)]
    shown = runs if limit is None else runs[:limit]
    rows = [list(columns), *([column.text(run) for column in chosen] for run in shown)]
    text = lay_out(rows, [column.align_right for column in chosen], width)
    return text + (f"\n{len(runs) - len(shown)} more of {len(runs)}" if len(shown) < len(runs) else "")


def compare_runs(runs: Sequence[LoggedRun], width: int | None = None) -> str:
    """The runs by number, then a column for each: settings that differ, final metrics, and provenance."""
    differing = _differing_settings(runs)
    parts = {
        "settings that differ" if differing else "no settings differ": differing,
        "final metrics": _finals(runs),
        "provenance": [[name, *map(text, runs)] for name, text in PROVENANCE.items()],
    }
    rows = [["", *(str(number) for number in range(1, len(runs) + 1))]]
    for title, lines in parts.items():
        rows += [[title, *([""] * len(runs))], *([f"  {name}", *values] for name, *values in lines)]
    names = "\n".join(f"{number}  {run.run_id}" for number, run in enumerate(runs, start=1))
    return f"{names}\n{lay_out(rows, width=width)}"


def _differing_settings(runs: Sequence[LoggedRun]) -> list[list[str]]:
    def differs(key: str) -> bool:
        first = runs[0].settings
        return any(
            (key in run.settings) != (key in first) or not same_value(run.settings.get(key), first.get(key))
            for run in runs
        )

    keys = sorted({key for run in runs for key in run.settings})
    return [[key, *(_setting(run, key) for run in runs)] for key in keys if differs(key)]


def _setting(run: LoggedRun, key: str) -> str:
    """The setting as YAML writes it."""
    if key not in run.settings:
        return ABSENT
    value = run.settings[key]
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _finals(runs: Sequence[LoggedRun]) -> list[list[str]]:
    """A line per metric; the metrics that tables report come first, with a star."""
    reported = list(dict.fromkeys(key for run in runs if (key := _metric(run))))
    others = sorted({key for run in runs for key in run.summary["final_metrics"]} - set(reported))
    names = {key: f"{key} *" for key in reported} | dict(zip(others, others, strict=True))
    return [[name, *(_final_metric(run, key) for run in runs)] for key, name in names.items()]


def _final_metric(run: LoggedRun, key: str) -> str:
    finals = run.summary["final_metrics"]
    if key not in finals:
        return ABSENT
    return metric_text(finals[key]) if finals[key] is not None else "not finite"


def _commits(run: LoggedRun) -> str:
    """The commit of each start, in order."""
    starts = run.directory.read_provenance()
    words = [f"{str(start.get('commit'))[:10]}{' with changes' if start.get('dirty') else ''}" for start in starts]
    return ", ".join(dict.fromkeys(words)) or ABSENT


PROVENANCE: dict[str, Callable[[LoggedRun], str]] = {
    **{name: COLUMNS[name].text for name in ("status", "epochs", "time", "device")},
    "commit": _commits,
}
