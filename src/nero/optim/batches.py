"""Many tensors as one, so that a step on an accelerator is a few launches instead of a few for every tensor.

`stack` and `unstack_` serve tensors of one shape, `concatenate` and `split_` the entries of tensors of any shape. A
single tensor is never copied.
"""

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor


def use_batches(foreach: bool | None, device: torch.device) -> bool:
    """Whether tensors on this device go together: as told, else everywhere but on a CPU, where it only costs copies."""
    return device.type != "cpu" if foreach is None else foreach


def batches(tensors: Iterable[Tensor], foreach: bool | None, one_shape: bool) -> list[list[Tensor]]:
    """The tensors in lists to treat together: of one dtype and device, and of one `one_shape` [neurons, fan_in]."""
    lists: dict[Hashable, list[Tensor]] = {}
    for tensor in tensors:
        shape = (tensor.shape[0], tensor.numel()) if one_shape else ()
        together = use_batches(foreach, tensor.device)
        key = (shape, tensor.dtype, tensor.device) if together else id(tensor)
        lists.setdefault(key, []).append(tensor)
    return list(lists.values())


def stored_view(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """A view whose dims after the first stand in the order in which `like`, by default the tensor itself, is stored.

    The entries of a neuron may be listed in any order. In this one, flattening needs no copy, in channels_last either.
    """
    strides = (tensor if like is None else like).stride()
    if tensor.ndim < 3:
        return tensor
    return tensor.permute(0, *sorted(range(1, tensor.ndim), key=strides.__getitem__, reverse=True))


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors along a new first dim."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def unstack_(targets: Sequence[Tensor], batch: Tensor) -> None:
    """Write the slices of a batch into the tensors that they came from."""
    _copy_(targets, batch.unbind(0))


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """The entries of all the tensors in one dim."""
    return tensors[0].reshape(-1) if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


def split_(targets: Sequence[Tensor], batch: Tensor) -> None:
    """Write the entries of a batch into the tensors that they came from."""
    _copy_(targets, batch.split([target.numel() for target in targets]))


def _copy_(targets: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    torch._foreach_copy_(list(targets), [part.reshape(old.shape) for part, old in zip(parts, targets, strict=True)])
