"""Nero, the neuronal rotator (Algorithm 1). `nero.optim.reference` is the same algorithm in plain code."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.optimizer import ParamsT

from nero.optim.balance import (
    compute_dtype,
    concatenate,
    has_neurons,
    neuron_norm,
    neurons_first,
    project,
    project_turned_,
    project_unrounded,
    round_stochastically,
    row_moments,
    row_norm,
    slack,
)
from nero.optim.base import CapturableOptimizer, Slot, bias_correction
from nero.optim.gradients import is_frozen
from nero.optim.rows import RowLists, Rows
from nero.optim.settings import check_flag
from nero.optim.sharding import check_shards, like_rows, local, means_over_all
from nero.optim.triton.nero_launch import NeroTensors
from nero.optim.triton.pointer_tables import is_capturing


def nero_update(
    grad_norm: Tensor, avg_sq: Tensor, step: Tensor, scale: Tensor, lr: float | Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 up to the projection: the multiple of its gradient that a neuron subtracts, and the running average.

    Args:
        grad_norm: norm of the gradient of each neuron; for a bias, its gradient.
        avg_sq: running average of the squares, in the dtype to compute in.
        step: number of this step, from 1; broadcasts to avg_sq.
        scale: s in the docstring of `Nero`; broadcasts to avg_sq.
    """
    # Not torch.lerp: see `running_average`.
    avg_sq = torch.addcmul(beta * avg_sq, grad_norm, grad_norm, value=1 - beta)
    typical = (avg_sq / bias_correction(step.to(avg_sq.dtype), beta)).sqrt()
    # Zero where no gradient was ever seen, instead of 0/0; a NaN is kept, so that a diverged run shows.
    return lr * scale / functional.threshold(typical, 0, math.inf), avg_sq


class Nero(CapturableOptimizer):
    r"""Per-neuron relative steps, projected back to balanced neurons (Section 4, Algorithm 1).

    For each neuron with weights w and gradient g, at its t-th step:

        ḡ² ← β ḡ² + (1 - β) ‖g‖²                  running average
        w  ← w - η s √(1 - βᵗ) / ḡ · g            turn by an angle of about η
        w  ← w - mean(w)                          if `mean`
        w  ← w / ‖w‖                              if `norm`

    A neuron is a slice along `neuron_dim` of a tensor with two or more dims. Entries of other tensors (biases, gains,
    also those of shape [channels, 1, 1]) take the first two lines one by one, with g² for ‖g‖². An entry that has never
    seen a gradient does not move.

    Weights are projected once when they are added. The scale s of a tensor is fixed then: the mean norm of its neurons
    for weights (one once projected), the mean absolute value for the others, and `sigma_b` where that is zero.
    A constant neuron keeps its mean. A neuron of zeros grows by about η s per step, to at most norm one. A parameter
    that does not require a gradient is not touched; if it does later, it is projected before its first step.

    `nero.optim.param_groups` makes the groups of a network from the types of its modules.

    Args:
        params: parameters, (name, parameter) pairs or param groups. All that follows is a key of the groups.
        lr: η, a number or a tensor with one element. The default is meant to work out of the box.
        beta: β, decay of the running average.
        mean: subtract the mean; by default unless `norm` is "initial".
        norm: divide by the norm. "initial" keeps each neuron's norm when it was added in place of one, so that adding
            a pretrained network does not change it.
        sigma_b: scale of a tensor that starts at zero.
        neuron_dim: dim along which the neurons of tensors with two or more dims lie; None if these have no neurons.
        gain_penalty: λ of a penalty λ/2 Σ (γ - 1)² on gains: tensors without neurons whose entries are all one when
            they are added, such as those of batch norm (the tuned setting for ImageNet).
        weight_decay: λ of w ← w - ηλw before each step, only for tensors without neurons or with `norm=False`.
        stochastic_rounding: round bfloat16 parameters up or down at random, so that small steps are not lost.
        maximize: maximise the objective.
        foreach: step neurons of one fan-in as one matrix; by default on accelerators, and small tensors on a CPU.
        fused: update all tensors by one Triton kernel, in float32, bfloat16 or float16; other tensors (float64, neurons
            that are not dense) are updated by foreach. By default fused where there is a GPU and Triton.
        capturable: False forbids capturing a step in a CUDA graph; it changes nothing else.
        differentiable: not supported; True raises ValueError.

    State of each parameter: `step` and `scale` (0-dim); `avg_sq` (a number per neuron or entry, float32 or wider); for
    tensors with neurons that start at zero or that keep their initial norm, `norm` (a number per neuron: its norm, or
    where negative its largest norm); with a gain penalty and without neurons, `gain` (0-dim: 1 for gains, else 0).

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
        "weight_decay": "finite and not negative",
    }
    flags = ("mean", "stochastic_rounding", "differentiable")
    optional_state = ("norm",)
    kernels = NeroTensors

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        beta: float = 0.999,
        mean: bool | None = None,
        norm: bool | Literal["initial"] = True,
        sigma_b: float = 0.01,
        *,
        neuron_dim: int | None = 0,
        gain_penalty: float = 0.0,
        weight_decay: float = 0.0,
        stochastic_rounding: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = True,
        differentiable: bool = False,
    ) -> None:
        mean = bool(norm != "initial") if mean is None else mean
        self._rows: dict[int, RowLists] = {}  # by the number of the group; neither copied nor pickled
        super().__init__(
            params, lr=lr, beta=beta, mean=mean, norm=norm, sigma_b=sigma_b, neuron_dim=neuron_dim,
            gain_penalty=gain_penalty, weight_decay=weight_decay, stochastic_rounding=stochastic_rounding,
            maximize=maximize, foreach=foreach, fused=fused, capturable=capturable, differentiable=differentiable,
        )  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if param_group.get("norm") == "initial":
            param_group.setdefault("mean", False)
        if "mean" in param_group and param_group["mean"] is None:
            param_group["mean"] = bool(param_group.get("norm", self.defaults["norm"]) != "initial")
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._rows = {}
        super().__setstate__(state)

    def check_settings(self, group: dict[str, Any]) -> None:
        super().check_settings(group)
        if group["norm"] != "initial":
            check_flag("norm", group["norm"], 'True, False or "initial"')
        dim = group["neuron_dim"]
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim < 0):
            raise ValueError(f"neuron_dim must be None or an integer from 0, not {dim!r}")
        if group["differentiable"]:
            raise ValueError("differentiable=True is not supported: steps change parameters in place, without autograd")

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        dim = group["neuron_dim"]
        if dim is not None and 2 <= param.ndim <= dim:
            raise ValueError(f"neuron_dim {dim} is not a dim of this parameter: give its group another, or None")
        super().check_parameter(param, group)
        if group["weight_decay"] > 0 and group["norm"] and has_neurons(param, dim):
            raise ValueError(
                "weight_decay has no meaning for neurons that keep their norm: put them into a group with "
                "weight_decay=0, or with norm=False"
            )

    def check_sharding(self, param: Tensor, group: dict[str, Any]) -> None:
        dim = group["neuron_dim"]
        check_shards(param, "neurons" if has_neurons(param, dim) else "entries", dim)

    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        own, state = local(param).detach(), {}
        dim = group["neuron_dim"] if has_neurons(param, group["neuron_dim"]) else None
        if dim is not None:
            # A neuron of zeros has no norm to keep; one that starts at zero may grow to norm one.
            norms, initial = neuron_norm(own, dim), group["norm"] == "initial"
            kept, bound = (norms, -math.inf) if initial else (torch.ones_like(norms), -1.0)
            lengths = torch.where(norms == 0, bound, kept)
            _project_(own, dim, group, lengths if initial else None)
        sizes = own.abs().to(compute_dtype(param.dtype)) if dim is None else neuron_norm(own, dim)
        scale, zeros = means_over_all(param, sizes, sizes == 0).unbind()
        if dim is not None and group["norm"] and not param.is_meta and (initial or bool(zeros > 0)):
            state["norm"] = like_rows(param, lengths, dim)
        state |= {
            "avg_sq": like_rows(param, torch.zeros_like(sizes), dim),
            "scale": torch.where(scale == 0, group["sigma_b"], scale),
        }
        if dim is None and group["gain_penalty"] > 0:
            state["gain"] = (means_over_all(param, (own == 1).float())[0] == 1).float()
        return state

    @torch.no_grad()
    def project_(self, copies: Iterable[tuple[Tensor, Tensor]] | None = None) -> None:
        """Project the parameters, or copies of them, as their groups say.

        Call it after changing the weights in another way than by steps. An average of weights (EMA, SWA) is not
        balanced either: `optimizer.project_(zip(model.parameters(), averaged.parameters()))` projects it.

        Args:
            copies: pairs of a parameter of this optimiser and a tensor like it, which is projected in its place.
        """
        groups = {param: group for group in self.param_groups for param in group["params"]}
        for param, tensor in [(param, param) for param in self.state] if copies is None else copies:
            if param not in groups:
                raise ValueError(f"a tensor of shape {tuple(param.shape)} is not a parameter of this optimiser")
            dim = groups[param]["neuron_dim"]
            if has_neurons(param, dim) and (state := self.state.get(param)) is not None:
                lengths = local(state["norm"]) if "norm" in state else None
                _project_(local(tensor).detach(), dim, groups[param], lengths)

    def prepare(self, number: int, group: dict[str, Any]) -> tuple[list[Callable[[], None]], list[Slot]]:
        if group["gain_penalty"] > 0:
            params = (param for param in group["params"] if param in self.state)
            if any("gain" not in self.state[p] for p in params if not has_neurons(p, group["neuron_dim"])):
                raise RuntimeError("gain_penalty is given when a group is added: what is a gain is decided then")
        launches, slots = super().prepare(number, group)
        if group["weight_decay"] > 0:
            launches.insert(0, partial(self._decay_, group))
        return launches, slots

    def _decay_(self, group: dict[str, Any]) -> None:
        keep = 1 - group["lr"] * group["weight_decay"]
        for param in group["params"]:
            if param.grad is not None and not is_frozen(param):
                local(param).mul_(keep)

    def update_(self, number: int, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        params, grads, states, _ = map(list, zip(*slots, strict=True))
        settings = group["neuron_dim"], group["foreach"]
        arranged = self._rows.get(number)
        if torch.compiler.is_compiling() or any(map(is_capturing, {param.device for param in params})):
            arranged = RowLists(params, states, *settings)  # what is made here belongs to the graph
        elif arranged is None or not arranged.holds(states, *settings):
            arranged = self._rows[number] = RowLists(params, states, *settings)
        for rows in arranged.lists:
            step_rows_(rows, params, grads, group, lr)


def step_rows_(
    rows: Rows, params: list[Tensor], grads: list[Tensor], group: dict[str, Any], lr: float | Tensor
) -> None:
    """Step tensors that have been arranged as rows."""
    views = [batch.views(params) for batch in rows.batches]
    weights = [batch.join(own).to(rows.dtype) for batch, own in zip(rows.batches, views, strict=True)]
    slopes = [batch.join(batch.views(grads)).to(rows.dtype) for batch in rows.batches]
    if group["gain_penalty"] > 0 and rows.gains:
        slopes[-1] = slopes[-1] + group["gain_penalty"] * concatenate(rows.gains) * (weights[-1] - 1)

    norms = concatenate([row_norm(slope) if slope.ndim == 2 else slope for slope in slopes])
    step, scale = concatenate(rows.steps), concatenate(rows.scales)
    rate, avg_sq = nero_update(norms, rows.avg_sq(), step, scale, lr, group["beta"])
    rows.store_averages_(avg_sq)

    mean, norm, tolerance = bool(group["mean"]), bool(group["norm"]), slack(rows.stored)
    moments = []
    for weight, slope, own in zip(weights, slopes, rate.split(rows.heights), strict=True):
        weight.addcmul_(own if weight.ndim == 1 else own.unsqueeze(-1), slope, value=-1)
        if norm and weight.ndim == 2:
            moments.append(row_moments(weight, mean))  # at once, while the weights are in the cache
    if moments:
        lengths = concatenate(rows.lengths) if rows.lengths else None
        project_turned_(weights[: len(moments)], moments, rows.root_fan_in, tolerance, lengths)
    elif mean and not norm:
        weights = [w if w.ndim == 1 else project_unrounded(w, True, False, tolerance) for w in weights]

    if group["stochastic_rounding"] and rows.stored == torch.bfloat16:
        weights = [round_stochastically(weight) for weight in weights]
    rows.store_(views, weights)


def _project_(own: Tensor, neuron_dim: int, group: dict[str, Any], lengths: Tensor | None) -> None:
    """Project a local tensor with neurons, as its group says."""
    weight = neurons_first(own, neuron_dim)
    rows = project(weight.flatten(1), mean=group["mean"], norm=bool(group["norm"]), lengths=lengths)
    weight.copy_(rows.view(weight.shape))
