"""Nero, the neuronal rotator (Algorithm 1). `nero.optim.reference` is the same algorithm in plain code."""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from nero.optim.balance import compute_dtype, fan_in, neuron_norm, project, project_, split_, squared_norm
from nero.optim.base import CapturableOptimizer, Slot, bias_correction, gather, running_average
from nero.optim.sharding import like_rows, local, mean_over_all
from nero.optim.triton.nero_launch import NeroTensors


def nero_update(
    weight: Tensor, grad: Tensor, avg_sq: Tensor, step: Tensor, scale: Tensor, lr: float | Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 up to the projection: the turned weights and the running averages of squared gradient norms.

    Args:
        weight, grad: [neurons, fan_in]; a bias is a neuron of fan-in one.
        avg_sq: [neurons], in the dtype to compute in.
        step: number of this step, from 1; broadcasts to avg_sq.
        scale: s in the docstring of `Nero`; broadcasts to avg_sq.
    """
    weight, grad = weight.to(avg_sq.dtype), grad.to(avg_sq.dtype)
    avg_sq = running_average(avg_sq, squared_norm(grad), beta)
    grad_norm = (avg_sq / bias_correction(step.to(avg_sq.dtype), beta)).sqrt()
    # Zero where no gradient was ever seen, instead of 0/0; a NaN is kept, so that a diverged run shows.
    rate = torch.where(grad_norm == 0, 0.0, lr * scale / grad_norm)
    return torch.addcmul(weight, rate.unsqueeze(-1), grad, value=-1), avg_sq


class Nero(CapturableOptimizer):
    r"""Per-neuron relative steps, projected back to balanced neurons (Section 4, Algorithm 1).

    For each neuron with weights w and gradient g, at its t-th step:

        ḡ² ← β ḡ² + (1 - β) ‖g‖²                  running average
        w  ← w - η s √(1 - βᵗ) / ḡ · g            turn by an angle of about η
        w  ← w - mean(w)                          if `mean`
        w  ← w / ‖w‖                              if `norm`

    A neuron is a slice along dim 0 of a tensor with two or more dims. Entries of tensors with fewer dims (biases,
    gains) take the first two lines one by one, with g² for ‖g‖². An entry that has never seen a gradient does not move.

    Weights are projected once when they are added. The scale s of a tensor is fixed then: the mean norm of its neurons
    for weights (one once projected), the mean absolute value for the others, and `sigma_b` where that is zero.
    A constant neuron, such as every one of fan-in one, keeps its mean; a neuron of zeros stays at zero until it moves.

    Args:
        params: parameters, (name, parameter) pairs or param groups. All that follows is a key of the groups.
        lr: η, a number or a tensor with one element. The default is meant to work out of the box.
        beta: β, decay of the running average.
        mean: subtract the mean; False for ablations.
        norm: divide by the norm; False for ablations.
        sigma_b: scale of a tensor that starts at zero.
        gain_penalty: λ of a penalty λ/2 Σ (γ - 1)² on gains: tensors with fewer than two dims whose entries are all one
            when they are added, such as those of batch norm (the tuned setting for ImageNet).
        maximize: maximise the objective.
        foreach: update neurons of one fan-in as one batch.
        fused: update all tensors by one Triton kernel, in float32, bfloat16 or float16; other tensors (float64, neurons
            that are not dense) are updated by foreach. By default fused where there is a CUDA GPU and Triton, else
            foreach on accelerators, else tensor by tensor.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.

    State of each parameter: `step` and `scale` (0-dim), `avg_sq` (a number per neuron or entry, float32 or wider), and
    with a gain penalty `gain` (0-dim: 1 for gains, else 0) for tensors with fewer than two dims.

    A sharded parameter (DTensor) is stepped where it lies, without communication: no shard may cut a neuron in two.

    Examples:
        >>> optimizer = Nero(model.parameters(), lr=0.01)
        >>> loss_fn(model(inputs), targets).backward()
        >>> optimizer.step()
    """

    whole = "neurons"
    ranges: ClassVar = {
        "beta": "in [0, 1)",
        "sigma_b": "positive and finite",
        "gain_penalty": "finite and not negative",
    }
    kernels = NeroTensors

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        beta: float = 0.999,
        mean: bool = True,
        norm: bool = True,
        sigma_b: float = 0.01,
        *,
        gain_penalty: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = True,
    ) -> None:
        super().__init__(
            params, lr=lr, beta=beta, mean=mean, norm=norm, sigma_b=sigma_b, gain_penalty=gain_penalty,
            maximize=maximize, foreach=foreach, fused=fused, capturable=capturable,
        )  # fmt: skip

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        own = local(param).detach()
        project_(own, mean=group["mean"], norm=group["norm"])
        sizes = neuron_norm(own) if param.ndim >= 2 else own.abs().to(compute_dtype(param.dtype))
        scale = mean_over_all(param, sizes)
        averages = torch.zeros_like(sizes, memory_format=torch.contiguous_format)
        state = {"avg_sq": like_rows(param, averages), "scale": torch.where(scale == 0, group["sigma_b"], scale)}
        if param.ndim < 2 and group["gain_penalty"] > 0:
            state["gain"] = (mean_over_all(param, (own == 1).float()) == 1).float()
        return state

    def prepare(self, number: int, group: dict[str, Any]) -> tuple[list[Callable[[], None]], list[Slot]]:
        if group["gain_penalty"] > 0 and any(p.ndim < 2 and "gain" not in self.state[p] for p in group["params"]):
            raise RuntimeError("gain_penalty is given when a group is added: what is a gain is decided then")
        return super().prepare(number, group)

    def batch_key(self, param: Tensor) -> Hashable:
        return param.ndim >= 2, fan_in(param)

    def update_batch_(self, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        has_neurons, penalty = slots[0].param.ndim >= 2, group["gain_penalty"]
        if penalty > 0 and not has_neurons:
            pulls = [penalty * slot.state["gain"] * (slot.param.to(torch.float32) - 1) for slot in slots]
            slots = [slot._replace(grad=slot.grad + pull) for slot, pull in zip(slots, pulls, strict=True)]
        views, averages, operands = gather(slots, _rows, "scale")
        turned, avg_sq = nero_update(*operands, lr, group["beta"])
        if has_neurons:
            turned = project(turned, mean=group["mean"], norm=group["norm"], dtype=slots[0].param.dtype)
        split_(views, turned)
        split_(averages, avg_sq)


def _rows(tensor: Tensor) -> Tensor:
    """As [neurons, fan_in]; every entry of a bias is a neuron."""
    return tensor.flatten(1) if tensor.ndim >= 2 else tensor.reshape(-1, 1)
