"""Shared by all fused kernels: which tensors they support, and tables of pointers, by which one launch finds many."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from nero.optim.balance import stored_view
from nero.optim.gradients import check_gradient, is_frozen
from nero.optim.sharding import is_sharded, local, local_gradient

_REQUIRES_GRAD = operator.attrgetter("requires_grad")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def unavailable(device: torch.device) -> str | None:
    """Why kernels cannot run on a device; None where they can."""
    if device.type == "meta":
        return "a meta tensor has no data"
    try:
        from triton import JITFunction

        from nero.optim.triton.nero_kernels import nero_kernel
    except ImportError:
        return "Triton is not installed"
    # Triton's interpreter (TRITON_INTERPRET=1) runs them on any device, slowly: for tests.
    if not isinstance(nero_kernel, JITFunction):
        return None
    if device.type != "cuda":  # which AMD's GPUs are called as well
        return f"a GPU of NVIDIA or AMD, not {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (7, 0):
        return "an NVIDIA GPU of compute capability 7.0 or more"
    return None


def use_kernels(group: dict[str, Any]) -> bool:
    """Whether to use the fused path: `fused` of the group, by default on a GPU."""
    if "fused" not in group or torch.compiler.is_compiling():
        return False  # there are no kernels; or the compiler fuses by itself, and has no pointers
    if group["fused"] is not None or group["foreach"] is not None:
        return bool(group["fused"])
    return any(param.is_cuda for param in group["params"])


def is_capturing(device: torch.device) -> bool:
    """Whether launches on a device are being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def tile_table(counts: Iterable[int], device: torch.device) -> Tensor:
    """int32 [programs, 2]: index of a tensor and of a tile in it, given each tensor's number of tiles."""
    return run_table([(tensor, 0, count) for tensor, count in enumerate(counts)], device)


def run_table(runs: list[tuple[int, int, int]], device: torch.device) -> Tensor:
    """int32 [programs, 2] from runs (a, b, n), each of which gives n rows: (a, b), (a, b + 1), ..."""
    name, first, count = torch.tensor(runs).unbind(1)
    run = torch.repeat_interleave(count)
    number = torch.arange(len(run)) - (count.cumsum(0) - count - first)[run]
    return torch.stack([name[run], number], 1).to(device, torch.int32)


def address_table(addresses: list[int], device: torch.device) -> Tensor:
    """Addresses on a device, int64. A table made during a capture belongs to the graph."""
    if not is_capturing(device):
        return torch.tensor(addresses).to(device)
    # A graph cannot copy from host memory: kernels fill the table at every replay.
    table = torch.zeros(len(addresses), dtype=torch.int64, device=device)
    torch._foreach_add_(list(table.unbind()), addresses)
    return table


class TensorList(ABC):
    """Tensors of one dtype on one device, and the tables by which the kernels of an optimiser find them.

    The tables hold addresses; `holds` tells whether they are up to date. Gradients move more often and are looked up at
    every step. `captured`: whether a step with these tables has been captured in a CUDA graph.
    """

    optimizer: ClassVar[str]

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        self.device, self.dtype = params[0].device, params[0].dtype
        if is_capturing(self.device):
            raise RuntimeError(
                f"{self.optimizer}'s first step makes tables for its kernels: take one before the capture"
            )
        self.params, self.states = params, states
        self.sharded = any(map(is_sharded, params))
        self.known_state = self._state()
        self.addresses = list(map(Tensor.data_ptr, self.local_params()))
        self.all_contiguous = all(map(Tensor.is_contiguous, self.local_params()))
        self.captured = False
        self._grads = torch.zeros(len(params), dtype=torch.int64, device=self.device)
        self._known_grads: tuple[list[int], list[tuple[int, ...]]] | None = None
        self._in_graph = False  # whether a captured step reads this table
        self._kept: list[Tensor] = []  # older such tables

    @staticmethod
    def fits(param: Tensor, state: Mapping[str, Tensor], group: dict[str, Any]) -> bool:
        """Whether kernels support this tensor: its entries are contiguous in memory, in a supported dtype."""
        if param.dtype not in DTYPES or param.numel() == 0 or unavailable(param.device):
            return False
        if getattr(param, "grad_dtype", param.dtype) != param.dtype:  # torch from 2.10 on lets gradients differ
            return False
        return stored_view(param).is_contiguous()

    @abstractmethod
    def launch(self, grads: Tensor, lr: float | Tensor, group: dict[str, Any]) -> None:
        """Step the tensors whose entry in the table of gradients is not 0. `lr` is a number or on the device."""

    def check(self, group: dict[str, Any]) -> None:  # noqa: B027
        """Raise RuntimeError where the settings of the group need other state than there is."""

    def local_params(self) -> list[Tensor]:
        return [local(param) for param in self.params] if self.sharded else self.params

    def _state(self) -> list[Tensor]:
        """The state of the first and the last parameter: all state moves together or not at all."""
        return [*self.states[0].values(), *self.states[-1].values()]

    def holds(self) -> bool:
        """Whether parameters and state are still where the tables say."""
        return _are(self._state(), self.known_state) and self.addresses == [*map(Tensor.data_ptr, self.local_params())]

    def update_(self, grads: Tensor, kept: list[Tensor | None], group: dict[str, Any]) -> None:
        """Step the tensors that have a gradient. `kept`: what must not be freed before the kernel is queued."""
        lr = group["lr"]
        with self.on_device():
            self.launch(grads, lr if isinstance(lr, Tensor) and lr.device == self.device else float(lr), group)

    def on_device(self) -> AbstractContextManager[Any]:
        if self.device.type != "cuda" or torch.cuda.current_device() == self.device.index:
            return nullcontext()
        return torch.cuda.device(self.device)

    def gradients(self) -> tuple[Tensor, list[Tensor | None]]:
        """The addresses of the gradients on the device, 0 for none, and what they point to.

        That may be copies, where the layout of a gradient differs from its parameter's. RuntimeError for an unsupported
        gradient.
        """
        grads: list[Any] = [param.grad for param in self.params]
        if not all(map(_REQUIRES_GRAD, self.params)):
            grads = [None if is_frozen(param) else grad for param, grad in zip(self.params, grads, strict=True)]
        if self.sharded:
            pairs = zip(self.params, grads, strict=True)
            grads = [None if grad is None else local_gradient(param, grad) for param, grad in pairs]
        try:
            # Hundreds of tensors at every step: a Python loop would take longer than the kernel.
            addresses = list(map(Tensor.data_ptr, grads))
            # Where all are contiguous, strides do not matter.
            usual = self.all_contiguous and all(map(Tensor.is_contiguous, grads))
            strides = [] if usual else list(map(Tensor.stride, grads))
        except (TypeError, RuntimeError):  # some are None or sparse
            for grad in grads:
                if grad is not None:
                    check_gradient(grad, self.optimizer)
            addresses = [0 if grad is None else grad.data_ptr() for grad in grads]
            strides = [() if grad is None else grad.stride() for grad in grads]
        with self.on_device():
            capturing = is_capturing(self.device)
            self.captured |= capturing
            if (addresses, strides) == self._known_grads:
                self._in_graph |= capturing
                return self._grads, grads
            known, copies = (list(addresses), strides), []
            for i, (param, grad) in enumerate(zip(self.local_params(), grads, strict=True)):
                if grad is not None and not _same_layout(grad, param):
                    copies.append(torch.empty_like(param).copy_(grad))
                    addresses[i] = copies[-1].data_ptr()
            if capturing:
                return address_table(addresses, self.device), [*grads, *copies]
            if self._in_graph:  # which will read the table as it is
                self._kept.append(self._grads)
                self._grads, self._in_graph = torch.zeros_like(self._grads), False
            # An asynchronous copy from memory that is not pinned returns once its source has been read.
            self._grads.copy_(torch.tensor(addresses), non_blocking=True)
            self._known_grads = None if copies else known
            return self._grads, [*grads, *copies]


class FusedGroup:
    """The tables for one param group; `rest` are the parameters that the kernels do not support.

    `replaces`: an earlier one, whose tables stay alive where a CUDA graph reads them.
    """

    def __init__(
        self,
        kernels: type[TensorList],
        params: list[Tensor],
        state: Mapping[Tensor, dict[str, Tensor]],
        group: dict[str, Any],
        replaces: "FusedGroup | None" = None,
    ) -> None:
        self.params = list(params)
        self.rest: list[Tensor] = []
        lists: dict[Any, list[Tensor]] = {}
        for param in params:
            fits = kernels.fits(local(param), state[param], group)
            place = lists.setdefault((param.dtype, param.device), []) if fits else self.rest
            place.append(param)
        self.lists = [kernels(some, [state[param] for param in some]) for some in lists.values()]
        self.captured: list[TensorList] = []
        if replaces is not None:
            self.captured = replaces.captured + [old for old in replaces.lists if old.captured]

    def holds(self, params: list[Tensor]) -> bool:
        """Whether these are the group's parameters, and neither they nor their state have moved in memory."""
        return _are(params, self.params) and all(tensors.holds() for tensors in self.lists)

    def prepare(self, group: dict[str, Any]) -> list[Callable[[], None]]:
        """Check the gradients; return functions that make the step."""
        for tensors in self.lists:
            tensors.check(group)
        return [partial(tensors.update_, *tensors.gradients(), group) for tensors in self.lists]


def _are(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _same_layout(grad: Tensor, param: Tensor) -> bool:
    """Whether a gradient has the dtype and memory layout of its parameter, and is as well aligned."""
    if grad.dtype != param.dtype or (param.data_ptr() % 16 == 0 and grad.data_ptr() % 16 != 0):
        return False
    return grad.stride() == param.stride() or stored_view(grad, like=param).is_contiguous()
