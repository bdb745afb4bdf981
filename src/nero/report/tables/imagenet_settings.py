"""Which curve of Figure 9 a cell is: whose steps its runs took, and with what settings.

It is read from the runs' config, so that another setting joins the figure by a row in experiments/imagenet.yaml.
"""

from typing import Any

from nero.plans.plan import Cell
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.tables.table import Listing

MOMENTUM, DECAY = "optim.momentum", "optim.weight_decay"

TOLD = (MOMENTUM, DECAY, "optim.beta", "optim.sigma_b", "optim.gain_penalty")
"""What the paper says of its runs: a table has it for every optimiser with such settings."""

UNSAID = ((MOMENTUM, paper.IMAGENET_MOMENTUM), (DECAY, 0.0))
"""What goes without saying in a name."""

OOTB, BASELINE = "Nero OOTB", "SGD + weight decay"
"""As the paper writes them: out of the box, and what the target is for."""

AS_SHIPPED: dict[tuple[str, tuple[float, ...]], str] = {("nero", (paper.OOTB_LR,)): OOTB}
"""Optimiser and learning rates -> a name where the experiment sets nothing else."""

COLOURS = dict(style.OPTIMS.values()) | {OOTB: style.OPTIMS["nero"][1], BASELINE: style.VARIANTS[1]}
"""By name; one that is not here gets a colour that nothing else has."""


def name(cell: Cell) -> str:
    """As the paper writes it, such as "SGD + weight decay", or by what is set otherwise: "SGD at momentum = 0.5"."""
    return cells.labelled(_name(cell), cell)


def _name(cell: Cell) -> str:
    chosen = _chosen(cell)
    shipped = AS_SHIPPED.get((cell.optim, cell.lrs))
    if shipped and not chosen:
        return shipped
    said = {key: value for key, value in settings(cell).items() if key in (DECAY, *chosen)}
    words = style.name(cell.optim)
    if said.get(DECAY) == paper.IMAGENET_DECAY:
        words += " + weight decay"
        del said[DECAY]
    others = tuple(setting for setting in said.items() if setting not in UNSAID)
    return words + (f" at {cells.variant_text(others)}" if others else "")


def settings(cell: Cell) -> dict[str, Any]:
    """Those in TOLD that the cell's optimiser has, and all that the experiment chose for it, by dotted key."""
    keys = dict.fromkeys((*TOLD, *_chosen(cell)))
    return {key: value for key in keys if (value := cell.setting(key)) is not None}


def _chosen(cell: Cell) -> list[str]:
    """Keys of what the experiment sweeps, and of what else it sets of the optimiser."""
    swept = {_key(key) for key, _ in cell.variant}
    keys = [_key(word.partition("=")[0]) for word in cell.words]
    return [key for key in keys if key in swept or key.startswith("optim.")]


def _key(word: str) -> str:
    return word.lstrip("+")


def _words(cell: Cell) -> tuple[str, str]:
    return name(cell), cells.variant_text(tuple(settings(cell).items()))


LISTING = Listing(("curve", "settings"), _words, name)
"""A line per curve of the figure."""
