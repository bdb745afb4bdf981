"""Treat many tensors as one: a step on an accelerator is then a few launches instead of a few for every tensor."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def use_batches(foreach: bool | None, device: torch.device) -> bool:
    """Whether to update tensors on this device together; by default not on a CPU, where it only costs copies."""
    return device.type != "cpu" if foreach is None else foreach


def batches(
    items: Iterable[Item],
    foreach: bool | None,
    key: Callable[[Item], Hashable] = lambda item: None,
    tensor: Callable[[Item], Tensor] = lambda item: item,  # type: ignore[assignment, return-value]
) -> list[list[Item]]:
    """Group tensors, or items that hold a `tensor`, by dtype, device and `key`; each alone without `foreach`."""
    lists: dict[Hashable, list[Item]] = {}
    for number, item in enumerate(items):
        dtype, device = tensor(item).dtype, tensor(item).device
        name = (dtype, device, key(item)) if use_batches(foreach, device) else number
        lists.setdefault(name, []).append(item)
    return list(lists.values())


def fan_in(tensor: Tensor) -> int:
    """Number of entries of each neuron."""
    return tensor.shape[1:].numel()


def stored_view(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """A view whose dims after the first have the memory order of `like`, by default of the tensor itself.

    The entries of a neuron may be listed in any order. In this one, flattening copies nothing, not even channels_last.
    """
    if tensor.ndim < 3:
        return tensor
    strides = (tensor if like is None else like).stride()
    return tensor.permute(0, *sorted(range(1, tensor.ndim), key=strides.__getitem__, reverse=True))


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """torch.cat along dim 0; a single tensor is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def split_(targets: Sequence[Tensor], batch: Tensor) -> None:
    """Copy the entries of a batch back into the tensors that were concatenated."""
    parts = batch.reshape(-1).split([target.numel() for target in targets])
    parts = [part.view(old.shape) for part, old in zip(parts, targets, strict=True)]
    if torch.compiler.is_compiling():
        # For torch._foreach_copy_, torch's compiler generates code that reads a target again after writing it where
        # something else was computed from it too (2.11, on a GPU).
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)
    else:
        torch._foreach_copy_(list(targets), parts)


def check_gradient(grad: Tensor, optimizer: str) -> None:
    """Raise RuntimeError for a sparse or complex gradient."""
    if grad.layout != torch.strided or grad.is_complex():
        raise RuntimeError(f"{optimizer} does not support {'complex' if grad.is_complex() else 'sparse'} gradients")
