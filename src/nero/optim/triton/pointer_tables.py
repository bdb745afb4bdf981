"""Shared by all fused kernels: which tensors they support, and tables of pointers, by which one launch finds many."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nero.optim.param_groups import check_gradient, stored_view

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def unavailable(device: torch.device) -> str | None:
    """Why kernels cannot run on a device; None where they can."""
    try:
        from triton import JITFunction

        from nero.optim.triton.nero_kernels import nero_kernel
    except ImportError:
        return "Triton is not installed"
    # Triton's interpreter (TRITON_INTERPRET=1) runs them on any device, slowly: for tests.
    if not isinstance(nero_kernel, JITFunction):
        return None
    if device.type != "cuda":
        return f"a {device.type} has no Triton kernels; it needs a CUDA GPU"
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (7, 0):
        return "it needs an NVIDIA GPU of compute capability 7.0 or more"
    return None


def is_dense(param: Tensor) -> bool:
    """Whether kernels support this tensor: its entries are contiguous in memory, in a supported dtype."""
    if param.dtype not in DTYPES or unavailable(param.device):
        return False
    if getattr(param, "grad_dtype", param.dtype) != param.dtype:  # torch from 2.10 on lets gradients differ
        return False
    return stored_view(param).is_contiguous()


def use_kernels(group: dict[str, Any]) -> bool:
    """Whether to use the fused path: `fused` of the group, by default on a GPU."""
    if torch.compiler.is_compiling():
        return False  # the compiler fuses by itself, and has no pointers
    if group["fused"] is not None or group["foreach"] is not None:
        return bool(group["fused"])
    return any(param.is_cuda for param in group["params"])


def is_capturing(device: torch.device) -> bool:
    """Whether launches on a device are being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which kernels are launched on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def rate_for_kernel(lr: float | Tensor, device: torch.device) -> float | Tensor:
    """The learning rate as a kernel argument: a tensor on its device, else a float."""
    return lr if isinstance(lr, Tensor) and lr.device == device else float(lr)


def tile_table(counts: Iterable[int], device: torch.device) -> Tensor:
    """int32 [programs, 2]: index of a tensor and of a tile in it, given each tensor's number of tiles."""
    tiles = torch.tensor([*counts])
    tensor = torch.repeat_interleave(tiles)
    tile = torch.arange(len(tensor)) - (tiles.cumsum(0) - tiles)[tensor]
    return torch.stack([tensor, tile], 1).to(device, torch.int32)


def address_table(addresses: list[int], device: torch.device) -> Tensor:
    """Addresses on a device, int64. A table made during a capture belongs to the graph."""
    if not is_capturing(device):
        return torch.tensor(addresses).to(device)
    # A graph cannot copy from host memory: kernels fill the table at every replay.
    table = torch.zeros(len(addresses), dtype=torch.int64, device=device)
    torch._foreach_add_(list(table.unbind()), addresses)
    return table


@dataclass(slots=True)
class Gradients:
    """Gradients, or None, with their addresses and, where they matter, their strides."""

    tensors: list[Any]
    addresses: list[int]
    strides: list[tuple[int, ...]]


def look_up(grads: list[Any], optimizer: str, all_contiguous: bool) -> Gradients:
    """The current addresses of gradients (None for none); RuntimeError for an unsupported gradient.

    `all_contiguous`: whether all parameters are contiguous, so that strides of contiguous gradients do not matter.
    """
    try:
        # Hundreds of tensors at every step: a Python loop would take longer than the kernel.
        addresses = list(map(Tensor.data_ptr, grads))
        usual = all_contiguous and all(map(Tensor.is_contiguous, grads))
        strides = [] if usual else list(map(Tensor.stride, grads))
    except (TypeError, RuntimeError):  # some are None or sparse
        for grad in grads:
            if grad is not None:
                check_gradient(grad, optimizer)
        addresses = [0 if grad is None else grad.data_ptr() for grad in grads]
        strides = [() if grad is None else grad.stride() for grad in grads]
    return Gradients(grads, addresses, strides)


class GradientTable:
    """The addresses of the gradients of a list of tensors, on a device, 0 for none.

    captured: whether a step with this table has been captured in a CUDA graph
    """

    def __init__(self, tensors: int, device: torch.device) -> None:
        self.device, self.captured = device, False
        self._table = torch.zeros(tensors, dtype=torch.int64, device=device)
        self._known: tuple[list[int], list[tuple[int, ...]]] | None = None

    def fill(self, params: list[Tensor], found: Gradients) -> tuple[Tensor, list[Tensor]]:
        """The table, and copies of the gradients whose layout differs from their parameter's.

        The caller keeps the copies until the kernel is queued; their memory is not reused before it ran.
        """
        capturing = is_capturing(self.device)
        self.captured |= capturing
        if (found.addresses, found.strides) == self._known and not capturing:
            return self._table, []
        addresses, copies = list(found.addresses), []
        for i, (param, grad) in enumerate(zip(params, found.tensors, strict=True)):
            if grad is not None and not _same_layout(grad, param):
                copies.append(torch.empty_like(param).copy_(grad))
                addresses[i] = copies[-1].data_ptr()
        if capturing:
            return address_table(addresses, self.device), copies
        # An asynchronous copy from memory that is not pinned returns once its source has been read.
        self._table.copy_(torch.tensor(addresses), non_blocking=True)
        self._known = None if copies else (found.addresses, found.strides)
        return self._table, copies


def _same_layout(grad: Tensor, param: Tensor) -> bool:
    """Whether a gradient has the dtype and memory layout of its parameter, and is as well aligned."""
    if grad.dtype != param.dtype or (param.data_ptr() % 16 == 0 and grad.data_ptr() % 16 != 0):
        return False
    return grad.stride() == param.stride() or stored_view(grad, like=param).is_contiguous()
