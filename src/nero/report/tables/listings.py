"""Tables with one line per cell: the ablation (Figures 1 and 2, Table 2) and ImageNet (Figure 9).

Names and settings are read from the runs' config, so that another optimiser or setting joins by a row in the
experiment's YAML.
"""

from functools import cache
from typing import Any

import yaml

from nero.plans.config import config_file, names
from nero.plans.plan import Cell
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.tables.table import Listing
from nero.runs.records import LOADER


def constraints_of(cell: Cell) -> tuple[bool, bool]:
    """Whether neurons are kept at mean zero, and at norm one; an optimiser without such settings has neither."""
    mean, norm = (bool(cell.setting(setting)) for setting in paper.CONSTRAINT_SETTINGS.values())
    return mean, norm


def base_optimizer(cell: Cell) -> str:
    """The optimiser that takes the steps: "madam" for "madam_constrained", which wraps Madam."""
    return _by_target().get(cell.setting("optim.base._target_"), cell.optim)


@cache
def _by_target() -> dict[str, str]:
    """Class of an optimiser -> its name, the first of several configs."""
    texts = {name: config_file("optim", name).read_text() for name in reversed(names("optim"))}
    return {yaml.load(text, Loader=LOADER)["_target_"]: name for name, text in texts.items()}


def _ablation_words(cell: Cell) -> tuple[str, str, str]:
    mean, norm = constraints_of(cell)
    return cells.labelled(style.name(base_optimizer(cell)), cell), "✓" * mean, "✓" * norm


def _ablation_name(cell: Cell) -> str:
    """Such as "Nero (both)"."""
    which, _ = style.CONSTRAINTS[constraints_of(cell)]
    return cells.labelled(f"{style.name(base_optimizer(cell))} ({which})", cell)


ABLATION = Listing(("optimiser", "fix mean", "fix norm"), _ablation_words, _ablation_name)  # as the paper's Table 2

MOMENTUM, DECAY = "optim.momentum", "optim.weight_decay"
# Settings that the table shows for every optimiser that has them.
SHOWN = (MOMENTUM, DECAY, "optim.beta", "optim.sigma_b", "optim.gain_penalty")
DEFAULTS = ((MOMENTUM, paper.IMAGENET_MOMENTUM), (DECAY, 0.0))  # settings that a name leaves out
# The paper's names: Nero out of the box, and the baseline that the target is for.
OOTB, BASELINE = "Nero OOTB", "SGD + weight decay"


def curve_name(cell: Cell) -> str:
    """As the paper writes it, such as "SGD + weight decay", or with its settings: "SGD at momentum = 0.5"."""
    chosen = _chosen(cell)
    if (cell.optim, cell.lrs) == ("nero", (paper.OOTB_LR,)) and not chosen:
        return cells.labelled(OOTB, cell)
    named = {key: value for key, value in _settings(cell).items() if key in (DECAY, *chosen)}
    words = style.name(cell.optim)
    if named.get(DECAY) == paper.IMAGENET_DECAY:
        words += " + weight decay"
        del named[DECAY]
    others = tuple(setting for setting in named.items() if setting not in DEFAULTS)
    return cells.labelled(words + (f" at {cells.variant_text(others)}" if others else ""), cell)


def _settings(cell: Cell) -> dict[str, Any]:
    """Settings by dotted key: those in SHOWN that the optimiser has, and those that the experiment chose."""
    keys = dict.fromkeys((*SHOWN, *_chosen(cell)))
    return {key: value for key in keys if (value := cell.setting(key)) is not None}


def _chosen(cell: Cell) -> list[str]:
    """Keys that the experiment sweeps, and others of the optimiser that it sets."""
    swept = {key.lstrip("+") for key, _ in cell.variant}
    keys = [word.partition("=")[0].lstrip("+") for word in cell.all_overrides]
    return [key for key in keys if key in swept or key.startswith("optim.")]


def _imagenet_words(cell: Cell) -> tuple[str, str]:
    return curve_name(cell), cells.variant_text(tuple(_settings(cell).items()))


IMAGENET = Listing(("curve", "settings"), _imagenet_words, curve_name)  # one line per curve of the figure
