"""Measurements of the paper's theory: records grouped by task, settings, optimiser and learning rate.

Records that differ only in their seed form a group. Embedded and real data are never mixed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nero.plans.config import CONFIG_DIR, DEFAULTS_OF_LOGGED_RUNS, current_names
from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import EMBEDDED, RunLink
from nero.report.units import rate
from nero.theory import records
from nero.theory.records import Record

LINKS = "A link leads to the run of these settings in the store; the measured network may be from another training."
TARGET = "_target_"


@dataclass(frozen=True)
class Group:
    """Records that differ only in their seed, by seed."""

    task: str
    variant: cells.Variant  # settings of the task that differ from its YAML
    optim: str
    lr: float
    records: tuple[Record, ...]

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

    def head(self, embedded: bool) -> dict[str, str]:
        """The first columns of each CSV."""
        return {
            "task": self.task,
            "variant": cells.variant_text(self.variant),
            "optim": self.optim,
            "lr": rate(self.lr),
            "seeds": self.seeds,
            "data": "embedded" if embedded else "real",
            "epochs_done": " ".join(f"{record['epochs_done']:g}" for record in self.records),
        }

    def having(self, key: str) -> "Group | None":
        """The records whose `key` was measured, or None."""
        found = tuple(record for record in self.records if record.get(key))
        return replace(self, records=found) if found else None

    def links(self, store: Path | None) -> tuple[RunLink, ...]:
        """Links to the runs that are in the store."""
        if store is None:
            return ()
        found = (RunLink(f"seed {record['seed']}", self.task, record["run_id"]) for record in self.records)
        return tuple(link for link in found if (store / link.path).is_dir())


@dataclass(frozen=True)
class Evidence:
    """All records, and the store of their runs, for links."""

    networks: tuple[Group, ...]
    steps: tuple[Group, ...]
    embedded: bool
    store: Path | None = None

    @property
    def warning(self) -> str:
        return EMBEDDED if self.embedded else ""

    def of_task(self, task: str) -> "Evidence":
        networks, steps = (tuple(g for g in groups if g.task == task) for groups in (self.networks, self.steps))
        return replace(self, networks=networks, steps=steps)

    def title(self, text: str) -> str:
        """The title of a figure, which says so if the data are embedded."""
        return f"{text}\nEmbedded data, not the paper's" if self.embedded else text

    def measured(self, key: str) -> list[Group]:
        """The networks whose `key` was measured."""
        return [found for group in self.networks if (found := group.having(key))]

    def unmeasured(self, key: str) -> str:
        """The networks whose `key` was not measured, as text; empty if there are none."""
        without: dict[str, list[str]] = {}
        for group in self.networks:
            if not group.having(key):
                without.setdefault(cells.row_text(group.row), []).append(group.name)
        return "; ".join(f"{row} ({', '.join(dict.fromkeys(names))})" for row, names in without.items())


def gather(folder: Path, store: Path | None = None) -> Evidence:
    """Read the records under `folder`; raise EmbeddedDataError where embedded and real data are mixed."""
    networks, steps = (records.read(kind, folder) for kind in records.KINDS)
    both = [*networks, *steps]
    real = [record["run_id"] for record in both if record["data"] == "real"]
    other = [record["run_id"] for record in both if record["data"] != "real"]
    if real and other:
        raise cells.EmbeddedDataError(
            f"{folder}: {other[0]} is of embedded data and {real[0]} of real: keep them apart"
        )
    return Evidence(_groups(networks), _groups(steps), bool(other), store)


def rows(groups: Iterable[Group]) -> dict[cells.RowKey, list[Group]]:
    """Groups by task and variant: the blocks of a table, the panels of a figure."""
    found: dict[cells.RowKey, list[Group]] = {}
    for group in groups:
        found.setdefault(group.row, []).append(group)
    return found


def absent(kind: str) -> str:
    """The message where there is no record of a kind."""
    return f"Missing: no record under {kind}. `make theory` measures trained runs and writes such records."


def precision_text(groups: Sequence[Group]) -> str:
    """The precision in which the networks were trained, as a sentence."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for record in group.records:
            found.setdefault(style.precision(str(record.get("precision"))), {})[cells.row_text(group.row)] = None
    names = list(found) if len(found) == 1 else [f"{name} ({'; '.join(rows)})" for name, rows in found.items()]
    return f"Trained in {', '.join(names)}."


def _groups(found: Sequence[Record]) -> tuple[Group, ...]:
    by_task: dict[str, list[Record]] = {}
    for record in found:
        by_task.setdefault(record["task"], []).append(record)
    by_key: dict[tuple[str, cells.Variant, str, float], list[Record]] = {}
    for task, of_task in by_task.items():
        for record, variant in _variants(of_task):
            by_key.setdefault((task, variant, record["optim"], float(record["lr"])), []).append(record)
    groups = [
        Group(*key, tuple(sorted(of_key, key=lambda record: (record["seed"], record["run_id"]))))
        for key, of_key in by_key.items()
    ]
    order = style.in_order(sorted({group.optim for group in groups}))
    return tuple(sorted(groups, key=lambda g: (g.task, _variant_order(g.variant), order.index(g.optim), g.lr)))


def _variant_order(variant: cells.Variant) -> list[tuple[str, bool, float, str]]:
    """The settings of the task's YAML first, then by value: 5 layers before 10."""
    numbers = [(key, value, isinstance(value, int | float)) for key, value in variant]
    return [(key, not is_number, float(value) if is_number else 0.0, str(value)) for key, value, is_number in numbers]


# Settings in which records differ


def _variants(found: Sequence[Record]) -> Iterator[tuple[Record, cells.Variant]]:
    """Settings of one task's records that differ from its YAML, or without a YAML, that differ among the records."""
    all_settings = [_settings(record) for record in found]
    default = _shipped(found[0]["task"])
    precisions = {record.get("precision") for record in found}
    for record, settings in zip(found, all_settings, strict=True):
        if default is None:
            differing = {k: v for k, v in settings.items() if any(other.get(k) != v for other in all_settings)}
        else:
            # Runs that were logged before a key existed have its value of that time.
            before = {key.removeprefix("task."): value for key, value in DEFAULTS_OF_LOGGED_RUNS.items()}
            known = {key: value for key, value in before.items() if settings and key in default} | settings
            differing = {key: value for key, value in known.items() if not _is_default(default, key, value)}
        if len(precisions) > 1:
            differing["precision"] = str(record.get("precision"))
        yield record, tuple(sorted(differing.items()))


def _settings(record: Record) -> dict[str, Any]:
    """All settings, flat; an object's `_target_` goes by the object's key: schedule = exponential."""
    found = _flat(current_names({"task": record.get("settings") or {}})["task"])
    return {
        key.removesuffix(f".{TARGET}"): str(value).rsplit(".", 1)[-1] if key.endswith(f".{TARGET}") else value
        for key, value in found
        if key != TARGET
    }


@cache
def _shipped(task: str) -> dict[str, Any] | None:
    """The settings of a task's YAML, or None without one."""
    path = CONFIG_DIR / "task" / f"{task}.yaml"
    if Path(task).name != task or not path.is_file():
        return None
    return _settings({"settings": yaml.safe_load(path.read_text())})


def _is_default(default: Mapping[str, Any], key: str, value: Any) -> bool:
    """A setting that interpolates another counts as default: its value is known only for a run."""
    return key in default and (default[key] == value or "${" in str(default[key]))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings under dotted keys; lists as text, so that all can be compared."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value) if isinstance(value, list) else value
