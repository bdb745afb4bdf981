"""Why results differ from the paper's: `disagreements.yaml` next to a store, quoted below its tables.

The file is a list of entries such as

    - experiment: checks
      task: cifar10_vgg11
      optim: adam
      variant: {precision: bf16}  # swept settings of the cell, if any
      label: a row's label        # if any
      reason: One or two sentences.
      check: the logged runs that support it, such as "checks: cifar10_vgg11, precision = tf32"
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nero.plans.plan import Experiment, check_keys, load_experiment
from nero.plans.schema import ConfigError
from nero.report.cells import CellKey, RowKey, row_text, sorted_variant
from nero.runs.store import Store

NAME = "disagreements.yaml"
NEEDED = ("experiment", "task", "optim", "reason", "check")
OTHERS = ("variant", "label")


@dataclass(frozen=True)
class Disagreement:
    """The reason why one cell of an experiment differs from the paper's."""

    experiment: str
    key: CellKey
    reason: str
    check: str


def of_store(store: Store) -> tuple[Disagreement, ...]:
    """The entries of the file next to the store's folder, if it exists."""
    path = store.root.parent / NAME
    return load(path) if path.is_file() else ()


def load(path: Path) -> tuple[Disagreement, ...]:
    """Read and check the file. Raises ConfigError for an invalid or duplicate entry, or an unknown cell."""
    try:
        entries = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
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
            raise ConfigError(f"{where}: duplicate entry for {each.experiment}, {_text(each.key)}")
        found[each.experiment, each.key] = each
    return tuple(found.values())


def _read(entry: Any, where: str) -> Disagreement:
    check_keys(entry, where, NEEDED, OTHERS, strings=(*NEEDED, "label"))
    variant = entry.get("variant", {})
    check_keys(variant, f"{where}: 'variant'", others=variant)
    key = CellKey(RowKey(entry["task"], sorted_variant(tuple(variant.items())), entry.get("label", "")), entry["optim"])
    return Disagreement(entry["experiment"], key, _sentence(entry["reason"]), _sentence(entry["check"]))


def _sentence(text: str) -> str:
    """On one line, ending with a full stop."""
    words = " ".join(text.split())
    return words if words.endswith(".") else f"{words}."


def _text(key: CellKey) -> str:
    return f"{row_text(key.row)}, {key.optim}"
