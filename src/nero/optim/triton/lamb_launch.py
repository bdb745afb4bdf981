"""LAMB's fused path: the tables by which its kernels find many tensors, and their launches."""

import math
from typing import Any

import torch
from torch import Tensor

from nero.optim.sharding import local
from nero.optim.triton.pointer_tables import TensorList, tile_table


class LAMBTensors(TensorList):
    """Tensors of one dtype on one device, which three launches step."""

    optimizer = "LAMB"

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from nero.optim.triton.lamb_kernels import COLUMNS, TILE

        super().__init__(params, states)
        counts = torch.tensor([param.numel() for param in self.local_params()])
        tiles = -(-counts // TILE.value)
        averages = [
            [local(state[key]).data_ptr() if key in state else 0 for key in ("exp_avg", "exp_avg_sq", "step")]
            for state in states
        ]
        pointers = torch.column_stack([torch.tensor(self.addresses), torch.tensor(averages)])
        aligned = (pointers[:, :3] % 16 == 0).all(1) & (counts * self.dtype.itemsize % 16 == 0)
        records = torch.column_stack([pointers, counts, aligned, tiles.cumsum(0) - tiles, tiles])
        assert records.shape[1] == COLUMNS.value
        self.tensors, self.tiles = records.to(self.device), tile_table(tiles.tolist(), self.device)
        self.sums = torch.zeros(len(self.tiles), 2, device=self.device)
        self.rates = torch.zeros(len(params), device=self.device)

    def launch(self, grads: Tensor, lr: float | Tensor, group: dict[str, Any]) -> None:
        from triton import language as tl

        from nero.optim.triton.lamb_kernels import WARPS, average_kernel, move_kernel, rate_kernel

        pairs = zip(self.params, self.states, strict=True)
        if steps := [state["step"] for param, state in pairs if param.grad is not None]:
            torch._foreach_add_(steps, 1)
        beta1, beta2 = map(float, group["betas"])
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in (beta1, beta2)]
        last = (*logs, float(group["eps"]), -1.0 if group["maximize"] else 1.0)
        last = (*last, getattr(tl, str(self.dtype).removeprefix("torch.")), beta1 > 0, bool(group["debias"]))
        tiles, tensors = (len(self.tiles),), (len(self.tensors),)
        averaging = (beta1, 1 - beta1, beta2, 1 - beta2)
        average_kernel[tiles](self.tiles, self.tensors, grads, self.sums, *averaging, *last, num_warps=WARPS)
        rate_kernel[tensors](
            self.tensors, self.sums, self.rates, lr, float(group["clamp_value"]), isinstance(lr, Tensor)
        )
        move_kernel[tiles](self.tiles, self.tensors, grads, self.rates, *last, num_warps=WARPS)
