"""LAMB's fused path: which tensors its kernels take, and the tables by which a launch finds all of them."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.base import Slot
from nero.optim.param_groups import batches
from nero.optim.triton.pointer_tables import GradientTable, is_capturing, is_dense, look_up, rate_for_kernel, tile_table


class FusedTensors:
    """The launches of all lists of tensors that an optimiser has stepped, by the first tensor of each."""

    def __init__(self) -> None:
        self.lists: dict[Tensor, TensorList] = {}
        self.kept: list[TensorList] = []  # no longer right, but a CUDA graph reads their tables

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> list[Slot]:
        """One step of what the kernels take; what they leave is returned."""
        taken = [slot for slot in slots if is_dense(slot.param)]
        for batch in batches(taken, True, tensor=lambda slot: slot.param):
            known = self.lists.get(batch[0].param)
            if known is None or not known.holds(batch):
                if known is not None and known.grads.captured:
                    self.kept.append(known)
                known = self.lists[batch[0].param] = TensorList(batch)
            known.update_(batch, group)
        return [slot for slot in slots if not is_dense(slot.param)] if len(taken) < len(slots) else []


class TensorList:
    """Tensors of one dtype on one device, with the tables of their addresses."""

    def __init__(self, slots: list[Slot]) -> None:
        from triton import language as tl

        from nero.optim.triton.lamb_kernels import COLUMNS, TILE

        self.device, dtype = slots[0].param.device, slots[0].param.dtype
        if is_capturing(self.device):
            raise RuntimeError("LAMB's first step makes tables for its kernels: take one before the capture")
        self.addresses = _addresses(slots)
        self.dtype = getattr(tl, str(dtype).removeprefix("torch."))
        counts = torch.tensor([slot.param.numel() for slot in slots])
        tiles = -(-counts // TILE.value)
        places = torch.tensor(self.addresses).view(len(slots), 4)
        aligned = (places[:, :3] % 16 == 0).all(1) & (counts * slots[0].param.element_size() % 16 == 0)
        records = torch.column_stack([places, counts, aligned, tiles.cumsum(0) - tiles, tiles])
        assert records.shape[1] == COLUMNS.value
        self.tensors, self.tiles = records.to(self.device), tile_table(tiles.tolist(), self.device)
        self.sums = torch.zeros(len(self.tiles), 2, device=self.device)
        self.rates = torch.zeros(len(slots), device=self.device)
        self.all_contiguous = all(slot.param.is_contiguous() for slot in slots)
        self.grads = GradientTable(len(slots), self.device)

    def holds(self, slots: list[Slot]) -> bool:
        """Whether the tables are of these tensors, and neither they nor their state have moved since."""
        return self.addresses == _addresses(slots)

    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """One step, of tensors whose step counts have been raised."""
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self.update_(slots, group)
        from nero.optim.triton.lamb_kernels import WARPS, average_kernel, move_kernel, rate_kernel

        lr = rate_for_kernel(group["lr"], self.device)
        beta1, beta2 = map(float, group["betas"])
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in (beta1, beta2)]
        last = (*logs, float(group["eps"]), -1.0 if group["maximize"] else 1.0)
        constants = (self.dtype, beta1 > 0, bool(group["debias"]))
        found = look_up([slot.grad for slot in slots], "LAMB", self.all_contiguous)
        grads, _copies = self.grads.fill([slot.param for slot in slots], found)
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


def _addresses(slots: list[Slot]) -> list[int]:
    """Of weights, averages and step counts, in the order of the kernels' columns."""
    found = []
    for slot in slots:
        state = slot.state
        first = state["exp_avg"].data_ptr() if "exp_avg" in state else 0
        found += [slot.param.data_ptr(), first, state["exp_avg_sq"].data_ptr(), state["step"].data_ptr()]
    return found
