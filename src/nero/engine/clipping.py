"""Gradient clipping by a key of the optimiser's YAML: `clip_norm`, the most that all gradients together may measure."""

import math
from typing import Any

from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

CLIP_NORM = "clip_norm"


def clip_before_step(optimizer: Optimizer, norm: float) -> None:
    """Before each step, scale the gradients of all its parameters such that their joint norm is at most `norm`."""
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not math.isfinite(norm) or norm <= 0:
        raise ValueError(f"{CLIP_NORM} must be a positive number, not {norm!r}")

    def clip(stepped: Optimizer, args: Any, kwargs: Any) -> None:
        clip_grad_norm_([param for group in stepped.param_groups for param in group["params"]], norm)

    optimizer.register_step_pre_hook(clip)
