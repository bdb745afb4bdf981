"""Parameters split over processes (FSDP2, tensor parallelism): each process steps the neurons that it holds.

Section 4 of the paper: Nero's step needs nothing beyond a neuron, so a layer can be split between neurons at no cost.
Only what is fixed when a parameter is added, its scale, takes a message between the processes.
"""

from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (Tensor, nn.Parameter)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor: asked without importing torch.distributed, which single processes do not need."""
    return type(tensor) not in PLAIN and hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, sharing its memory; the whole of it where nothing is sharded."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        own: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return own


def local_gradient(param: Tensor, grad: Tensor) -> Tensor:
    """The gradient of what this process holds of a parameter; RuntimeError for one that does not say whose it is."""
    if not is_sharded(param):
        return grad
    if not is_sharded(grad):
        raise RuntimeError(
            f"the gradient of a sharded parameter of shape {tuple(param.shape)} must be a DTensor too: a plain tensor "
            "does not say of which part it is"
        )
    if _placements(grad) != _placements(param):
        # fully_shard never leaves such a gradient. Sequence parallelism does for parameters that all processes have: as
        # summands, whose sum takes a message.
        with torch.no_grad():
            grad = grad.redistribute(placements=_placements(param))  # type: ignore[attr-defined]
    return local(grad)


def check_whole_neurons(param: Tensor) -> None:
    """Raise ValueError where a neuron's weights lie on more than one process, or in a flat buffer."""
    check_not_partial(param)
    for placement in _placements(param):
        if _splits(placement) and placement.dim != 0:
            raise ValueError(
                f"the placement {placement} of a parameter of shape {tuple(param.shape)} cuts neurons in two: a neuron "
                "is a slice along dim 0; shard along dim 0 only, as fully_shard does by default"
            )


def check_not_partial(param: Tensor) -> None:
    """Raise ValueError where the processes hold something else than parts or copies of a parameter."""
    # The marks of FullyShardedDataParallel, without and with use_orig_params.
    if getattr(param, "_is_flat_param", False) or getattr(param, "_fsdp_flattened", False):
        raise ValueError(
            "FullyShardedDataParallel flattens parameters, and cuts them anywhere; use fully_shard (FSDP2), which "
            "splits each one along dim 0"
        )
    for placement in _placements(param):
        if not (placement.is_replicate() or _splits(placement)):
            raise ValueError(
                f"the placement {placement} of a parameter of shape {tuple(param.shape)} leaves each process a summand "
                "of it; redistribute it to Replicate() or Shard(0)"
            )


def check_unsharded(param: Tensor, why: str) -> None:
    """Raise ValueError, with the reason, for a parameter of which no process holds the whole."""
    check_not_partial(param)
    if any(_splits(placement) for placement in _placements(param)):
        raise ValueError(f"{why} (shape {tuple(param.shape)}, placements {_placements(param)})")


def check_sharded_alike(state: dict[str, Tensor], saved: dict[str, Any]) -> None:
    """Raise ValueError where only one of two states of a parameter is sharded."""
    for key, value in state.items():
        if is_sharded(value) != is_sharded(saved[key]):
            one, other = ("whole", "sharded") if is_sharded(value) else ("sharded", "whole")
            raise ValueError(
                f"the saved {key} of shape {tuple(value.shape)} is {one}, that of the parameter is {other}; get and "
                "set it by torch.distributed.checkpoint.state_dict, with full_state_dict=True"
            )


def like_rows(param: Tensor, values: Tensor) -> Tensor:
    """Numbers for each neuron (or entry) that this process holds, sharded as the parameter is.

    A checkpoint of them can be read by any number of processes.
    """
    if not is_sharded(param):
        return values
    from torch.distributed.tensor import DTensor

    shape = param.shape[:1] if param.ndim >= 2 else param.shape
    rows = DTensor.from_local(
        values,
        param.device_mesh,  # type: ignore[attr-defined]
        _placements(param),
        run_check=False,
        shape=shape,
        stride=(1,) * len(shape),
    )
    # Back to where the parameter lies, if offloaded: from_local moves what it is given to the device of the mesh.
    return rows.to(values.device)


def mean_over_all(param: Tensor, values: Tensor) -> Tensor:
    """The mean of what every process has for its part of the parameter; zero of nothing.

    In float64, so that however the numbers are split, the mean rounded to float32 is the same.
    """
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    total = torch.stack([values.to(dtype).sum(), torch.tensor(values.numel(), dtype=dtype, device=values.device)])
    for mesh_dim, placement in enumerate(_placements(param)):
        if _splits(placement):
            mesh = param.device_mesh  # type: ignore[attr-defined]
            # A parameter may be offloaded from the devices between which its processes talk.
            total = total.to(mesh.device_type)
            torch.distributed.all_reduce(total, group=mesh.get_group(mesh_dim))
    return (total[0] / total[1].clamp(min=1)).to(values.device, values.dtype)


def _placements(param: Tensor) -> tuple[Any, ...]:
    """For each dim of the mesh, how its processes share a tensor; nothing for one that is not sharded."""
    return tuple(param.placements) if is_sharded(param) else ()  # type: ignore[attr-defined]


def _splits(placement: Any) -> bool:
    """Whether processes hold different parts: Shard, or what two of them along one dim (FSDP2 over TP) come to."""
    return hasattr(placement, "dim")  # is_shard() says no to the latter, _StridedShard
