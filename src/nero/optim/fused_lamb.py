"""LAMB's fused path: which tensors its kernels take, and the tables by which a launch finds all of them."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.base import Slot
from nero.optim.batches import batches, stored_view
from nero.optim.fused import DTYPES, lies_like, table_in_a_graph, unavailable


def fits(param: Tensor) -> bool:
    """Whether the kernels take this tensor: its entries lie one after the other, in a dtype that they know."""
    if param.dtype not in DTYPES or unavailable(param.device):
        return False
    if getattr(param, "grad_dtype", param.dtype) != param.dtype:  # torch from 2.10 on lets gradients differ
        return False
    return stored_view(param).is_contiguous()


class FusedTensors:
    """The launches of all lists of tensors that an optimiser has stepped, by the first tensor of each."""

    def __init__(self) -> None:
        self.lists: dict[Tensor, TensorList] = {}
        self.kept: list[TensorList] = []  # no longer right, but a CUDA graph reads their tables

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> list[Slot]:
        """One step of what the kernels take; what they leave is returned."""
        taken = [slot for slot in slots if fits(slot.param)]
        for batch in batches(taken, True, tensor=lambda slot: slot.param):
            known = self.lists.get(batch[0].param)
            if known is None or not known.holds(batch):
                if known is not None and known.captured:
                    self.kept.append(known)
                known = self.lists[batch[0].param] = TensorList(batch)
            known.update_(batch, group)
        return [slot for slot in slots if not fits(slot.param)] if len(taken) < len(slots) else []


class TensorList:
    """Tensors of one dtype on one device, with the tables of their addresses."""

    def __init__(self, slots: list[Slot]) -> None:
        from triton import language as tl

        from nero.optim.lamb_kernels import COLUMNS, TILE

        self.device, dtype = slots[0].param.device, slots[0].param.dtype
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("LAMB's first step makes tables for its kernels: take one before the capture")
        self.addresses = _addresses(slots)
        self.dtype = getattr(tl, str(dtype).removeprefix("torch."))
        counts = torch.tensor([slot.param.numel() for slot in slots])
        tiles = -(-counts // TILE.value)
        firsts = tiles.cumsum(0) - tiles
        places = torch.tensor(self.addresses).view(len(slots), 4)
        size = slots[0].param.element_size()
        aligned = (places[:, :3] % 16 == 0).all(1) & (counts * size % 16 == 0)
        records = torch.column_stack([places, counts, aligned, firsts, tiles])
        assert records.shape[1] == COLUMNS.value
        tensor = torch.repeat_interleave(tiles)
        self.tensors = records.to(self.device)
        self.tiles = torch.stack([tensor, torch.arange(len(tensor)) - firsts[tensor]], 1).to(self.device, torch.int32)
        self.sums = torch.zeros(len(tensor), 2, device=self.device)
        self.rates = torch.zeros(len(slots), device=self.device)
        self.grads = torch.zeros_like(self.tensors[:, 0])
        self.known: list[int] = []
        self.captured = False

    def holds(self, slots: list[Slot]) -> bool:
        """Whether the tables are of these tensors, and neither they nor their state have moved since."""
        return self.addresses == _addresses(slots)

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """One step, of tensors whose step counts have been raised."""
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self.update_(slots, group)
        from nero.optim.lamb_kernels import WARPS, average_kernel, move_kernel, rate_kernel

        lr = group["lr"]
        if not isinstance(lr, Tensor) or lr.device != self.device:
            lr = float(lr)
        beta1, beta2 = map(float, group["betas"])
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in (beta1, beta2)]
        last = (*logs, float(group["eps"]), -1.0 if group["maximize"] else 1.0)
        constants = (self.dtype, beta1 > 0, bool(group["debias"]))
        # Gradients that had to be copied live until the kernels are queued; their memory is not reused before they ran.
        grads, _copies = self._table(slots)
        tiles, tensors = (len(self.tiles),), (len(self.tensors),)
        averaging = (beta1, 1 - beta1, beta2, 1 - beta2)
        average_kernel[tiles](
            self.tiles, self.tensors, grads, self.sums, *averaging, *last, *constants, num_warps=WARPS
        )
        rate_kernel[tensors](
            self.tensors, self.sums, self.rates, lr, float(group["clamp_value"]), isinstance(lr, Tensor)
        )
        move_kernel[tiles](self.tiles, self.tensors, grads, self.rates, *last, *constants, num_warps=WARPS)
        return None

    def _table(self, slots: list[Slot]) -> tuple[Tensor, list[Tensor]]:
        """The table of the gradients' addresses, and copies of those gradients that do not lie as their parameter."""
        copies = []
        addresses = []
        for slot in slots:
            grad = slot.grad
            if not lies_like(grad, slot.param):
                grad = torch.empty_like(slot.param).copy_(grad)
                copies.append(grad)
            addresses.append(grad.data_ptr())
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.captured = True
            return table_in_a_graph(addresses, self.device), copies
        if addresses != self.known:
            # Out of memory that is not pinned, an asynchronous copy returns once its source has been read.
            self.grads.copy_(torch.tensor(addresses), non_blocking=True)
            self.known = addresses
        return self.grads, copies


def _addresses(slots: list[Slot]) -> list[int]:
    """Of weights, averages and step counts, in the order of the kernels' columns."""
    found = []
    for slot in slots:
        state = slot.state
        first = state["exp_avg"].data_ptr() if "exp_avg" in state else 0
        found += [slot.param.data_ptr(), first, state["exp_avg_sq"].data_ptr(), state["step"].data_ptr()]
    return found
