"""Helpers for tests of fused paths: parameters on the kernels' device, and comparisons of optimisers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from support import references

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The GPU if there is one, else the CPU, where Triton's interpreter runs."""


def make(shapes: list[Any], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    return [tensor.to(DEVICE).requires_grad_() for tensor in references.draw(seed, shapes, dtype)]


def set_gradients(params: list[Tensor], seed: int) -> None:
    for param, grad in zip(params, references.draw(seed, [tuple(param.shape) for param in params]), strict=True):
        param.grad = grad.to(param.device, param.dtype)


def by_three_paths(
    kind: Callable[..., Optimizer], shapes: list[Any], dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[list[Tensor], ...]:
    """Parameters after three steps of the same optimiser on its fused, foreach and single-tensor paths."""
    ends = []
    for path in ({"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}):
        params = make(shapes, dtype)
        optimizer = kind(params, **{"lr": 0.03, **settings}, **path)
        for t in range(3):
            set_gradients(params, t)
            optimizer.step()
        ends.append(params)
    return tuple(ends)


def assert_steps_alike(ours: Optimizer, theirs: Optimizer, seeds: range) -> None:
    for t in seeds:
        for optimizer in (ours, theirs):
            set_gradients([param for group in optimizer.param_groups for param in group["params"]], t)
            optimizer.step()
    for mine, other in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert torch.equal(mine, other)
