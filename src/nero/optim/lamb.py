"""LAMB: Adam's direction with one relative step size for each tensor, as the paper ran it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nero.optim.balance import compute_dtype
from nero.optim.base import CapturableOptimizer, Slot, bias_correction, check_beta, check_positive, scalar
from nero.optim.param_groups import batches, use_batches
from nero.optim.sharding import check_unsharded
from nero.optim.triton import lamb_launch
from nero.optim.triton.pointer_tables import use_kernels


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

    Args:
        params: parameters, (name, parameter) pairs or param groups. All that follows is a key of the groups.
        lr: η, a number or a tensor with one element.
        betas: β₁ and β₂. With β₁ = 0, as in Table 1, m is the gradient and is not stored.
        eps: ε.
        clamp_value: norm of the weights beyond which steps grow no longer.
        debias: correct m and v for having started at zero; the paper ran without.
        maximize: maximise the objective.
        foreach: update all tensors together; by default on accelerators only.
        fused: update all tensors by three Triton kernels, in float32, bfloat16 or float16; other tensors (float64,
            tensors with gaps) are updated by foreach. By default fused where there is a CUDA GPU and Triton.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.

    State of each parameter: `step` (0-dim); float32 or wider `exp_avg_sq` (v), and `exp_avg` (m) unless β₁ = 0.

    A sharded parameter is rejected: the two norms are those of a whole tensor.

    Example:
        >>> optimizer = LAMB(model.parameters(), lr=0.01, betas=(0.0, 0.999))
        >>> loss_fn(model(inputs), targets).backward()
        >>> optimizer.step()
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
        # YAML gives a list for the betas; a checkpoint holds a tuple of plain numbers in any case.
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "clamp_value": clamp_value, "debias": debias}
        super().__init__(
            params, {**defaults, "maximize": maximize, "foreach": foreach, "fused": fused, "capturable": capturable}
        )

    def check_settings(self, group: dict[str, Any]) -> None:
        super().check_settings(group)
        if len(group["betas"]) != 2:
            raise ValueError(f"betas must be two numbers, not {group['betas']}")
        for i, beta in enumerate(group["betas"]):
            check_beta(f"betas[{i}]", beta)
        # With eps above zero, an entry that has never seen a gradient is not 0/0.
        check_positive(group, "eps", "clamp_value")

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        super().check_parameter(param, group)
        check_unsharded(param, "LAMB's steps are relative to the norm of a whole tensor; a sharded one is refused")

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] if group["betas"][0] > 0 else ["exp_avg_sq"]
        return {name: torch.zeros_like(param, dtype=compute_dtype(param.dtype)) for name in names}

    def prepare(self, number: int, group: dict[str, Any]) -> Callable[[], None]:
        if group["betas"][0] > 0 and any("exp_avg" not in self.state[param] for param in group["params"]):
            raise RuntimeError("betas[0] was 0 when a group was added, and so no average of its gradients is kept")
        return super().prepare(number, group)

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        if use_kernels(group):
            slots = lamb_launch.update_(slots, group, self._fused)
        for batch in batches(slots, group["foreach"], tensor=attrgetter("param")):
            self._update_batch_(batch, group)

    def _update_batch_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """Step tensors of one dtype and device, with one launch for all of them where torch has one."""
        beta1, beta2 = group["betas"]
        params, states = [slot.param for slot in slots], [slot.state for slot in slots]
        dtype = compute_dtype(params[0].dtype)
        weights = [param.to(dtype) for param in params]
        grads = [slot.grad.to(dtype) for slot in slots]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))

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
        lr, clamp_value = scalar(group["lr"]), group["clamp_value"]
        if use_batches(group["foreach"], params[0].device):
            weight_norms, step_norms = map(torch.stack, (torch._foreach_norm(weights), torch._foreach_norm(adam_steps)))
            rates = list((lr * trust_ratio(weight_norms, step_norms, clamp_value)).unbind())
        else:  # one tensor: a plain sum rounds less on a CPU
            weight_norm, step_norm = (tensors[0].square().sum().sqrt() for tensors in (weights, adam_steps))
            rates = [lr * trust_ratio(weight_norm, step_norm, clamp_value)]
        # A launch for each tensor: torch multiplies lists by numbers on the host or by lists of tensors.
        torch._foreach_mul_(adam_steps, rates)
        torch._foreach_sub_(weights, adam_steps)
        if params[0].dtype != dtype:  # else the weights are the parameters themselves
            torch._foreach_copy_(params, weights)
