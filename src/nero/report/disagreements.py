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

from functools import cache
from pathlib import Path

import yaml

from nero.plans.plan import load_experiment
from nero.plans.schema import ConfigError, check_keys
from nero.report.cells import CellKey, RowKey, row_as_typed
from nero.runs.records import LOADER
from nero.runs.store import Store

NAME = "disagreements.yaml"
NEEDED = ("experiment", "task", "optim", "reason", "check")
OTHERS = ("variant", "label")


def of_store(store: Store) -> dict[tuple[str, CellKey], str]:
    """The entries of the file next to the store's folder, if it exists."""
    path = store.root.parent / NAME
    return load(path) if path.is_file() else {}


def load(path: Path) -> dict[tuple[str, CellKey], str]:
    """Experiment and cell -> reason and check, as sentences.

    Raises ConfigError for an invalid or duplicate entry, or an unknown cell.
    """
    try:
        entries = yaml.load(path.read_text(), Loader=LOADER)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must be a list, not {entries!r}")
    experiment = cache(load_experiment)
    found: dict[tuple[str, CellKey], str] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"entry {number} of {path}"
        check_keys(entry, where, NEEDED, OTHERS, strings=(*NEEDED, "label"))
        variant = entry.get("variant", {})
        check_keys(variant, f"{where}: 'variant'", others=variant)
        row = RowKey(entry["task"], tuple(sorted(variant.items())), entry.get("label", ""))
        name, key = entry["experiment"], CellKey(row, entry["optim"])
        if key not in map(CellKey.of, experiment(name).cells):
            raise ConfigError(f"{where}: {name} has no cell {row_as_typed(row)}, {key.optim}")
        if (name, key) in found:
            raise ConfigError(f"{where}: duplicate entry for {name}, {row_as_typed(row)}, {key.optim}")
        found[name, key] = f"{_sentence(entry['reason'])} Check: {_sentence(entry['check'])}"
    return found


def _sentence(text: str) -> str:
    """On one line, ending with a full stop."""
    return " ".join(text.split()).removesuffix(".") + "."
