"""The optimisers that `benchmarks.optim` times, and the goals for their times."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from nero.optim import LAMB, Madam, Nero

SETS = {
    "cuda": ("resnet50", "mlp100", "translation", "billion"),
    "cpu": ("resnet18", "wikitext2", "mlp100", "translation"),
}

Key = tuple[str, str]
"""Optimiser and implementation: a row of the table."""


class Unavailable(Exception):
    """An optimiser is not installed."""


@dataclass(frozen=True)
class Row:
    """An optimiser implementation. `captured`: further options for a CUDA graph; None if it cannot be captured."""

    key: Key
    make: Callable[..., Optimizer]
    options: dict[str, Any] = field(default_factory=dict)
    captured: dict[str, Any] | None = field(default_factory=dict)


def nero_of_pytorch_optimizer(params: list[Tensor], lr: float) -> Optimizer:
    try:
        from pytorch_optimizer import Nero as TheirNero
    except ImportError as error:
        raise Unavailable("not installed") from error
    return TheirNero(params, lr=lr)


COPY = ("copy", "floor")
FUSED_NERO, FUSED_LAMB, FUSED_MADAM = ("Nero", "fused"), ("LAMB", "fused"), ("Madam", "fused")
FUSED_ADAM, FOREACH_ADAM = ("torch Adam", "fused"), ("torch Adam", "foreach")
DEFAULT_NERO = ("Nero", "default")
# A failed capture can break the process, so only optimisers known to support capture are captured. torch's foreach SGD
# reads its learning rate to the host; pytorch_optimizer's Nero counts its steps there.
ROWS = (
    Row(DEFAULT_NERO, Nero),
    Row(FUSED_NERO, Nero, {"fused": True}),
    Row(("Nero", "foreach"), Nero, {"foreach": True, "fused": False}),
    Row(("Nero", "per tensor"), Nero, {"foreach": False, "fused": False}),
    Row(FUSED_LAMB, LAMB, {"fused": True}),
    Row(("LAMB", "foreach"), LAMB, {"foreach": True}),
    Row(("LAMB", "per tensor"), LAMB, {"foreach": False}),
    Row(FUSED_MADAM, Madam, {"fused": True}),
    Row(("Madam", "foreach"), Madam, {"foreach": True}),
    Row(("Madam", "per tensor"), Madam, {"foreach": False}),
    Row(("torch SGD", "foreach"), SGD, {"foreach": True}, None),
    Row(("torch SGD", "fused"), SGD, {"fused": True}),
    Row(FOREACH_ADAM, Adam, {"foreach": True}, {"capturable": True}),
    Row(FUSED_ADAM, Adam, {"fused": True}, {"capturable": True}),
    Row(("pytorch_optimizer's Nero", "its default"), nero_of_pytorch_optimizer, {}, None),
)


class Goal(NamedTuple):
    """The largest ratio of two rows' times that is allowed on some sets of one device; `dtype` None is any."""

    row: Key
    over: Key
    bound: float
    sets: tuple[str, ...] = SETS["cuda"]
    device: str = "cuda"
    dtype: torch.dtype | None = None


GOALS = (
    Goal(FUSED_NERO, FUSED_ADAM, 0.5, dtype=torch.float32),
    Goal(FUSED_NERO, FUSED_ADAM, 0.45, dtype=torch.bfloat16),
    Goal(FUSED_NERO, COPY, 1.3, ("mlp100", "translation", "billion"), dtype=torch.float32),
    Goal(FUSED_NERO, COPY, 1.5, ("resnet50",), dtype=torch.float32),
    Goal(("Nero", "foreach"), FOREACH_ADAM, 2.0),
    Goal(FUSED_LAMB, FUSED_ADAM, 1.1),
    Goal(FUSED_MADAM, FUSED_ADAM, 1.0),
    Goal(DEFAULT_NERO, FOREACH_ADAM, 1.5, SETS["cpu"], device="cpu"),
)
