"""What was measured of the paper's theory: records by task and its settings, optimiser and learning rate.

Records that differ in their seed alone are a group. Embedded data never stands beside real data.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from nero.plans.config import CONFIG_DIR, VALUES_BEFORE
from nero.report import cells
from nero.report.figures import style
from nero.report.tables.formats import EMBEDDED
from nero.report.tables.sheets import RunLink
from nero.report.units import rate
from nero.theory import records
from nero.theory.records import Record

MAKE = "`make theory` measures trained runs and writes such records"
LINKS = "A link leads to the run of these settings in the store, of which the measured network may be another training."
TARGET = "_target_"


@dataclass(frozen=True)
class Group:
    """Records of one kind, by seed."""

    task: str
    variant: cells.Variant  # settings of the task in which they are not as the task's YAML has them
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
        """Such as "50 of 50"; of seeds that came differently far, each of them."""
        said = (f"{round(record['epochs_done'], 1):g} of {record['epochs']:g}" for record in self.records)
        return ", ".join(dict.fromkeys(said))

    def head(self, embedded: bool) -> dict[str, str]:
        """The first columns of a line of any CSV."""
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
        """Those whose `key` was measured, or None."""
        kept = tuple(record for record in self.records if record.get(key))
        return Group(self.task, self.variant, self.optim, self.lr, kept) if kept else None

    def links(self, store: Path | None) -> tuple[RunLink, ...]:
        """To those runs that are in the store."""
        if store is None:
            return ()
        found = (RunLink(f"seed {record['seed']}", self.task, record["run_id"]) for record in self.records)
        return tuple(link for link in found if (store / link.path).is_dir())


@dataclass(frozen=True)
class Evidence:
    """All records, and where the runs are that they are of, for links."""

    networks: tuple[Group, ...]
    steps: tuple[Group, ...]
    embedded: bool
    store: Path | None = None

    @property
    def warning(self) -> str:
        return EMBEDDED if self.embedded else ""

    def of(self, task: str) -> "Evidence":
        """What there is of one task."""
        networks, steps = (tuple(g for g in groups if g.task == task) for groups in (self.networks, self.steps))
        return replace(self, networks=networks, steps=steps)

    def title(self, words: str) -> str:
        """Of a figure: says so on its face where the data are embedded."""
        return f"{words}\nEmbedded data, not the paper's" if self.embedded else words


def gather(folder: Path, store: Path | None = None) -> Evidence:
    """The records under `folder`; EmbeddedDataError where some are of real and some of embedded data."""
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
    """By task and variant: the blocks of a table, the panels of a figure."""
    found: dict[cells.RowKey, list[Group]] = {}
    for group in groups:
        found.setdefault(group.row, []).append(group)
    return found


def absent(kind: str) -> str:
    """To be said where there is no record of a kind."""
    return f"Missing: no record under {kind}. {MAKE}."


def unmeasured(groups: Sequence[Group], key: str) -> str:
    """Which groups have no `key`, in words, or nothing."""
    without: dict[str, list[str]] = {}
    for group in groups:
        if not group.having(key):
            without.setdefault(cells.row_text(group.row), []).append(group.name)
    return "; ".join(f"{row} ({', '.join(dict.fromkeys(names))})" for row, names in without.items())


def arithmetic(groups: Sequence[Group]) -> str:
    """In which the networks were trained, in words."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        for record in group.records:
            precision = str(record.get("precision"))
            found.setdefault(style.PRECISIONS.get(precision, precision), {})[cells.row_text(group.row)] = None
    if len(found) == 1:
        return f"Trained in {next(iter(found))}."
    said = [f"{name} ({'; '.join(of)})" for name, of in found.items()]
    return f"Trained in {', '.join(said)}."


def _groups(found: Sequence[Record]) -> tuple[Group, ...]:
    variants = _variants(found)
    by_key: dict[tuple[str, cells.Variant, str, float], list[Record]] = {}
    for record in found:
        key = (record["task"], variants[record["run_id"]], record["optim"], float(record["lr"]))
        by_key.setdefault(key, []).append(record)
    groups = [
        Group(*key, tuple(sorted(of_key, key=lambda record: (record["seed"], record["run_id"]))))
        for key, of_key in by_key.items()
    ]
    places = {optim: place for place, optim in enumerate(style.in_order(sorted({group.optim for group in groups})))}
    return tuple(sorted(groups, key=lambda g: (g.task, _order(g.variant), places[g.optim], g.lr)))


def _order(variant: cells.Variant) -> list[tuple[str, bool, float, str]]:
    """As the task's YAML has it first, then by value: 5 layers before 10."""
    ordered = []
    for key, value in variant:
        is_number = isinstance(value, int | float)
        ordered.append((key, not is_number, float(value) if is_number else 0.0, str(value)))
    return ordered


# How a record's settings differ


def _variants(found: Sequence[Record]) -> dict[str, cells.Variant]:
    """By run id."""
    by_task: dict[str, list[Record]] = {}
    for record in found:
        by_task.setdefault(record["task"], []).append(record)
    return {run_id: variant for of_task in by_task.values() for run_id, variant in _of_task(of_task)}


def _of_task(found: Sequence[Record]) -> Iterator[tuple[str, cells.Variant]]:
    """Settings unlike those of the task's YAML; of a task that has none, those that differ among its records."""
    all_settings = [_settings(record) for record in found]
    default = _shipped(found[0]["task"])
    precisions = {record.get("precision") for record in found}
    for record, settings in zip(found, all_settings, strict=True):
        if default is None:
            differing = {
                key: value for key, value in settings.items() if any(other.get(key) != value for other in all_settings)
            }
        else:
            known = {key: value for key, value in _before().items() if settings and key in default} | settings
            differing = {key: value for key, value in known.items() if not _is_default(default, key, value)}
        if len(precisions) > 1:
            differing["precision"] = str(record.get("precision"))
        yield record["run_id"], tuple(sorted(differing.items()))


def _settings(record: Record) -> dict[str, Any]:
    """All of them, flat; what an object is made of goes by the object's key: schedule = exponential."""
    found = dict(_flat(record.get("settings") or {}))
    return {_key(key): _value(key, value) for key, value in found.items() if key != TARGET}


@cache
def _before() -> dict[str, Any]:
    """What a record means that does not have a key since its run was logged before there was one."""
    return {key.removeprefix("task."): value for key, value in VALUES_BEFORE.items()}


def _key(key: str) -> str:
    return key.removesuffix(f".{TARGET}")


def _value(key: str, value: Any) -> Any:
    return str(value).rsplit(".", 1)[-1] if key.endswith(f".{TARGET}") else value


@cache
def _shipped(task: str) -> dict[str, Any] | None:
    """A task's settings as its YAML has them; None where there is no such task."""
    path = CONFIG_DIR / "task" / f"{task}.yaml"
    if Path(task).name != task or not path.is_file():
        return None
    return _settings({"settings": yaml.safe_load(path.read_text())})


def _is_default(default: Mapping[str, Any], key: str, value: Any) -> bool:
    """What refers to another setting is known of a run alone, and says nothing."""
    return key in default and (default[key] == value or "${" in str(default[key]))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of settings under keys with dots; lists as text, so that all can be compared."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", json.dumps(value) if isinstance(value, list) else value
