"""LAMB's fused path: the tables by which its kernels find many tensors, and their launches."""

import math
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nero.optim.param_groups import batches
from nero.optim.triton.pointer_tables import (
    GradientTable,
    is_capturing,
    is_dense,
    look_up,
    on_device,
    rate_for_kernel,
    tile_table,
)


def update_(slots: list[Any], group: dict[str, Any], lists: dict[Tensor, "TensorList"]) -> list[Any]:
    """Step the slots that the kernels support; return the others. `lists` keeps tables, by their first tensor."""
    for batch in batches([slot for slot in slots if is_dense(slot.param)], True, tensor=attrgetter("param")):
        known = lists.get(batch[0].param)
        if known is None or known.addresses != _addresses(batch):
            known = lists[batch[0].param] = TensorList(batch, replaces=known)
        known.update_(batch, group)
    return [slot for slot in slots if not is_dense(slot.param)]


class TensorList:
    """Tensors of one dtype on one device, with the tables of their addresses.

    `replaces`: an earlier one, whose tables stay alive where a CUDA graph reads them.
    """

    def __init__(self, slots: list[Any], replaces: "TensorList | None" = None) -> None:
        from triton import language as tl

        from nero.optim.triton.lamb_kernels import COLUMNS, TILE

        self.device, dtype = slots[0].param.device, slots[0].param.dtype
        if is_capturing(self.device):
            raise RuntimeError("LAMB's first step makes tables for its kernels: take one before the capture")
        self.grads = GradientTable(len(slots), self.device)
        self.captured: list[TensorList] = []
        if replaces is not None:
            self.captured = [*replaces.captured, replaces] if replaces.grads.captured else replaces.captured
        self.addresses = _addresses(slots)
        self.dtype = getattr(tl, str(dtype).removeprefix("torch."))
        counts = torch.tensor([slot.param.numel() for slot in slots])
        tiles = -(-counts // TILE.value)
        pointers = torch.tensor(self.addresses).view(len(slots), 4)
        aligned = (pointers[:, :3] % 16 == 0).all(1) & (counts * slots[0].param.element_size() % 16 == 0)
        records = torch.column_stack([pointers, counts, aligned, tiles.cumsum(0) - tiles, tiles])
        assert records.shape[1] == COLUMNS.value
        self.tensors, self.tiles = records.to(self.device), tile_table(tiles.tolist(), self.device)
        self.sums = torch.zeros(len(self.tiles), 2, device=self.device)
        self.rates = torch.zeros(len(slots), device=self.device)
        self.all_contiguous = all(slot.param.is_contiguous() for slot in slots)

    def update_(self, slots: list[Any], group: dict[str, Any]) -> None:
        """Step tensors whose step counts have been incremented."""
        from nero.optim.triton.lamb_kernels import WARPS, average_kernel, move_kernel, rate_kernel

        lr, clamp_value = rate_for_kernel(group["lr"], self.device), float(group["clamp_value"])
        beta1, beta2 = map(float, group["betas"])
        averaging = (beta1, 1 - beta1, beta2, 1 - beta2)
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in (beta1, beta2)]
        last = (*logs, float(group["eps"]), -1.0 if group["maximize"] else 1.0)
        last = (*last, self.dtype, beta1 > 0, bool(group["debias"]))
        found = look_up([slot.grad for slot in slots], "LAMB", self.all_contiguous)
        tiles, tensors = (len(self.tiles),), (len(self.tensors),)
        with on_device(self.device):
            grads, _copies = self.grads.fill([slot.param for slot in slots], found)
            average_kernel[tiles](self.tiles, self.tensors, grads, self.sums, *averaging, *last, num_warps=WARPS)
            rate_kernel[tensors](self.tensors, self.sums, self.rates, lr, clamp_value, isinstance(lr, Tensor))
            move_kernel[tiles](self.tiles, self.tensors, grads, self.rates, *last, num_warps=WARPS)


def _addresses(slots: list[Any]) -> list[int]:
    """Of weights, averages and step counts, in the order of the kernels' columns."""
    found = []
    for slot in slots:
        first = slot.state["exp_avg"].data_ptr() if "exp_avg" in slot.state else 0
        found += [slot.param.data_ptr(), first, slot.state["exp_avg_sq"].data_ptr(), slot.state["step"].data_ptr()]
    return found
