"""LAMB: Adam's direction with one relative step size for each tensor, as the paper ran it."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nero.optim.balance import compute_dtype, use_batches
from nero.optim.base import CapturableOptimizer, Slot, bias_correction
from nero.optim.settings import check_number
from nero.optim.sharding import sum_over
from nero.optim.triton.lamb_launch import LAMBTensors, check_momentum


class LAMB(CapturableOptimizer):
    r"""Per-layer relative steps along Adam's direction (You et al. 2020), without weight decay.

    For each tensor with weights w and gradient g, at its t-th step:

        m ← β₁ m + (1 - β₁) g
        v ← β₂ v + (1 - β₂) g²
        a = m / (√v + ε)     with m / (1 - β₁ᵗ) and v / (1 - β₂ᵗ) for m and v if `debias`
        w ← w - η r a        r = min(‖w‖, clamp_value) / ‖a‖, or 1 where ‖w‖ or ‖a‖ is 0

    Args:
        params: parameters, (name, parameter) pairs or param groups. All that follows is a key of the groups.
        lr: η, a number or a tensor with one element.
        betas: β₁ and β₂. With β₁ = 0, as in Table 1, m is the gradient and is not stored.
        eps: ε.
        clamp_value: norm of the weights beyond which steps grow no longer.
        debias: correct m and v for having started at zero; the paper ran without.
        maximize: maximise the objective.
        foreach: update all tensors together; by default on accelerators only.
        fused: update all tensors by one Triton kernel, in float32, bfloat16 or float16; other tensors (float64,
            tensors with gaps) are updated by foreach. By default fused where there is a GPU and Triton.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.

    State of each parameter: `step` (0-dim); float32 or wider `exp_avg_sq` (v), and `exp_avg` (m) unless β₁ = 0.

    The norms of sharded parameters (DTensor) are those of whole tensors, for all of which a step sends one message. All
    processes must have gradients for the same parameters.

    Examples:
        >>> optimizer = LAMB(model.parameters(), lr=0.01, betas=(0.0, 0.999))
        >>> loss_fn(model(inputs), targets).backward()
        >>> optimizer.step()
    """

    whole = "tensors"
    ranges: ClassVar = {"eps": "positive", "clamp_value": "positive"}  # with eps above zero, 0/0 cannot occur
    flags = ("debias",)
    kernels = LAMBTensors

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
        # YAML gives a list for the betas; a checkpoint holds a tuple of plain numbers in any case.
        super().__init__(
            params, lr=lr, betas=tuple(betas), eps=eps, clamp_value=clamp_value, debias=debias,
            maximize=maximize, foreach=foreach, fused=fused, capturable=capturable,
        )  # fmt: skip

    def check_settings(self, group: dict[str, Any]) -> None:
        super().check_settings(group)
        if len(group["betas"]) != 2:
            raise ValueError(f"betas must be two numbers, not {group['betas']}")
        for i, beta in enumerate(group["betas"]):
            check_number(f"betas[{i}]", beta, "in [0, 1)")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] if group["betas"][0] > 0 else ["exp_avg_sq"]
        return {name: torch.zeros_like(param, dtype=compute_dtype(param.dtype)) for name in names}

    def prepare(self, number: int, group: dict[str, Any]) -> tuple[list[Callable[[], None]], list[Slot]]:
        launches, slots = super().prepare(number, group)
        check_momentum(group, (slot.state for slot in slots))
        return launches, slots

    def update_(self, number: int, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        together: dict[Any, list[Slot]] = {}
        for slot in slots:
            key = slot.split and (slot.split, slot.param.dtype, slot.param.device)
            together.setdefault(key, []).append(slot)
        super().update_(number, together.pop(None, []), group, lr)
        for some in together.values():
            self.update_batch_(some, group, lr)

    def update_batch_(self, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        """Step tensors of one dtype, device and split, with one launch for all of them where torch has one."""
        beta1, beta2 = group["betas"]
        params, grads, states, splits = map(list, zip(*slots, strict=True))
        dtype = compute_dtype(params[0].dtype)
        weights = [param.to(dtype) for param in params]
        grads = [grad.to(dtype) for grad in grads]
        exp_avgs, exp_avg_sqs = grads, [state["exp_avg_sq"] for state in states]
        if beta1 > 0:
            exp_avgs = [state["exp_avg"] for state in states]
            torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1 - beta2)
        if group["debias"]:
            steps = torch.stack([state["step"] for state in states]).to(dtype)
            exp_avgs = list(torch._foreach_div(exp_avgs, list(bias_correction(steps, beta1).unbind())))
            exp_avg_sqs = list(torch._foreach_div(exp_avg_sqs, list(bias_correction(steps, beta2).unbind())))

        divisors = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(divisors, group["eps"])
        adam_steps = torch._foreach_div(exp_avgs, divisors)
        if splits[0] is not None:
            squares = torch.stack([*torch._foreach_norm(weights), *torch._foreach_norm(adam_steps)]).double().square()
            weight_norms, step_norms = sum_over(splits[0], squares).sqrt().to(dtype).chunk(2)
        elif use_batches(group["foreach"], params[0].device):
            weight_norms, step_norms = (torch.stack(torch._foreach_norm(some)) for some in (weights, adam_steps))
        else:  # one tensor: a plain sum rounds less on a CPU
            weight_norms, step_norms = (some[0].square().sum().sqrt() for some in (weights, adam_steps))
        ratios = weight_norms.clamp(max=group["clamp_value"]) / step_norms
        ratios = torch.where((weight_norms == 0) | (step_norms == 0), 1.0, ratios)
        rates = lr * ratios
        # A launch for each tensor: torch multiplies lists by numbers on the host or by lists of tensors.
        torch._foreach_mul_(adam_steps, list(rates.unbind()) if rates.ndim else [rates])
        torch._foreach_sub_(weights, adam_steps)
        if params[0].dtype != dtype:  # else the weights are the parameters themselves
            torch._foreach_copy_(params, weights)
