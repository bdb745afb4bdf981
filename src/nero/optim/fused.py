"""Nero's fused path: which tensors the kernel takes, and the tables by which one launch finds all of them."""

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from nero.optim import tiling
from nero.optim.balance import slack
from nero.optim.base import check_gradient
from nero.optim.batches import fan_in, stored_view
from nero.optim.shards import is_sharded, local, local_gradient

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def unavailable(device: torch.device) -> str | None:
    """Why the kernel cannot run on a device; None where it can."""
    try:
        from triton import JITFunction

        from nero.optim.kernels import nero_kernel
    except ImportError:
        return "Triton is not installed"
    # Triton's interpreter (TRITON_INTERPRET=1) runs it anywhere, slowly: for tests.
    if not isinstance(nero_kernel, JITFunction):
        return None
    if device.type != "cuda":
        return f"a {device.type} has no Triton kernels; it needs a CUDA GPU"
    if torch.version.cuda and torch.cuda.get_device_capability(device) < (7, 0):
        return "it needs a GPU of compute capability 7.0 or more"
    return None


def fits(param: Tensor) -> bool:
    """Whether the kernel takes this tensor: its neurons lie one after the other, in a dtype that it knows."""
    if param.dtype not in DTYPES or param.numel() == 0 or unavailable(param.device):
        return False
    return stored_view(param).is_contiguous() and (param.ndim < 2 or fan_in(param) <= tiling.LONGEST_FAN_IN)


class FusedGroup:
    """The launches of one param group, one for each dtype and device, and the parameters that the kernel leaves.

    replaces: an earlier one, whose tables stay alive where a CUDA graph reads them
    """

    def __init__(
        self,
        params: list[Tensor],
        state: Mapping[Tensor, dict[str, Tensor]],
        replaces: "FusedGroup | None" = None,
    ) -> None:
        self.params = list(params)
        taken = [param for param in params if fits(local(param))]
        kinds = list(dict.fromkeys((param.dtype, param.device) for param in taken))
        lists = [[param for param in taken if (param.dtype, param.device) == kind] for kind in kinds]
        self.launches = [Launch(some, [state[param] for param in some]) for some in lists]
        self.rest = [param for param in params if not fits(local(param))]
        self.kept = [] if replaces is None else replaces.kept + [old for old in replaces.launches if old.captured]

    def holds(self, params: list[Tensor]) -> bool:
        """Whether these are the group's parameters, and neither they nor their state have moved since."""
        return (
            len(params) == len(self.params)
            and all(map(operator.is_, params, self.params))
            and all(launch.holds() for launch in self.launches)
        )

    def prepare(self, group: dict[str, Any]) -> list[Callable[[], None]]:
        """Check the gradients; calling what is returned makes the step."""
        return [partial(launch, launch.gradients(), group) for launch in self.launches]


class Launch:
    """One launch for tensors of one dtype on one device, with the tables that it reads.

    The tables hold addresses. `holds` says whether they are still those of the parameters and of their state;
    gradients move more often and are looked up at every step.
    """

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from triton import language as tl

        from nero.optim.kernels import nero_kernel

        self.kernel: Any = nero_kernel
        self.device, self.dtype = params[0].device, params[0].dtype
        self.sharded = any(map(is_sharded, params))
        self.params, self.states = params, states
        self.averages = [state["avg_sq"] for state in states]
        self.addresses = list(map(Tensor.data_ptr, self._own(params)))
        self.no_gain = torch.zeros((), device=self.device)
        self.known: tuple[list[int], list[tuple[int, ...]]] | None = None
        self.captured = False

        records = self._records()
        counts = torch.tensor([record[tiling.TILES] for record in records])
        tensor = torch.repeat_interleave(counts)
        tile = torch.arange(len(tensor)) - (counts.cumsum(0) - counts)[tensor]
        long = [record for record in records if record[tiling.KIND] == tiling.LONG]
        pieces, long_rows = sum(record[tiling.TILES] for record in long), sum(record[tiling.ROWS] for record in long)
        self.tiles = torch.stack([tensor, tile], 1).to(self.device, torch.int32)
        self.tensors = torch.tensor(records).to(self.device)
        self.grads = torch.zeros_like(self.tensors[:, 0])
        self.arrivals = torch.zeros_like(self.grads, dtype=torch.int32)
        self.long_arrivals = torch.zeros(max(long_rows, 1), dtype=torch.int32, device=self.device)
        self.sums = torch.zeros(max(pieces, 1) * tiling.SUMS, dtype=torch.float64, device=self.device)
        self.constants = {
            "DTYPE": getattr(tl, str(self.dtype).removeprefix("torch.")),
            "KINDS": sum(1 << kind for kind in {record[tiling.KIND] for record in records}),
            "num_warps": tiling.WARPS,
        }

    def _own(self, tensors: list[Tensor]) -> list[Tensor]:
        return list(map(local, tensors)) if self.sharded else tensors

    def _records(self) -> list[list[int]]:
        """The table of tensors: one row for each, with the columns of `tiling`."""
        records = []
        pieces, long_rows = 0, 0
        for param, state in zip(self._own(self.params), self.states, strict=True):
            rows, width = (param.shape[0], fan_in(param)) if param.ndim >= 2 else (param.numel(), 1)
            aligned = param.data_ptr() % 16 == 0 and width * param.element_size() % 16 == 0
            kind, tiles = tiling.kind_of(rows, width, aligned)
            if param.ndim < 2:
                kind, tiles = tiling.ENTRIES, math.ceil(rows / tiling.ENTRIES_TILE)
            record = [0] * tiling.COLUMNS
            record[tiling.WEIGHT] = param.data_ptr()
            record[tiling.AVG_SQ] = local(state["avg_sq"]).data_ptr()
            record[tiling.STEP] = state["step"].data_ptr()
            record[tiling.SCALE] = state["scale"].data_ptr()
            record[tiling.GAIN] = state.get("gain", self.no_gain).data_ptr()
            record[tiling.ROWS], record[tiling.FAN_IN] = rows, width
            record[tiling.KIND], record[tiling.TILES] = kind, tiles
            record[tiling.FIRST_PIECE], record[tiling.FIRST_LONG_ROW] = pieces, long_rows
            records.append(record)
            if kind == tiling.LONG:
                pieces, long_rows = pieces + tiles, long_rows + rows
        return records

    def holds(self) -> bool:
        """Whether parameters and state are still where the tables say."""
        return self.addresses == list(map(Tensor.data_ptr, self._own(self.params))) and all(
            map(operator.is_, self.averages, map(operator.itemgetter("avg_sq"), self.states))
        )

    def gradients(self) -> list[Tensor | None]:
        """The gradients as they are now, None for none; RuntimeError for one that Nero cannot take."""
        grads = [param.grad for param in self.params]
        for grad in grads:
            if grad is not None and grad.layout is not torch.strided:
                check_gradient(grad, "Nero")
        if not self.sharded:
            return grads
        pairs = zip(self.params, grads, strict=True)
        return [grad if grad is None else local_gradient(param, grad) for param, grad in pairs]

    def __call__(self, grads: list[Tensor | None], group: dict[str, Any]) -> None:
        """One step of the tensors that have a gradient."""
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self(grads, group)
        lr, beta = group["lr"], group["beta"]
        if isinstance(lr, Tensor) and lr.device != self.device:
            lr = float(lr)
        # Gradients that had to be copied live until the kernel is queued; their memory is not reused before it ran.
        table, _copies = self._look_up(grads)
        self.kernel[(len(self.tiles),)](
            self.tiles,
            self.tensors,
            table,
            self.arrivals,
            self.long_arrivals,
            self.sums,
            lr,
            beta,
            1 - beta,
            math.log(beta) if beta > 0 else -math.inf,
            -1.0 if group["maximize"] else 1.0,
            float(group["gain_penalty"]),
            slack(self.dtype),
            MEAN=group["mean"],
            NORM=group["norm"],
            LR_IN_TENSOR=isinstance(lr, Tensor),
            **self.constants,
        )
        return None

    def _look_up(self, grads: list[Tensor | None]) -> tuple[Tensor, list[Tensor]]:
        """The table of the gradients' addresses, and the copies of gradients that do not lie as their parameter does."""
        if any(map(operator.is_, grads, repeat(None))):
            addresses = [0 if grad is None else grad.data_ptr() for grad in grads]
            strides = [() if grad is None else grad.stride() for grad in grads]
        else:
            addresses = list(map(Tensor.data_ptr, grads))  # type: ignore[arg-type]
            strides = list(map(Tensor.stride, grads))  # type: ignore[arg-type]
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self.captured |= capturing
        if (addresses, strides) == self.known and not capturing:
            return self.grads, []
        known, copies = (list(addresses), strides), []
        for i, (param, grad) in enumerate(zip(self._own(self.params), grads, strict=True)):
            if grad is not None and not _lies_like(grad, param):
                copies.append(torch.empty_like(param).copy_(grad))
                addresses[i] = copies[-1].data_ptr()
        if capturing:
            return self._table_in_a_graph(addresses), copies
        # Out of memory that is not pinned, an asynchronous copy returns once its source has been read.
        self.grads.copy_(torch.tensor(addresses), non_blocking=True)
        self.known = None if copies else known
        return self.grads, copies

    def _table_in_a_graph(self, addresses: list[int]) -> Tensor:
        """A table that belongs to the graph being captured, filled by kernels: it has no memory of the host to copy."""
        table = torch.zeros_like(self.grads)
        torch._foreach_add_(list(table.unbind()), addresses)
        return table


def _lies_like(grad: Tensor, param: Tensor) -> bool:
    """Whether the entries of a gradient lie in memory as those of its parameter do, and as well aligned."""
    if grad.dtype != param.dtype or (param.data_ptr() % 16 == 0 and grad.data_ptr() % 16 != 0):
        return False
    return grad.stride() == param.stride() or stored_view(grad, like=param).is_contiguous()
