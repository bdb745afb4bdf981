"""Parameters that are sharded over processes (FSDP2, tensor parallelism): each process steps the neurons that it holds.

Nero's step needs nothing beyond a neuron (Section 4), so a layer can be split between neurons at no cost. The processes
communicate only when a parameter is added, to look for weights that are not finite and to compute its scale.
"""

import sys
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from nero.optim.gradients import is_frozen


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, without importing torch.distributed, which single processes do not need."""
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, sharing its memory; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        own: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return own


def local_gradient(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the local part of a parameter; RuntimeError for a plain gradient of a sharded parameter."""
    if not is_sharded(param):
        return grad
    if not is_sharded(grad):
        raise RuntimeError(
            f"the gradient of a sharded parameter of shape {tuple(param.shape)} must be a DTensor too: a plain tensor "
            "does not say which part it belongs to"
        )
    if _placements(grad) != _placements(param):
        # fully_shard never leaves such a gradient. Sequence parallelism leaves replicated parameters partial sums.
        with torch.no_grad():
            grad = grad.redistribute(placements=_placements(param))  # type: ignore[attr-defined]
    return local(grad)


def check_shards(param: Tensor, whole: Literal["entries", "neurons", "tensors"], neuron_dim: int | None = 0) -> None:
    """Raise ValueError where processes hold partial sums of a parameter, or parts of what the optimiser needs whole."""
    # Attributes that FullyShardedDataParallel sets, without and with use_orig_params.
    if getattr(param, "_is_flat_param", False) or getattr(param, "_fsdp_flattened", False):
        raise ValueError(
            "FullyShardedDataParallel flattens parameters, and cuts them anywhere; use fully_shard (FSDP2), which "
            "splits each one along dim 0"
        )
    for placement in _placements(param):
        if not (placement.is_replicate() or _splits(placement)):
            problem = "leaves each process a partial sum; redistribute it to Replicate() or Shard(0)"
        elif _splits(placement) and whole == "neurons" and neuron_dim is not None and placement.dim != neuron_dim:
            problem = (
                f"cuts neurons in two: a neuron is a slice along dim {neuron_dim}; shard along dim {neuron_dim} only "
                "(fully_shard has dim 0 by default, and shard_placement_fn for others)"
            )
        else:
            continue
        raise ValueError(f"the placement {placement!r} of a parameter of shape {tuple(param.shape)} {problem}")


def check_sharded_alike(state: dict[str, Tensor], saved: dict[str, Any]) -> None:
    """Raise ValueError where only one of two states of a parameter is sharded."""
    for key, value in state.items():
        if is_sharded(value) != is_sharded(saved[key]):
            one, other = ("whole", "sharded") if is_sharded(value) else ("sharded", "whole")
            raise ValueError(
                f"the saved {key} of shape {tuple(value.shape)} is {one}, that of the parameter is {other}; get and "
                "set it by torch.distributed.checkpoint.state_dict, with full_state_dict=True"
            )


def like_rows(param: Tensor, values: Tensor, neuron_dim: int | None = None) -> Tensor:
    """One number per local neuron (or entry, without a dim), sharded like the parameter.

    Any number of processes can load it.
    """
    if not is_sharded(param):
        return values
    from torch.distributed.tensor import DTensor

    mesh, placements, shape = param.device_mesh, _placements(param), param.shape  # type: ignore[attr-defined]
    if neuron_dim is not None:
        shape = shape[neuron_dim : neuron_dim + 1]
        if neuron_dim > 0:
            placements = tuple(_along_dim_0(placement) for placement in placements)
    strides = torch.empty(shape, device="meta").stride()
    rows = DTensor.from_local(values, mesh, placements, run_check=False, shape=shape, stride=strides)
    # from_local moves its argument to the device of the mesh; an offloaded parameter lies elsewhere.
    return rows.to(values.device)


class Split(NamedTuple):
    """The processes over which the parts of a tensor are spread: its groups of processes, and their device."""

    device_type: str
    groups: tuple[Any, ...]


def split_of(param: Tensor) -> Split | None:
    """How a parameter is split; None if every process that has it has all of it."""
    splits = [mesh_dim for mesh_dim, placement in enumerate(_placements(param)) if _splits(placement)]
    if not splits:
        return None
    mesh = param.device_mesh  # type: ignore[attr-defined]
    return Split(mesh.device_type, tuple(mesh.get_group(mesh_dim) for mesh_dim in splits))


def sum_over(split: Split | None, values: Tensor) -> Tensor:
    """The sum of the values of all processes that hold a part of a tensor."""
    if split is None:
        return values
    total = values.to(split.device_type, copy=True)  # an offloaded parameter lies elsewhere
    for group in split.groups:
        torch.distributed.all_reduce(total, group=group)
    return total.to(values.device)


def check_finite(params: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ValueError for the first parameter, by its name, with weights that are NaN or infinite.

    One step would spread these over the tensor. All processes that hold a part of it raise. One read on the host, and
    for sharded parameters one message.
    """
    by_split: dict[Split | None, list[tuple[str, Tensor]]] = {}
    for name, param in params:
        if not (is_frozen(param) or param.is_meta):
            by_split.setdefault(split_of(param), []).append((name, local(param).detach()))
    for split, checked in by_split.items():
        device = checked[0][1].device
        counts = torch.stack([(~weights.isfinite()).sum().to(device) for _, weights in checked])
        for (name, _), count in zip(checked, sum_over(split, counts).tolist(), strict=True):
            if count:
                raise ValueError(f"weights must be finite, and {count:,} of {name} are not")


def means_over_all(param: Tensor, *values: Tensor) -> Tensor:
    """The means of values with one number for each neuron or entry, over all processes; zero if there are none.

    Computed in float64, so that a mean rounded to float32 does not depend on how the numbers are split. One message.
    """
    first = values[0]
    dtype = torch.float32 if first.device.type == "mps" else torch.float64
    count = torch.tensor(first.numel(), dtype=dtype, device=first.device)
    total = sum_over(split_of(param), torch.stack([*(some.to(dtype).sum() for some in values), count]))
    return (total[:-1] / total[-1].clamp(min=1)).to(first.dtype)


def _placements(param: Tensor) -> tuple[Any, ...]:
    """The placement along each dim of the mesh; empty for a plain tensor."""
    return tuple(param.placements) if is_sharded(param) else ()  # type: ignore[attr-defined]


def _along_dim_0(placement: Any) -> Any:
    """A placement of a parameter's neurons, for a tensor that has a number for each of them."""
    if not _splits(placement):
        return placement
    if not placement.is_shard():
        raise ValueError(f"{placement!r} splits neurons that lie along dim {placement.dim}: this is not supported")
    from torch.distributed.tensor import Shard

    return Shard(0)


def _splits(placement: Any) -> bool:
    """Whether processes hold different parts: Shard, or _StridedShard (FSDP2 over TP), where is_shard() is False."""
    return hasattr(placement, "dim")


def zero_redundancy_groups() -> list[list[Tensor]] | None:
    """The parameters of each group, of all processes, while a ZeroRedundancyOptimizer constructs the caller; else None.

    It gives each process's optimiser that process's parameters only, and says nothing of the others, which must be
    projected as well before the first forward pass. So this looks for it among the callers.
    """
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe(1) if module is not None else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if module is not None and isinstance(owner, module.ZeroRedundancyOptimizer):
            return [list(group["params"]) for group in owner.param_groups]
        frame = frame.f_back
    return None
