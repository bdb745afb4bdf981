"""Names of the curves of Figure 9: optimiser and settings.

They are read from the runs' config, so that another setting joins the figure by a row in experiments/imagenet.yaml.
"""

from typing import Any

from nero.plans.plan import Cell
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.tables.table import Listing

MOMENTUM, DECAY = "optim.momentum", "optim.weight_decay"

SHOWN = (MOMENTUM, DECAY, "optim.beta", "optim.sigma_b", "optim.gain_penalty")
"""Settings that the table shows for every optimiser that has them."""

DEFAULTS = ((MOMENTUM, paper.IMAGENET_MOMENTUM), (DECAY, 0.0))
"""Settings that a name leaves out."""

OOTB, BASELINE = "Nero OOTB", "SGD + weight decay"
"""The paper's names: Nero out of the box, and the baseline that the target is for."""

AS_SHIPPED: dict[tuple[str, tuple[float, ...]], str] = {("nero", (paper.OOTB_LR,)): OOTB}
"""Optimiser and learning rates -> name if the experiment sets nothing else."""

COLOURS = dict(style.OPTIMS.values()) | {OOTB: style.OPTIMS["nero"][1], BASELINE: style.VARIANTS[1]}
"""By name; others get an unused colour."""


def name(cell: Cell) -> str:
    """As the paper writes it, such as "SGD + weight decay", or with its settings: "SGD at momentum = 0.5"."""
    return cells.labelled(_name(cell), cell)


def _name(cell: Cell) -> str:
    chosen = _chosen(cell)
    shipped = AS_SHIPPED.get((cell.optim, cell.lrs))
    if shipped and not chosen:
        return shipped
    named = {key: value for key, value in settings(cell).items() if key in (DECAY, *chosen)}
    words = style.name(cell.optim)
    if named.get(DECAY) == paper.IMAGENET_DECAY:
        words += " + weight decay"
        del named[DECAY]
    others = tuple(setting for setting in named.items() if setting not in DEFAULTS)
    return words + (f" at {cells.variant_text(others)}" if others else "")


def settings(cell: Cell) -> dict[str, Any]:
    """Settings by dotted key: those in SHOWN that the optimiser has, and those that the experiment chose."""
    keys = dict.fromkeys((*SHOWN, *_chosen(cell)))
    return {key: value for key in keys if (value := cell.setting(key)) is not None}


def _chosen(cell: Cell) -> list[str]:
    """Keys that the experiment sweeps, and others of the optimiser that it sets."""
    swept = {_key(key) for key, _ in cell.variant}
    keys = [_key(word.partition("=")[0]) for word in cell.all_overrides]
    return [key for key in keys if key in swept or key.startswith("optim.")]


def _key(word: str) -> str:
    return word.lstrip("+")


def _words(cell: Cell) -> tuple[str, str]:
    return name(cell), cells.variant_text(tuple(settings(cell).items()))


LISTING = Listing(("curve", "settings"), _words, name)
"""One line per curve of the figure."""
