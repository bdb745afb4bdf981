"""Which constraints of a balanced network the runs of a cell kept, and whose steps they took.

Figures 1 and 2 and Table 2 compare cells by this. It is read from the runs' config, so that another optimiser joins
them by a row in experiments/ablation.yaml.
"""

from functools import cache
from typing import NamedTuple

import yaml

from nero.plans.config import CONFIG_DIR, names
from nero.plans.plan import Cell
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.tables.table import Listing


class Kept(NamedTuple):
    """Every neuron's weights kept at mean zero, and at norm one."""

    mean: bool
    norm: bool


def kept(cell: Cell) -> Kept:
    """An optimiser whose config has no such settings keeps neither."""
    return Kept(*(bool(cell.setting(setting)) for setting in paper.CONSTRAINT_SETTINGS.values()))


def base(cell: Cell) -> str:
    """The optimiser that takes the steps: that of "madam_constrained", which wraps Madam, is "madam"."""
    return _by_target().get(cell.setting("optim.base._target_"), cell.optim)


@cache
def _by_target() -> dict[str, str]:
    """What an optimiser's config makes -> its name; of several configs of one optimiser the first has it."""
    found: dict[str, str] = {}
    for name in names("optim"):
        config = yaml.safe_load((CONFIG_DIR / "optim" / f"{name}.yaml").read_text())
        found.setdefault(config["_target_"], name)
    return found


def _words(cell: Cell) -> tuple[str, str, str]:
    constraints = kept(cell)
    return cells.labelled(style.name(base(cell)), cell), "✓" * constraints.mean, "✓" * constraints.norm


def name(cell: Cell) -> str:
    """Such as "Nero (both)"."""
    which, _ = style.CONSTRAINTS[kept(cell)]
    return cells.labelled(f"{style.name(base(cell))} ({which})", cell)


LISTING = Listing(("optimiser", "fix mean", "fix norm"), _words, name)
"""Table 2 as the paper lays it out."""
