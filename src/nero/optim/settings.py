"""Checks of an optimiser's settings."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from torch import Tensor

RANGES: dict[str, Callable[[float], bool]] = {
    "finite and not negative": lambda value: 0 <= value < math.inf,
    "positive": lambda value: value > 0,
    "positive and finite": lambda value: 0 < value < math.inf,
    "in [0, 1)": lambda value: 0 <= value < 1,
}
LR = "finite and not negative"  # the range of learning rates


def check_number(name: str, value: Any, wanted: str) -> None:
    """Raise ValueError unless a setting is a number, or a tensor with one element, in this range of RANGES."""
    if not isinstance(value, Real | Tensor) or isinstance(value, bool) or not RANGES[wanted](float(value)):
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def check_flag(name: str, value: Any, allowed: str = "True or False") -> None:
    """Raise ValueError unless a setting is a boolean: text, such as "off", would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be {allowed}, not {value!r}")


def check_settings(group: Mapping[str, Any], ranges: Mapping[str, str], flags: Iterable[str]) -> None:
    """Raise ValueError for an invalid setting of a param group that optimisers here share, or of these."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, not of shape {tuple(lr.shape)}")
    for name, wanted in {"lr": LR, **ranges}.items():
        check_number(name, group[name], wanted)
    for name in ("maximize", "capturable", *flags):
        check_flag(name, group[name])
    for name in ("foreach", "fused"):
        if group.get(name) is not None:
            check_flag(name, group[name], "None, True or False")
    if group["foreach"] and group.get("fused"):
        raise ValueError("foreach and fused cannot both be true")


def check_rates(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError for an invalid learning rate, in each step. Tensors are not read, which could take a while."""
    for group in groups:
        lr = group["lr"]
        if not (type(lr) is float and 0.0 <= lr < math.inf) and not isinstance(lr, Tensor):
            check_number("lr", lr, LR)
