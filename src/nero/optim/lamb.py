"""LAMB: Adam's direction with one relative step size for each tensor, as the paper ran it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype
from nero.optim.base import (
    CapturableOptimizer,
    ParamsT,
    Slot,
    bias_correction,
    check_beta,
    check_lr,
    check_positive,
    scalar,
)
from nero.optim.param_groups import batches, use_batches
from nero.optim.sharding import check_unsharded
from nero.optim.triton.lamb_launch import FusedTensors
from nero.optim.triton.pointer_tables import unavailable, use_kernels


def lamb_update(
    weight: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, lr: float | Tensor, eps: float, clamp_value: float
) -> Tensor:
    """The new weight, from averages that have already taken in the gradient (and are corrected, if they should be)."""
    adam_step = exp_avg / (exp_avg_sq.sqrt() + eps)
    ratio = trust_ratio(weight.square().sum().sqrt(), adam_step.square().sum().sqrt(), clamp_value)
    return weight - lr * ratio * adam_step


def trust_ratio(weight_norm: Tensor, step_norm: Tensor, clamp_value: float) -> Tensor:
    """Length of the step relative to the length of Adam's: min(weight_norm, clamp_value) / step_norm, or one."""
    ratio = weight_norm.clamp(max=clamp_value) / step_norm
    return torch.where((weight_norm == 0) | (step_norm == 0), 1.0, ratio)


class LAMB(CapturableOptimizer):
    r"""Per-layer relative steps along Adam's direction (You et al. 2020), without weight decay.

    For each tensor with weights w and gradient g, at its t-th step:

        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        a = m / (√v + ε)     with m / (1 - β₁ᵗ) and v / (1 - β₂ᵗ) for m and v if `debias`
        w ← w - η r a        r = min(‖w‖, clamp_value) / ‖a‖, or 1 where ‖w‖ or ‖a‖ is 0

    Every argument but `params` is a key of the param groups:

    lr:          η, a number or a tensor with one element
    betas:       β₁ and β₂. With β₁ = 0, as in Table 1, m is the gradient and is not kept
    eps:         ε
    clamp_value: the norm beyond which a tensor's weights no longer lengthen its steps
    debias:      whether to correct m and v for having started at zero; the paper ran without
    maximize:    climb instead of descend
    foreach:     whether to update all tensors together; by default on accelerators only
    fused:       whether to update all tensors by three Triton kernels, in float32, bfloat16 or float16; what they do
                 not take (float64, tensors with gaps) goes the foreach way. By default fused where there is a CUDA GPU
                 and Triton
    capturable:  False forbids the capture of a step in a CUDA graph; it changes nothing else

    State of each parameter: `step` (0-dim); float32 or wider `exp_avg_sq` (v), and `exp_avg` (m) unless β₁ = 0.

    A sharded parameter is refused: the two norms are those of a whole tensor.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        clamp_value: float = 10.0,
        debias: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = True,
    ) -> None:
        self._fused_tensors = FusedTensors()
        defaults = {
            "lr": lr,
            # A list in YAML is a tuple here, so that a checkpoint holds plain values whatever the betas came as.
            "betas": tuple(betas),
            "eps": eps,
            "clamp_value": clamp_value,
            "debias": debias,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    @property
    def is_fused(self) -> bool:
        """Whether kernels take the steps, outside of torch's compiler."""
        return all(use_kernels(group) for group in self.param_groups)

    def check_settings(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"])
        if len(group["betas"]) != 2:
            raise ValueError(f"betas must be two numbers, not {group['betas']}")
        for i, beta in enumerate(group["betas"]):
            check_beta(f"betas[{i}]", beta)
        # eps above zero, so that an entry that has never seen a gradient is not 0/0.
        check_positive(group, "eps", "clamp_value")
        if group["foreach"] and group["fused"]:
            raise ValueError("foreach and fused cannot both be true")

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        super().check_parameter(param, group)
        check_unsharded(param, "LAMB's steps are relative to the norm of a whole tensor; a sharded one is refused")
        if group["fused"] and (reason := unavailable(param.device)):
            raise ValueError(f"fused=True: {reason}")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] if group["betas"][0] > 0 else ["exp_avg_sq"]
        return {name: torch.zeros_like(param, dtype=compute_dtype(param.dtype)) for name in names}

    def prepare(self, number: int, group: dict[str, Any]) -> Callable[[], None]:
        if group["betas"][0] > 0 and any("exp_avg" not in self.state[param] for param in group["params"]):
            raise RuntimeError("betas[0] was 0 when a group was added, and so no average of its gradients is kept")
        return super().prepare(number, group)

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        if use_kernels(group):
            slots = self._fused_tensors.update_(slots, group)
        for batch in batches(slots, group["foreach"], tensor=attrgetter("param")):
            together = use_batches(group["foreach"], batch[0].param.device)
            (self._update_together_ if together else self._update_one_by_one_)(batch, group)

    def _update_one_by_one_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        for slot in slots:
            state, dtype = slot.state, compute_dtype(slot.param.dtype)
            grad = slot.grad.to(dtype)
            if group["maximize"]:
                grad = -grad
            exp_avg = state["exp_avg"].lerp_(grad, 1 - beta1) if beta1 > 0 else grad
            exp_avg_sq = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if group["debias"]:
                step = state["step"].to(dtype)
                exp_avg, exp_avg_sq = (
                    exp_avg / bias_correction(step, beta1),
                    exp_avg_sq / bias_correction(step, beta2),
                )
            rate, weight = scalar(group["lr"]), slot.param.to(dtype)
            slot.param.copy_(lamb_update(weight, exp_avg, exp_avg_sq, rate, group["eps"], group["clamp_value"]))

    def _update_together_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """`lamb_update` for tensors of one dtype and device, one launch for all of them where torch has one."""
        beta1, beta2 = group["betas"]
        params, states = [slot.param for slot in slots], [slot.state for slot in slots]
        dtype = compute_dtype(params[0].dtype)
        grads = [slot.grad.to(dtype) for slot in slots]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        weights = [param.to(dtype) for param in params]

        exp_avgs = grads
        if beta1 > 0:
            exp_avgs = [state["exp_avg"] for state in states]
            torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        exp_avg_sqs = [state["exp_avg_sq"] for state in states]
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)
        if group["debias"]:
            steps = torch.stack([state["step"] for state in states]).to(dtype)
            exp_avgs = list(torch._foreach_div(exp_avgs, list(bias_correction(steps, beta1).unbind())))
            exp_avg_sqs = list(torch._foreach_div(exp_avg_sqs, list(bias_correction(steps, beta2).unbind())))

        divisors = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(divisors, group["eps"])
        adam_steps = torch._foreach_div(exp_avgs, divisors)
        weight_norms = torch.stack(torch._foreach_norm(weights))
        step_norms = torch.stack(torch._foreach_norm(adam_steps))
        rates = scalar(group["lr"]) * trust_ratio(weight_norms, step_norms, group["clamp_value"])
        # A launch for each tensor: torch multiplies lists by numbers on the host or by tensors alike.
        torch._foreach_mul_(adam_steps, list(rates.unbind()))
        torch._foreach_sub_(weights, adam_steps)
        if params[0].dtype != dtype:  # else the weights are the parameters themselves
            torch._foreach_copy_(params, weights)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Addresses are not copied or pickled with the rest; they stay when a checkpoint is loaded, which moves nothing.
        self.__dict__.setdefault("_fused_tensors", FusedTensors())
