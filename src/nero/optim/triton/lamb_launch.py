"""LAMB's fused path: the order in which its kernel goes through tensors, and its launch."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from nero.optim.sharding import is_sharded
from nero.optim.triton.compiled_launch import CompiledLaunch
from nero.optim.triton.entry_tables import EntryTensors
from nero.optim.triton.pointer_tables import run_table

Run = tuple[int, int, int]
"""A tensor, a first code as in the items of `lamb_kernel`, and how many consecutive codes follow from it."""


def both_passes(tiles: list[int], held: int, lag: int) -> list[Run]:
    """The items of a step for tensors with these numbers of tiles, large tensors first.

    A tensor of at most `held` tiles has no second pass. That over another one begins `lag` items after the last of its
    first pass, where other tensors are left to fill them, so that it need not wait. It goes through the tiles
    backwards: those last seen are the likeliest to be in the cache.
    """
    runs: list[Run] = []
    waiting: deque[tuple[int, int]] = deque()  # from which item on, and a tensor
    items = 0
    for tensor in sorted(range(len(tiles)), key=lambda i: -tiles[i]):
        done = 0
        while done < tiles[tensor]:
            if waiting and waiting[0][0] <= items:
                late = waiting.popleft()[1]
                runs.append((late, -tiles[late], tiles[late]))
                items += tiles[late]
                continue
            count = tiles[tensor] - done
            if waiting and tiles[tensor] > held:  # nothing comes between programs that wait for each other
                count = min(count, waiting[0][0] - items)
            runs.append((tensor, done, count))
            done, items = done + count, items + count
        if tiles[tensor] > held:
            waiting.append((items + lag, tensor))
    return runs + [(tensor, -tiles[tensor], tiles[tensor]) for _, tensor in waiting]


def check_momentum(group: dict[str, Any], states: Iterable[dict[str, Tensor]]) -> None:
    """Raise RuntimeError if a group has momentum that its state has not."""
    if group["betas"][0] > 0 and any("exp_avg" not in state for state in states):
        raise RuntimeError("betas[0] was 0 when a group was added, and so no average of its gradients is kept")


class LAMBTensors(EntryTensors):
    """Tensors of one dtype on one device, which one launch steps.

    registers:  of a thread at most; 0 for any number
    lag:        items for each multiprocessor from the first to the second pass over a tensor
    held:       tiles for each multiprocessor of the largest tensor without a second pass
    patience:   polls for the totals of a tensor after which a program leaves its tile to another one
    """

    optimizer = "LAMB"
    keys = ("exp_avg_sq", "exp_avg")
    tile, warps, registers, lag, held = 2048, 4, 96, 4.0, 3.5
    patience = 256

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from nero.optim.triton.lamb_kernels import lamb_kernel

        super().__init__(params, states)
        self.has_momentum = all("exp_avg" in state for state in states)
        processors, patience = 1, 0  # in the interpreter, where programs run one after the other
        if self.device.type == "cuda":
            processors = torch.cuda.get_device_properties(self.device).multi_processor_count
            patience = self.patience
        held = max(1, int(self.held * processors))
        self.waits = (held, patience)
        self.items = run_table(both_passes(self.tiles, held, int(self.lag * processors)), self.device)
        self.sums = torch.zeros(sum(self.tiles), 2, device=self.device)
        self.totals = torch.zeros(len(params), 2, dtype=torch.float64, device=self.device)
        self.tile_states = torch.zeros(sum(self.tiles), dtype=torch.int32, device=self.device)
        self.arrivals = torch.zeros(len(params), dtype=torch.int32, device=self.device)
        self.kernel = CompiledLaunch(lamb_kernel, len(self.items), num_warps=self.warps, maxnreg=self.registers)

    @staticmethod
    def fits(param: Tensor, state: Mapping[str, Tensor], group: dict[str, Any]) -> bool:
        # Norms over shards are sums over processes, which the kernel cannot wait for.
        return not is_sharded(state["exp_avg_sq"]) and EntryTensors.fits(param, state, group)

    def check(self, group: dict[str, Any]) -> None:
        if not self.has_momentum:
            check_momentum(group, self.states)

    def launch(self, grads: Tensor, lr: float | Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = map(float, group["betas"])
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in (beta1, beta2)]
        sign = -1.0 if group["maximize"] else 1.0
        numbers = (beta1, 1 - beta1, beta2, 1 - beta2, *logs, float(group["eps"]), float(group["clamp_value"]), sign)
        tables = (self.items, self.tensors, grads, self.sums, self.totals, self.tile_states, self.arrivals)
        constants = (self.element, beta1 > 0, bool(group["debias"]), self.tile)
        self.kernel(tables, lr, (*numbers, *self.waits), constants)
