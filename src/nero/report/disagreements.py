"""Why results differ from the paper's: `disagreements.yaml` beside a store, quoted below the tables of its runs.

The file is a list of entries such as

    - experiment: checks
      task: cifar10_vgg11
      optim: adam
      variant: {precision: bf16}  # swept settings of the cell; left out where it has none
      label: a row's label        # likewise
      reason: One or two sentences.
      check: what was logged in support, such as "checks: cifar10_vgg11, precision = tf32"
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nero.plans.config import ConfigError
from nero.plans.plan import Experiment, load_experiment
from nero.report.cells import CellKey, RowKey, ordered, row_text
from nero.runs.store import Store

NAME = "disagreements.yaml"
NEEDED = ("experiment", "task", "optim", "reason", "check")
OTHERS = ("variant", "label")


@dataclass(frozen=True)
class Disagreement:
    """Why one cell of an experiment differs from the paper's."""

    experiment: str
    key: CellKey
    reason: str
    check: str


def beside(store: Store) -> tuple[Disagreement, ...]:
    """Those in the file beside the store's folder; none where there is no such file."""
    path = store.root.parent / NAME
    return load(path) if path.is_file() else ()


def load(path: Path) -> tuple[Disagreement, ...]:
    """Read and check the file: ConfigError, in one line, for what is no entry, names no cell, or comes twice."""
    try:
        entries = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must be a list, not {entries!r}")
    experiments: dict[str, Experiment] = {}
    found: dict[tuple[str, CellKey], Disagreement] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"entry {number} of {path}"
        each = _read(entry, where)
        if each.experiment not in experiments:
            experiments[each.experiment] = load_experiment(each.experiment)
        if each.key not in map(CellKey.of, experiments[each.experiment].cells):
            raise ConfigError(f"{where}: {each.experiment} has no cell {_text(each.key)}")
        if (each.experiment, each.key) in found:
            raise ConfigError(f"{where}: there is another one on {each.experiment}, {_text(each.key)}")
        found[each.experiment, each.key] = each
    return tuple(found.values())


def _read(entry: Any, where: str) -> Disagreement:
    if fault := next(_faults(entry), None):
        raise ConfigError(f"{where} {fault}")
    variant = ordered(tuple(entry.get("variant", {}).items()))
    key = CellKey(RowKey(entry["task"], variant, entry.get("label", "")), entry["optim"])
    return Disagreement(entry["experiment"], key, _sentence(entry["reason"]), _sentence(entry["check"]))


def _faults(entry: Any) -> Iterator[str]:
    """What is wrong with an entry, in words; the first is worth telling."""
    if not isinstance(entry, dict):
        yield f"must be a mapping, not {entry!r}"
        return
    known = (*NEEDED, *OTHERS)
    yield from (f"has an unknown key {key!r}; there are: {', '.join(known)}" for key in entry if key not in known)
    yield from (f"needs {key!r}" for key in NEEDED if entry.get(key) in (None, ""))
    if not isinstance(entry.get("variant", {}), dict):
        yield f"must have a mapping under 'variant', not {entry['variant']!r}"
    texts = [key for key in known if key in entry and key != "variant"]
    yield from (f"must have a text under {key!r}, not {entry[key]!r}" for key in texts if type(entry[key]) is not str)


def _sentence(text: str) -> str:
    """On one line, with a full stop."""
    words = " ".join(text.split())
    return words if words.endswith(".") else f"{words}."


def _text(key: CellKey) -> str:
    return f"{row_text(key.row)}, {key.optim}"
