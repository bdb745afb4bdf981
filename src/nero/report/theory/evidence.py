"""Measurements of the paper's theory: records grouped by task, settings, optimiser and learning rate.

Records that differ only in their seed form a group. Embedded and real data are never mixed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import yaml

from nero.plans.config import DEFAULTS_OF_LOGGED_RUNS, config_file, current_names
from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import RunLink
from nero.report.units import rate
from nero.runs.logged import dotted
from nero.theory import records
from nero.theory.records import NETWORKS, STEPS, Record

LINKS = "A link leads to the run of these settings in the store; the measured network may be from another training."
TARGET = "_target_"
# What tells records apart, and the types that it has in JSON.
HEAD: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "optim", "data"), (str,)),
    **dict.fromkeys(("lr", "epochs_done", "epochs"), (int, float)),
    "seed": (int,),
    "settings": (dict, type(None)),
}


@dataclass(frozen=True)
class Group:
    """Records that differ only in their seed, by seed."""

    task: str
    variant: cells.Variant  # settings of the task that differ from its YAML
    optim: str
    lr: float
    records: tuple[Record, ...]
    store: Path | None = None  # of their runs, for links

    @property
    def row(self) -> cells.RowKey:
        return cells.RowKey(self.task, self.variant)

    @property
    def name(self) -> str:
        return style.name(self.optim)

    @property
    def label(self) -> str:
        return f"{self.name}, η = {rate(self.lr)}"

    @property
    def seeds(self) -> str:
        return " ".join(str(record["seed"]) for record in self.records)

    @property
    def epochs(self) -> str:
        """Such as "50 of 50", once for each distinct value."""
        done = (f"{round(record['epochs_done'], 1):g} of {record['epochs']:g}" for record in self.records)
        return ", ".join(dict.fromkeys(done))

    @property
    def links(self) -> tuple[RunLink, ...]:
        """Links to the runs that are in the store."""
        found = (RunLink(f"seed {record['seed']}", self.task, record["run_id"]) for record in self.records)
        return tuple(link for link in found if self.store and (self.store / link.path).is_dir())


@dataclass(frozen=True)
class Evidence:
    """All records, by their kind."""

    networks: tuple[Group, ...]
    steps: tuple[Group, ...]
    embedded: bool

    def of_task(self, task: str) -> "Evidence":
        networks, steps = (tuple(g for g in groups if g.task == task) for groups in (self.networks, self.steps))
        return replace(self, networks=networks, steps=steps)

    def measured(self, key: str) -> list[Group]:
        """Groups of the records in which `key` was measured: steps, networks, activations or robustness."""
        groups = (
            (g, tuple(r for r in g.records if r.get(key))) for g in (self.steps if key == STEPS else self.networks)
        )
        return [replace(group, records=found) for group, found in groups if found]

    def unmeasured(self, key: str) -> str:
        """Networks of which no record has `key`, as text; empty if there are none."""
        measured = {(group.row, group.optim, group.lr) for group in self.measured(key)}
        without = [group for group in self.networks if (group.row, group.optim, group.lr) not in measured]
        names = {row: ", ".join(dict.fromkeys(g.name for g in groups)) for row, groups in rows(without).items()}
        return "" if key == STEPS else "; ".join(f"{cells.row_text(row)} ({of_row})" for row, of_row in names.items())


def gather(folder: Path, store: Path | None = None) -> Evidence:
    """Read the records under `folder`; raise EmbeddedDataError where embedded and real data are mixed."""
    networks, steps = (records.read(kind, folder) for kind in records.KINDS)
    for record in (*networks, *steps):
        if wrong := [key for key, types in HEAD.items() if type(record.get(key)) not in types]:
            raise records.UnreadableRecord(
                f"{folder}: {wrong[0]} of {record['run_id']} is {record.get(wrong[0])!r:.60}"
            )
    by_data = {record["data"] == "real": record["run_id"] for record in reversed([*networks, *steps])}
    if len(by_data) > 1:
        text = f"{by_data[False]} is of embedded data and {by_data[True]} of real: keep them apart"
        raise cells.EmbeddedDataError(f"{folder}: {text}")
    return Evidence(_groups(networks, store), _groups(steps, store), False in by_data)


def rows(groups: Iterable[Group]) -> dict[cells.RowKey, list[Group]]:
    """Groups, which are in order, by task and variant: the blocks of a table, the panels of a figure."""
    return {row: list(of_row) for row, of_row in groupby(groups, attrgetter("row"))}


def absent(key: str) -> str:
    """The message where `key` was measured in no record, and there is no record of its kind."""
    kind = STEPS if key == STEPS else NETWORKS
    return f"Missing: no record under {kind}. `make theory` measures trained runs and writes such records."


def precision_text(groups: Sequence[Group]) -> str:
    """The precision in which the networks were trained, as a sentence."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for group in groups:
        for record in group.records:
            found[style.precision(str(record.get("precision")))][cells.row_text(group.row)] = None
    names = list(found) if len(found) == 1 else [f"{name} ({'; '.join(rows)})" for name, rows in found.items()]
    return f"Trained in {', '.join(names)}."


def _groups(found: Sequence[Record], store: Path | None) -> tuple[Group, ...]:
    by_key: dict[tuple[str, cells.Variant, str, float], list[Record]] = defaultdict(list)
    for task, of_task in groupby(sorted(found, key=itemgetter("task")), itemgetter("task")):
        for record, variant in _variants(task, list(of_task)):
            by_key[task, variant, record["optim"], float(record["lr"])].append(record)
    in_order = itemgetter("seed", "run_id")
    groups = [Group(*key, tuple(sorted(of_key, key=in_order)), store) for key, of_key in by_key.items()]
    order = style.in_order(sorted({group.optim for group in groups}))
    return tuple(sorted(groups, key=lambda g: (g.task, _variant_order(g.variant), order.index(g.optim), g.lr)))


def _variant_order(variant: cells.Variant) -> list[tuple[str, bool, float, str]]:
    """The settings of the task's YAML first, then by value: 5 layers before 10."""
    numbers = [(key, value, isinstance(value, int | float)) for key, value in variant]
    return [(key, not is_number, float(value) if is_number else 0.0, str(value)) for key, value, is_number in numbers]


# Settings in which records differ


def _variants(task: str, found: Sequence[Record]) -> Iterator[tuple[Record, cells.Variant]]:
    """Settings of one task's records that differ from its YAML, or without a YAML, that differ among the records."""
    all_settings = [_flat(record.get("settings") or {}) for record in found]
    default = _shipped(task)
    # Runs that were logged before a key existed have its value of that time.
    before = {key.removeprefix("task."): value for key, value in DEFAULTS_OF_LOGGED_RUNS.items()}
    precisions = {record.get("precision") for record in found}
    for record, settings in zip(found, all_settings, strict=True):
        if default is None:
            differing = {k: v for k, v in settings.items() if any(other.get(k) != v for other in all_settings)}
        else:
            known = {key: value for key, value in before.items() if settings and key in default} | settings
            differing = {key: value for key, value in known.items() if key not in default or default[key] != value}
            # A setting that interpolates another counts as default: its value is known only for a run.
            differing = {key: value for key, value in differing.items() if "${" not in str(default.get(key))}
        if len(precisions) > 1:
            differing["precision"] = str(record.get("precision"))
        yield record, tuple(sorted(differing.items()))


@cache
def _shipped(task: str) -> dict[str, Any] | None:
    """The settings of a task's YAML, or None without one."""
    path = config_file("task", task)
    return _flat(yaml.safe_load(path.read_text())) if Path(task).name == task and path.is_file() else None


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings under dotted keys and today's names; lists as text, so that all can be compared.

    An object's `_target_` goes by the object's key: schedule = exponential.
    """
    found: dict[str, Any] = {}
    for key, value in dotted(current_names({"task": settings})["task"]).items():
        parent, _, name = key.rpartition(".")
        if name == TARGET:
            found[parent] = str(value).rpartition(".")[2]
        elif value != {}:
            found[key] = json.dumps(value) if isinstance(value, list) else value
    found.pop("", None)  # the task's own class
    return found
