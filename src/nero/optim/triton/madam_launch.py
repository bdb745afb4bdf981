"""Madam's fused path: the launch of its kernel."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.triton.compiled_launch import CompiledLaunch
from nero.optim.triton.entry_tables import EntryTensors
from nero.optim.triton.pointer_tables import tile_table


class MadamTensors(EntryTensors):
    """Tensors of one dtype on one device, which one launch steps."""

    optimizer = "Madam"
    keys = ("avg_sq", "bound")
    tile, warps = 1024, 4

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from nero.optim.triton.madam_kernels import madam_kernel

        super().__init__(params, states)
        self.programs = tile_table(self.tiles, self.device)
        self.arrivals = torch.zeros(len(params), dtype=torch.int32, device=self.device)
        self.kernel = CompiledLaunch(madam_kernel, len(self.programs), num_warps=self.warps)

    def launch(self, grads: Tensor, lr: float | Tensor, group: dict[str, Any]) -> None:
        beta = float(group["beta"])
        log_beta = math.log(beta) if beta > 0 else -math.inf
        sign = -1.0 if group["maximize"] else 1.0
        tables = (self.programs, self.tensors, grads, self.arrivals)
        numbers = (beta, 1 - beta, log_beta, float(group["g_bound"]), sign)
        self.kernel(tables, lr, numbers, (self.element, self.tile))
