"""Madam: multiplicative steps, relative for each single weight, as the paper ran it."""

from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype
from nero.optim.base import (
    CapturableOptimizer,
    ParamsT,
    bias_correction,
    check_beta,
    check_lr,
    gradient,
    running_average,
    scalar,
)
from nero.optim.batches import batches, concatenate, split_, stored_view


def madam_update(
    weight: Tensor,
    grad: Tensor,
    avg_sq: Tensor,
    step: Tensor,
    bound: Tensor,
    lr: float | Tensor,
    beta: float,
    g_bound: float,
) -> tuple[Tensor, Tensor]:
    """The new weights and running averages of squared gradients, entry by entry; all tensors broadcast to `weight`."""
    weight, grad = weight.to(avg_sq.dtype), grad.to(avg_sq.dtype)
    avg_sq = running_average(avg_sq, grad.square(), beta)
    unseen = avg_sq == 0
    relative = grad / (avg_sq / bias_correction(step.to(avg_sq.dtype), beta)).sqrt()
    moved = weight * torch.exp(-lr * weight.sign() * relative.clamp(-g_bound, g_bound))
    # Zero over zero where no gradient was ever seen; a NaN from anything else passes, so that a diverged run shows.
    return torch.where(unseen, weight, torch.clamp(moved, -bound, bound)), avg_sq


class Madam(CapturableOptimizer):
    r"""Multiplicative steps, per-synapse relative (Bernstein et al. 2020).

    For each weight w with gradient g, at the t-th step of its tensor:

        ḡ² ← β ḡ² + (1 - β) g²
        w  ← w exp(-η sign(w) clip(g √(1 - βᵗ) / ḡ, ±g_bound))
        w  ← clip(w, ±p_scale · σ)        σ: root mean square of the tensor when it was added

    No weight changes sign, and one that is zero stays zero. One that has never seen a gradient does not move.

    lr:      η, a number or a tensor with one element
    beta:    β, how much of the running average a step keeps
    g_bound: largest relative gradient
    p_scale: largest absolute weight, in units of σ
    foreach: whether to update all tensors as one batch; by default on accelerators only

    State of each parameter: `step` (0-dim), `avg_sq` (float32 or wider), `bound` (0-dim: p_scale · σ).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        beta: float = 0.999,
        g_bound: float = 10.0,
        p_scale: float = 3.0,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "g_bound": g_bound, "p_scale": p_scale, "foreach": foreach}
        super().__init__(params, defaults)

    def check_settings(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"])
        check_beta("beta", group["beta"])
        for key in ("g_bound", "p_scale"):
            if not group[key] > 0:
                raise ValueError(f"{key} must be positive, not {group[key]}")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        dtype = compute_dtype(param.dtype)
        mean_square = param.to(dtype).square().sum() / max(param.numel(), 1)
        return {
            "step": torch.zeros((), dtype=torch.float32, device=param.device),
            "avg_sq": torch.zeros_like(param, dtype=dtype),
            "bound": group["p_scale"] * mean_square.sqrt(),
        }

    def update_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        torch._foreach_add_([self.state[param]["step"] for param in params], 1)
        for batch in batches(params, group["foreach"]):
            self._update_batch_(batch, group)

    def _update_batch_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[param] for param in params]
        sizes = [param.numel() for param in params]
        views = [stored_view(param) for param in params]
        grads = [stored_view(gradient(param), like=param) for param in params]
        avg_sqs = [stored_view(state["avg_sq"], like=param) for state, param in zip(states, params, strict=True)]
        weight, avg_sq = madam_update(
            concatenate([view.reshape(-1) for view in views]),
            concatenate([grad.reshape(-1) for grad in grads]),
            concatenate([average.reshape(-1) for average in avg_sqs]),
            concatenate([state["step"].expand(size) for state, size in zip(states, sizes, strict=True)]),
            concatenate([state["bound"].expand(size) for state, size in zip(states, sizes, strict=True)]),
            scalar(group["lr"]),
            group["beta"],
            group["g_bound"],
        )
        split_(avg_sqs, avg_sq)
        split_(views, weight)
