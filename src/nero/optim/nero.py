"""Nero, the neuronal rotator (Algorithm 1)."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype, neuron_norm, project, project_, squared_norm
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
from nero.optim.batches import batches, concatenate, fan_in, split_, stored_view


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

    weight, grad: [neurons, fan_in]; a bias is a neuron of fan-in one
    avg_sq:       [neurons], in the dtype to reckon in
    step:         number of this step, from 1; broadcasts to avg_sq, as scale does
    scale:        s in the class docstring: what a step is relative to
    """
    weight, grad = weight.to(avg_sq.dtype), grad.to(avg_sq.dtype)
    avg_sq = running_average(avg_sq, squared_norm(grad), beta)
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
    foreach:    whether to update neurons of one fan-in as one batch; by default on accelerators only

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
        for batch in batches(params, group["foreach"], key=lambda param: (param.ndim >= 2, fan_in(param))):
            self._update_batch_(batch, group)

    def _update_batch_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """One step of tensors whose neurons have one fan-in, or of tensors without neurons."""
        states = [self.state[param] for param in params]
        avg_sqs = [state["avg_sq"].reshape(-1) for state in states]
        views = [stored_view(param) for param in params]
        grads = [stored_view(gradient(param), like=param) for param in params]
        turned, avg_sq = nero_update(
            concatenate([_rows(view) for view in views]),
            concatenate([_rows(grad) for grad in grads]),
            concatenate(avg_sqs),
            concatenate([state["step"].expand_as(avg_sq) for state, avg_sq in zip(states, avg_sqs, strict=True)]),
            concatenate([state["scale"].expand_as(avg_sq) for state, avg_sq in zip(states, avg_sqs, strict=True)]),
            scalar(group["lr"]),
            group["beta"],
        )
        split_(avg_sqs, avg_sq)
        if params[0].ndim >= 2:
            turned = project(turned, mean=group["mean"], norm=group["norm"], dtype=params[0].dtype)
        split_(views, turned)


def _rows(tensor: Tensor) -> Tensor:
    """As [neurons, fan_in], where every entry of a bias is a neuron."""
    return tensor.flatten(1) if tensor.ndim >= 2 else tensor.reshape(-1, 1)
