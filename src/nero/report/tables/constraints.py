"""The constraints and the base optimiser of a cell of the ablation (Figures 1 and 2, Table 2).

Both are read from the runs' config, so that another optimiser joins by a row in experiments/ablation.yaml.
"""

from functools import cache
from typing import NamedTuple

import yaml

from nero.plans.config import CONFIG_DIR, names
from nero.plans.plan import Cell
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.tables.table import Listing


class Constraints(NamedTuple):
    """Whether every neuron's weights are kept at mean zero, and at norm one."""

    mean: bool
    norm: bool


def constraints_of(cell: Cell) -> Constraints:
    """An optimiser without such settings has neither."""
    return Constraints(*(bool(cell.setting(setting)) for setting in paper.CONSTRAINT_SETTINGS.values()))


def base_optimizer(cell: Cell) -> str:
    """The optimiser that takes the steps: "madam" for "madam_constrained", which wraps Madam."""
    return _by_target().get(cell.setting("optim.base._target_"), cell.optim)


@cache
def _by_target() -> dict[str, str]:
    """Class of an optimiser -> its name, the first of several configs."""
    found: dict[str, str] = {}
    for name in names("optim"):
        config = yaml.safe_load((CONFIG_DIR / "optim" / f"{name}.yaml").read_text())
        found.setdefault(config["_target_"], name)
    return found


def _words(cell: Cell) -> tuple[str, str, str]:
    constraints = constraints_of(cell)
    return cells.labelled(style.name(base_optimizer(cell)), cell), "✓" * constraints.mean, "✓" * constraints.norm


def name(cell: Cell) -> str:
    """Such as "Nero (both)"."""
    which, _ = style.CONSTRAINTS[constraints_of(cell)]
    return cells.labelled(f"{style.name(base_optimizer(cell))} ({which})", cell)


LISTING = Listing(("optimiser", "fix mean", "fix norm"), _words, name)
"""The layout of the paper's Table 2."""
