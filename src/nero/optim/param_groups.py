"""Many tensors as one, so that a step on an accelerator is a few launches instead of a few for every tensor."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def use_batches(foreach: bool | None, device: torch.device) -> bool:
    """Whether tensors on this device go together: as told, else everywhere but on a CPU, where it only costs copies."""
    return device.type != "cpu" if foreach is None else foreach


def batches(
    items: Iterable[Item],
    foreach: bool | None,
    key: Callable[[Item], Hashable] = lambda item: None,
    tensor: Callable[[Item], Tensor] = lambda item: item,  # type: ignore[assignment, return-value]
) -> list[list[Item]]:
    """The tensors, or what holds a `tensor`, in lists to treat together: of one dtype, one device and one `key`."""
    lists: dict[Hashable, list[Item]] = {}
    for number, item in enumerate(items):
        dtype, device = tensor(item).dtype, tensor(item).device
        name = (dtype, device, key(item)) if use_batches(foreach, device) else number
        lists.setdefault(name, []).append(item)
    return list(lists.values())


def fan_in(tensor: Tensor) -> int:
    """How many entries each neuron has: neurons of one fan-in can stand in one matrix, wherever they come from."""
    return tensor.shape[1:].numel()


def stored_view(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """A view whose dims after the first stand in the order in which `like`, by default the tensor itself, is stored.

    The entries of a neuron may be listed in any order. In this one, flattening needs no copy, in channels_last either.
    """
    if tensor.ndim < 3:
        return tensor
    strides = (tensor if like is None else like).stride()
    return tensor.permute(0, *sorted(range(1, tensor.ndim), key=strides.__getitem__, reverse=True))


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors along their first dim; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def split_(targets: Sequence[Tensor], batch: Tensor) -> None:
    """Write the entries of a batch, in their order, into the tensors that they came from."""
    parts = batch.reshape(-1).split([target.numel() for target in targets])
    parts = [part.view(old.shape) for part, old in zip(parts, targets, strict=True)]
    if torch.compiler.is_compiling():
        # Of torch._foreach_copy_, its compiler makes code that reads a target again after writing it, where something
        # else was computed from it too (2.11, on a GPU).
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)
    else:
        torch._foreach_copy_(list(targets), parts)
