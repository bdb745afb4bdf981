"""Nero, the neuronal rotator (Algorithm 1)."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype, neuron_norm, project, project_
from nero.optim.base import CapturableOptimizer, ParamsT, bias_correction, check_beta, check_lr, gradient, scalar
from nero.optim.batches import batches, concatenate, split_, stack, stored_view, unstack_


def nero_update(
    weight: Tensor,
    grad: Tensor,
    avg_sq: Tensor,
    step: Tensor,
    scale: Tensor,
    lr: float | Tensor,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 up to the projection: the turned weights and the running averages of squared gradient norms.

    weight, grad: [..., neurons, fan_in]; a bias is a neuron of fan-in one
    avg_sq:       [..., neurons], in the dtype to reckon in
    step:         number of this step, from 1; broadcasts to avg_sq, as scale does
    scale:        s in the class docstring: what a step is relative to
    """
    weight, grad = weight.to(avg_sq.dtype), grad.to(avg_sq.dtype)
    avg_sq = torch.lerp(avg_sq, grad.square().sum(-1), 1 - beta)
    grad_norm = (avg_sq / bias_correction(step.to(avg_sq.dtype), beta)).sqrt()
    # Zero where no gradient was ever seen, instead of 0/0; a NaN passes, so that a diverged run shows as one.
    rate = torch.where(grad_norm == 0, 0.0, lr * scale / grad_norm)
    return torch.addcmul(weight, rate.unsqueeze(-1), grad, value=-1), avg_sq


class Nero(CapturableOptimizer):
    r"""Per-neuron relative steps, projected back to balanced neurons (Section 4, Algorithm 1).

    For each neuron with weights w and gradient g, at its t-th step:

        ḡ² ← β ḡ² + (1 - β) ‖g‖²                  running average
        w  ← w - η s √(1 - βᵗ) / ḡ · g            turn by an angle of about η
        w  ← w - mean(w)                          if `mean`
        w  ← w / ‖w‖                              if `norm`

    Entries of tensors with fewer than two dims (biases, gains) take the first two lines one by one, with g² for ‖g‖².
    An entry that has never seen a gradient does not move.

    Weights are projected once when they are added. The scale s of a tensor is fixed then: the mean norm of its neurons
    for weights (one once projected), the mean absolute value for the others, and `sigma_b` where that is zero.

    lr:         η, a number or a tensor with one element. 0.01 is meant to work out of the box
    beta:       β, how much of the running average a step keeps
    mean, norm: the two halves of the projection, for ablations
    sigma_b:    scale of a tensor that starts at zero
    foreach:    whether to update tensors of one shape as one batch; by default on accelerators only

    State of each parameter: `step` and `scale` (0-dim), `avg_sq` (a number per neuron or entry, float32 or wider).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        beta: float = 0.999,
        mean: bool = True,
        norm: bool = True,
        sigma_b: float = 0.01,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "mean": mean, "norm": norm, "sigma_b": sigma_b, "foreach": foreach}
        super().__init__(params, defaults)

    def check_settings(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"])
        check_beta("beta", group["beta"])
        if not 0 < group["sigma_b"] < math.inf:
            raise ValueError(f"sigma_b must be positive and finite, not {group['sigma_b']}")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        project_(param, mean=group["mean"], norm=group["norm"])
        dtype = compute_dtype(param.dtype)
        sizes = neuron_norm(param) if param.ndim >= 2 else param.detach().abs().to(dtype)
        scale = sizes.mean() if param.numel() else sizes.new_zeros(())
        return {
            "step": torch.zeros((), dtype=torch.float32, device=param.device),
            "avg_sq": torch.zeros_like(sizes, memory_format=torch.contiguous_format),
            "scale": torch.where(scale == 0, group["sigma_b"], scale),
        }

    def update_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        torch._foreach_add_([self.state[param]["step"] for param in params], 1)
        for weights in batches([param for param in params if param.ndim >= 2], group["foreach"], one_shape=True):
            self._update_weights_(weights, group)
        for biases in batches([param for param in params if param.ndim < 2], group["foreach"], one_shape=False):
            self._update_biases_(biases, group)

    def _update_weights_(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[weight] for weight in weights]
        views = [stored_view(weight) for weight in weights]
        grads = [stored_view(gradient(weight), like=weight) for weight in weights]
        turned, avg_sq = nero_update(
            stack([view.flatten(1) for view in views]),
            stack([grad.flatten(1) for grad in grads]),
            stack([state["avg_sq"] for state in states]),
            stack([state["step"] for state in states]).unsqueeze(-1),
            stack([state["scale"] for state in states]).unsqueeze(-1),
            scalar(group["lr"]),
            group["beta"],
        )
        unstack_([state["avg_sq"] for state in states], avg_sq)
        unstack_(views, project(turned, mean=group["mean"], norm=group["norm"], dtype=weights[0].dtype))

    def _update_biases_(self, biases: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[bias] for bias in biases]
        turned, avg_sq = nero_update(
            concatenate(biases).unsqueeze(-1),
            concatenate([gradient(bias) for bias in biases]).unsqueeze(-1),
            concatenate([state["avg_sq"] for state in states]),
            concatenate([state["step"].expand_as(bias) for state, bias in zip(states, biases, strict=True)]),
            concatenate([state["scale"].expand_as(bias) for state, bias in zip(states, biases, strict=True)]),
            scalar(group["lr"]),
            group["beta"],
        )
        split_([state["avg_sq"] for state in states], avg_sq)
        split_(biases, turned.squeeze(-1))
