"""Runs side by side: what differs between them, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nero.report.tables.run_list import COLUMNS
from nero.runs.columns import lay_out
from nero.runs.logged import LoggedRun, same_value
from nero.runs.tracking import metric_text

ABSENT = "-"


def compare_runs(runs: Sequence[LoggedRun], width: int | None = None) -> str:
    """The runs by number, then a column for each: settings that differ, final metrics, and how they were made."""
    head = ["", *(str(number) for number in range(1, len(runs) + 1))]
    parts = {
        "settings that differ": _different_settings(runs),
        "final metrics": _finals(runs),
        "how": [[name, *map(say, runs)] for name, say in HOW.items()],
    }
    rows = [head]
    for title, lines in parts.items():
        rows += [[title, *([""] * len(runs))], *([f"  {name}", *words] for name, *words in lines)]
    names = "\n".join(f"{number}  {run.run_id}" for number, run in enumerate(runs, start=1))
    text = lay_out(rows, width=width)
    if not parts["settings that differ"]:
        text = text.replace("settings that differ", "their settings do not differ", 1)
    return f"{names}\n{text}"


def _different_settings(runs: Sequence[LoggedRun]) -> list[list[str]]:
    keys = sorted({key for run in runs for key in run.settings})
    return [[key, *(_value(run.settings, key) for run in runs)] for key in keys if _differs(runs, key)]


def _differs(runs: Sequence[LoggedRun], key: str) -> bool:
    first = runs[0].settings
    return any(
        (key in run.settings) != (key in first) or not same_value(run.settings.get(key), first.get(key)) for run in runs
    )


def _value(settings: Mapping[str, Any], key: str) -> str:
    if key not in settings:
        return ABSENT
    value = settings[key]
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def _finals(runs: Sequence[LoggedRun]) -> list[list[str]]:
    """A line per metric; those that the runs are measured by come first, with a star."""
    measured = list(dict.fromkeys(key for run in runs if (key := (run.summary.get("metric") or {}).get("key"))))
    others = sorted({key for run in runs for key in run.summary["final_metrics"]} - set(measured))
    return [[f"{key} *", *(_final(run, key) for run in runs)] for key in measured] + [
        [key, *(_final(run, key) for run in runs)] for key in others
    ]


def _final(run: LoggedRun, key: str) -> str:
    finals = run.summary["final_metrics"]
    if key not in finals:
        return ABSENT
    return metric_text(finals[key]) if finals[key] is not None else "not finite"


def _commits(run: LoggedRun) -> str:
    """Of each start, in their order."""
    starts = run.directory.read_provenance()
    words = [f"{str(start.get('commit'))[:10]}{' with changes' if start.get('dirty') else ''}" for start in starts]
    return ", ".join(dict.fromkeys(words)) or ABSENT


HOW: dict[str, Callable[[LoggedRun], str]] = {
    **{name: COLUMNS[name].text for name in ("status", "epochs", "time", "device")},
    "commit": _commits,
}
