"""Which constraints of a balanced network the runs of a cell kept, and whose steps they took.

Figures 1 and 2 and Table 2 compare cells by this. It is read from the runs' config, so that another optimiser joins
them by a row in experiments/ablation.yaml.
"""

from typing import NamedTuple

from nero.plans.plan import Cell
from nero.report import paper, style
from nero.report.tables import Listing

BASES = {constrained: base for base, constrained in paper.BOTH_CONSTRAINTS.items()}


class Kept(NamedTuple):
    """Every neuron's weights kept at mean zero, and at norm one."""

    mean: bool
    norm: bool


def kept(cell: Cell) -> Kept:
    """An optimiser whose config has no such settings keeps neither."""
    return Kept(*(bool(cell.setting(setting)) for setting in paper.CONSTRAINT_SETTINGS.values()))


def base(cell: Cell) -> str:
    """The optimiser that takes the steps: that of "madam_constrained" is "madam"."""
    return BASES.get(cell.optim, cell.optim)


def _words(cell: Cell) -> tuple[str, str, str]:
    constraints = kept(cell)
    return style.name(base(cell)), "✓" * constraints.mean, "✓" * constraints.norm


LISTING = Listing(("optimiser", "fix mean", "fix norm"), _words)
"""Table 2 as the paper lays it out."""
