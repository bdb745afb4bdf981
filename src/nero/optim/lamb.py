"""LAMB: Adam's direction with one relative step size for each tensor, as the paper ran it."""

from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype
from nero.optim.base import CapturableOptimizer, ParamsT, check_beta, check_lr, gradient, scalar
from nero.optim.batches import batches, use_batches


def lamb_update(
    weight: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, lr: float | Tensor, eps: float, clamp_value: float
) -> Tensor:
    """The new weight, from averages that have already taken in the gradient."""
    adam_step = exp_avg / (exp_avg_sq.sqrt() + eps)
    ratio = trust_ratio(weight.square().sum().sqrt(), adam_step.square().sum().sqrt(), clamp_value)
    return weight - lr * ratio * adam_step


def trust_ratio(weight_norm: Tensor, step_norm: Tensor, clamp_value: float) -> Tensor:
    """Length of the step relative to the length of Adam's: min(weight_norm, clamp_value) / step_norm, or one."""
    ratio = weight_norm.clamp(max=clamp_value) / step_norm
    return torch.where((weight_norm == 0) | (step_norm == 0), 1.0, ratio)


class LAMB(CapturableOptimizer):
    r"""Per-layer relative steps along Adam's direction (You et al. 2020), without bias correction or weight decay.

    For each tensor with weights w and gradient g:

        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        a = m / (√v + ε)
        w ← w - η r a        r = min(‖w‖, clamp_value) / ‖a‖, or 1 where ‖w‖ or ‖a‖ is 0

    lr:          η, a number or a tensor with one element
    betas:       β₁ and β₂. With β₁ = 0, as in Table 1, m is the gradient and is not kept
    eps:         ε
    clamp_value: the norm beyond which a tensor's weights no longer lengthen its steps
    foreach:     whether to update all tensors together; by default on accelerators only

    State of each parameter, float32 or wider: `exp_avg_sq` (v), and `exp_avg` (m) unless β₁ = 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        clamp_value: float = 10.0,
        foreach: bool | None = None,
    ) -> None:
        # A list in YAML is a tuple here, so that a checkpoint holds plain values whatever the betas came as.
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "clamp_value": clamp_value, "foreach": foreach}
        super().__init__(params, defaults)

    def check_settings(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"])
        for i, beta in enumerate(group["betas"]):
            check_beta(f"betas[{i}]", beta)
        # Above zero, so that an entry that has never seen a gradient is not 0/0.
        if not group["eps"] > 0:
            raise ValueError(f"eps must be positive, not {group['eps']}")
        if not group["clamp_value"] > 0:
            raise ValueError(f"clamp_value must be positive, not {group['clamp_value']}")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] if group["betas"][0] > 0 else ["exp_avg_sq"]
        return {name: torch.zeros_like(param, dtype=compute_dtype(param.dtype)) for name in names}

    def update_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for batch in batches(params, group["foreach"]):
            together = use_batches(group["foreach"], batch[0].device)
            (self._update_together_ if together else self._update_one_by_one_)(batch, group)

    def _update_one_by_one_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        for param in params:
            state, dtype = self.state[param], compute_dtype(param.dtype)
            grad = gradient(param).to(dtype)
            exp_avg = state["exp_avg"].lerp_(grad, 1 - beta1) if beta1 > 0 else grad
            exp_avg_sq = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            rate = scalar(group["lr"])
            param.copy_(lamb_update(param.to(dtype), exp_avg, exp_avg_sq, rate, group["eps"], group["clamp_value"]))

    def _update_together_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """`lamb_update` for tensors of one dtype and device, one launch for all of them where torch has one."""
        beta1, beta2 = group["betas"]
        dtype = compute_dtype(params[0].dtype)
        grads = [gradient(param).to(dtype) for param in params]
        weights = [param.to(dtype) for param in params]

        exp_avgs = grads
        if beta1 > 0:
            exp_avgs = [self.state[param]["exp_avg"] for param in params]
            torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        exp_avg_sqs = [self.state[param]["exp_avg_sq"] for param in params]
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)

        divisors = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(divisors, group["eps"])
        steps = torch._foreach_div(exp_avgs, divisors)
        weight_norms, step_norms = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(steps))
        rates = scalar(group["lr"]) * trust_ratio(weight_norms, step_norms, group["clamp_value"])
        # The one line with a launch for each tensor: torch multiplies lists by numbers on the host or by tensors alike.
        torch._foreach_mul_(steps, list(rates.unbind()))
        torch._foreach_sub_(weights, steps)
        if params[0].dtype != dtype:  # else the weights are the parameters themselves
            torch._foreach_copy_(params, weights)
