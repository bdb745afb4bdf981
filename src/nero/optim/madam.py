"""Madam: multiplicative steps, relative for each single weight, as the paper ran it."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nero.optim.balance import compute_dtype
from nero.optim.base import (
    CapturableOptimizer,
    Slot,
    bias_correction,
    check_beta,
    check_positive,
    running_average,
    scalar,
)
from nero.optim.param_groups import batches, concatenate, split_, stored_view
from nero.optim.sharding import check_not_partial, local, mean_over_all


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
    # Where no gradient was ever seen, `relative` is 0/0. Any other NaN is kept, so that a diverged run shows.
    return torch.where(unseen, weight, torch.clamp(moved, -bound, bound)), avg_sq


class Madam(CapturableOptimizer):
    r"""Multiplicative steps, per-synapse relative (Bernstein et al. 2020).

    For each weight w with gradient g, at the t-th step of its tensor:

        ḡ² ← β ḡ² + (1 - β) g²
        w  ← w exp(-η sign(w) clip(g √(1 - βᵗ) / ḡ, ±g_bound))
        w  ← clip(w, ±p_scale · σ)        σ: root mean square of the tensor when it was added

    No weight changes sign, and a weight of zero stays zero. A weight that has never seen a gradient does not move.

    Args:
        params: parameters, (name, parameter) pairs or param groups. All that follows is a key of the groups.
        lr: η, a number or a tensor with one element.
        beta: β, decay of the running average.
        g_bound: largest relative gradient.
        p_scale: largest absolute weight, in units of σ.
        maximize: maximise the objective.
        foreach: update all tensors as one batch; by default on accelerators only.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.

    State of each parameter: `step` (0-dim), `avg_sq` (float32 or wider), `bound` (0-dim: p_scale · σ).

    A sharded parameter (DTensor) is stepped where it lies, without communication.

    Example:
        >>> optimizer = Madam(model.parameters(), lr=0.01)
        >>> loss_fn(model(inputs), targets).backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        beta: float = 0.999,
        g_bound: float = 10.0,
        p_scale: float = 3.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = True,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "g_bound": g_bound, "p_scale": p_scale}
        super().__init__(params, {**defaults, "maximize": maximize, "foreach": foreach, "capturable": capturable})

    def check_settings(self, group: dict[str, Any]) -> None:
        super().check_settings(group)
        check_beta("beta", group["beta"])
        check_positive(group, "g_bound", "p_scale")

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        super().check_parameter(param, group)
        check_not_partial(param)

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        dtype = compute_dtype(param.dtype)
        mean_square = mean_over_all(param, local(param).detach().to(dtype).square())
        return {"avg_sq": torch.zeros_like(param, dtype=dtype), "bound": group["p_scale"] * mean_square.sqrt()}

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        for batch in batches(slots, group["foreach"], tensor=attrgetter("param")):
            self._update_batch_(batch, group)

    def _update_batch_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        sizes = [(slot.state, slot.param.numel()) for slot in slots]
        views = [stored_view(slot.param) for slot in slots]
        grads = [stored_view(slot.grad, like=slot.param) for slot in slots]
        avg_sqs = [stored_view(slot.state["avg_sq"], like=slot.param) for slot in slots]
        grad = concatenate([grad.reshape(-1) for grad in grads])
        weight, avg_sq = madam_update(
            concatenate([view.reshape(-1) for view in views]),
            -grad if group["maximize"] else grad,
            concatenate([average.reshape(-1) for average in avg_sqs]),
            concatenate([state["step"].expand(size) for state, size in sizes]),
            concatenate([state["bound"].expand(size) for state, size in sizes]),
            scalar(group["lr"]),
            group["beta"],
            group["g_bound"],
        )
        split_(views, weight)
        split_(avg_sqs, avg_sq)
