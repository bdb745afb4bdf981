"""Madam: multiplicative steps, relative for each single weight, as the paper ran it."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nero.optim.balance import compute_dtype, concatenate, split_, stored_view
from nero.optim.base import CapturableOptimizer, Slot, bias_correction, running_average
from nero.optim.sharding import local, means_over_all
from nero.optim.triton.madam_launch import MadamTensors


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
        fused: update all tensors by one Triton kernel, in float32, bfloat16 or float16; other tensors (float64,
            tensors with gaps) are updated by foreach. By default fused where there is a GPU and Triton.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.

    State of each parameter: `step` (0-dim), `avg_sq` (float32 or wider), `bound` (0-dim: p_scale · σ).

    A sharded parameter (DTensor) is stepped where it lies, without communication.

    Examples:
        >>> optimizer = Madam(model.parameters(), lr=0.01)
        >>> loss_fn(model(inputs), targets).backward()
        >>> optimizer.step()
    """

    whole = "entries"
    ranges: ClassVar = {"beta": "in [0, 1)", "g_bound": "positive", "p_scale": "positive"}
    kernels = MadamTensors

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
        fused: bool | None = None,
        capturable: bool = True,
    ) -> None:
        super().__init__(
            params, lr=lr, beta=beta, g_bound=g_bound, p_scale=p_scale,
            maximize=maximize, foreach=foreach, fused=fused, capturable=capturable,
        )  # fmt: skip

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        dtype = compute_dtype(param.dtype)
        [mean_square] = means_over_all(param, local(param).detach().to(dtype).square())
        return {"avg_sq": torch.zeros_like(param, dtype=dtype), "bound": group["p_scale"] * mean_square.sqrt()}

    def update_batch_(self, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        views = [stored_view(slot.param) for slot in slots]
        averages = [stored_view(slot.state["avg_sq"], like=slot.param) for slot in slots]
        grads = [stored_view(slot.grad, like=slot.param) for slot in slots]
        weight, grad, avg_sq = (concatenate([view.flatten() for view in some]) for some in (views, grads, averages))
        step, bound = (
            concatenate([slot.state[key].expand(slot.param.numel()) for slot in slots]) for key in ("step", "bound")
        )
        weight, grad = weight.to(avg_sq.dtype), grad.to(avg_sq.dtype)
        avg_sq = running_average(avg_sq, grad.square(), group["beta"])
        relative = grad / (avg_sq / bias_correction(step.to(avg_sq.dtype), group["beta"])).sqrt()
        moved = weight * torch.exp(-lr * weight.sign() * relative.clamp(-group["g_bound"], group["g_bound"]))
        # Where no gradient was ever seen, `relative` is 0/0. Any other NaN is kept, so that a diverged run shows.
        split_(views, torch.where(avg_sq == 0, weight, torch.clamp(moved, -bound, bound)))
        split_(averages, avg_sq)
