"""What the files of a run must be like, so that no reader has to ask again. Problems are texts of one line.

Only what readers rely on is checked: types, ranges, and that a run's files are of that run. What a run logs beyond that
is its own business.
"""

import datetime
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from nero.runs.records import LARGEST, values_within

Record = dict[str, Any]
VERSION = 1  # version of the keys of summary.json. Summaries of other versions are never read nor overwritten.
LONGEST_NAME, SHOWN = 200, 60  # characters of names, and of wrong values in messages
# Data frames with gaps hold counts as floats, which are exact up to here.
MOST, MOST_EPOCHS, MOST_SECONDS = 2**53, 10**9, 1e12


class Status(StrEnum):
    """State of a run. `running` without a lock holder means interrupted: the next call resumes it."""

    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"


# Statuses that are results: a settled run is never run again, once it is measured.
SETTLED = frozenset({Status.DONE, Status.DIVERGED})


class Damaged(ValueError):
    """A file of a run is not what it should be; the message is one line that begins with the file's name."""


def printable(value: object) -> str:
    """As text of one line, without what would control a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(value))


def _shown(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_number(value: Any) -> bool:
    """Null counts: it was not finite."""
    return isinstance(value, float | int | None)


def _is_name(value: Any) -> bool:
    """A file may have this name: it becomes a folder, or a part of one's name."""
    return _is_text(value) and value != "" and not value.startswith(".") and "/" not in value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def _is_count(value: Any, least: int = 0, most: int = MOST) -> bool:
    return type(value) is int and least <= value <= most


def _is_cost(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value <= MOST_SECONDS


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(key) and _is_number(item) for key, item in value.items())


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(key) and _is_count(item) for key, item in value.items())


def _is_metric(value: Any) -> bool:
    texts = isinstance(value, dict) and all(_is_text(value.get(key)) for key in ("key", "goal", "label"))
    return texts and value["goal"] in ("min", "max")


PLAIN = (str, int, float, type(None), dict, list, datetime.date)
NUMBERS = frozenset({float, int, bool, type(None)})
Rule = tuple[Callable[[Any], bool], str]
NAME: Rule = _is_name, "a name"
TEXT: Rule = _is_text, "a short text"
COUNT: Rule = _is_count, f"an integer from 0 to {MOST}"
EPOCHS: Rule = partial(_is_count, most=MOST_EPOCHS), f"an integer from 0 to {MOST_EPOCHS}"
COST: Rule = _is_cost, f"a number from 0 to {MOST_SECONDS:g}"
NUMBER: Rule = _is_number, "a number"

REQUIRED: dict[str, Rule] = {
    "run_id": NAME,
    "task": NAME,
    "optim": NAME,
    "seed": (partial(_is_count, most=LARGEST), f"an integer from 0 to {LARGEST}"),
    "lr": (lambda value: type(value) in (float, int) and value > 0, "a positive number"),
    "epochs_done": EPOCHS,
    "seconds": COST,
    "final_metrics": (_are_numbers, "a mapping of numbers"),
}
"""Keys that every summary has."""

OPTIONAL: dict[str, Rule] = {
    "data": (lambda value: value in ("real", "embedded"), "real or embedded"),
    "epochs": EPOCHS,
    "metric": (_is_metric, "a mapping of key, goal (min or max) and label"),
    "final": NUMBER,
    "joules": COST,
    "gpu_processes": COUNT,
    "parameters": COUNT,
    "device": TEXT,
    "beside": (_are_counts, "a mapping of integers from 0"),
    "diverged_at": (_are_counts, "a mapping of integers from 0"),
    "traceback": (lambda value: isinstance(value, str), "a text"),
}
"""Keys that may be missing or null."""

STARTS: dict[str, Rule] = {
    "started": TEXT,
    "commit": TEXT,
    "dirty": (lambda value: isinstance(value, bool), "true or false"),
}
"""Of a line of provenance.jsonl. They may be missing or null."""

LINE: dict[str, Rule] = {
    "epoch": (lambda value: type(value) is int and 0 <= value <= MOST_EPOCHS, EPOCHS[1]),
    "step": COUNT,
    "epochs": (partial(_is_count, least=1, most=MOST_EPOCHS), f"an integer from 1 to {MOST_EPOCHS}"),
}
"""Of a line of metrics.jsonl; all but the epoch may be missing or null. Others are numbers, and a trace."""


def _broken(record: Mapping[str, Any], rules: Mapping[str, Rule], required: bool = False) -> str | None:
    """The first key that breaks its rule."""
    for key, (holds, rule) in rules.items():
        value = record.get(key)
        if (value is not None or required or key == "epoch") and not holds(value):
            return f"{key} must be {rule}, not {_shown(value)}"
    return None


def summary_problem(summary: Any, run_id: str, task: str) -> str | None:
    """Of the summary of the run in the folder `task`/`run_id`."""
    if not isinstance(summary, dict):
        return f"summary.json cannot be read: it is not a mapping, but {_shown(summary)}"
    if (version := summary.get("version")) != VERSION or isinstance(version, bool):
        return f"summary.json is of version {_shown(version)}, and only {VERSION} can be read"
    status = summary.get("status")
    problem = None if status in tuple(Status) else f"status must be one of {', '.join(Status)}, not {_shown(status)}"
    problem = problem or _broken(summary, REQUIRED, required=True) or _broken(summary, OPTIONAL)
    if not problem and status == Status.DONE:
        problem = "it is done without a metric" if summary.get("metric") is None else None
        problem = problem or (None if summary["epochs_done"] else "it is done after 0 epochs")
    if problem:
        return f"summary.json cannot be read: {problem}"
    if summary["run_id"] != run_id:
        return f"summary.json is that of {summary['run_id']}"
    if summary["task"] != task:
        return f"summary.json is that of a run of {summary['task']}, under {printable(task)}"
    return None


def config_problem(config: Any, summary: Mapping[str, Any] | None) -> str | None:
    """Of a config.yaml, and where it contradicts the summary."""
    if not isinstance(config, dict):
        return f"config.yaml cannot be read: it is not a mapping, but {_shown(config)}"
    values = values_within(config)
    if other := next((value for value in values if not isinstance(value, PLAIN)), None):
        return f"config.yaml cannot be read: it has {_shown(other)}"
    texts = [value for value in values if isinstance(value, str)]
    if not "".join(texts).isprintable() and (bad := [text for text in texts if not _is_harmless(text)]):
        return f"config.yaml cannot be read: it has the text {_shown(bad[0])}"
    optim = config.get("optim")
    if group := next((key for key in ("task", "optim") if not isinstance(config.get(key, {}), dict)), None):
        return f"config.yaml cannot be read: {group} must be a mapping, not {_shown(config[group])}"
    own = {"task": config.get("task_name"), "optim": config.get("optim_name"), "seed": config.get("seed")}
    own |= {"data": config.get("data"), "lr": optim.get("lr") if isinstance(optim, dict) else None}
    for key, value in own.items():
        if summary is not None and value is not None and summary.get(key) != value:
            return f"summary.json has {key} {_shown(summary.get(key))} and config.yaml {_shown(value)}"
    return None


def _is_harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def line_problem(record: Any) -> str | None:
    """Of a line of metrics.jsonl."""
    if not isinstance(record, dict):
        return "it is no mapping"
    if problem := _broken(record, LINE):
        return problem
    trace = record.get("trace")
    if trace is None and NUMBERS.issuperset(map(type, record.values())):  # in a fraction of the time
        return None
    for key, value in record.items():
        if key != "trace" and not _is_number(value):
            return f"{_shown(key)} must be a number, not {_shown(value)}"
    if trace is not None and not (isinstance(trace, dict) and all(map(_is_trace, trace.values()))):
        return f"trace must be a mapping of lists of numbers, not {_shown(trace)}"
    return None


def new_line_problem(record: Any) -> str | None:
    """Likewise, of a line that is to be written: its metrics may go into the summary, whose keys are short texts."""
    wrong = (f"the name {_shown(key)} must be {TEXT[1]}" for key in record if not _is_text(key))
    return line_problem(record) or next(wrong, None)


def _is_trace(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def start_problem(record: Any) -> str | None:
    """Of a line of provenance.jsonl."""
    if not isinstance(record, dict):
        return "it is no mapping"
    parts = [part for value in record.values() for part in (value.values() if isinstance(value, dict) else [value])]
    if (
        other := next((part for part in parts if not isinstance(part, str) and not _is_number(part)), None)
    ) is not None:
        return f"it has {_shown(other)}"
    return _broken(record, STARTS)
