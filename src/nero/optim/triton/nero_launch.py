"""Nero's fused path: which tensors the kernel takes, and the tables by which one launch finds all of them."""

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import slack
from nero.optim.param_groups import fan_in
from nero.optim.sharding import is_sharded, local, local_gradient
from nero.optim.triton import tiling
from nero.optim.triton.pointer_tables import Gradients, GradientTable, is_dense, look_up, rate_for_kernel, tile_table


def fits(param: Tensor) -> bool:
    """Whether the kernel takes this tensor."""
    if param.numel() == 0 or not is_dense(param):
        return False
    return param.ndim < 2 or fan_in(param) <= tiling.LONGEST_FAN_IN


class FusedGroup:
    """The launches of one param group, and the parameters that the kernel leaves.

    replaces: an earlier one, whose tables stay alive where a CUDA graph reads them
    """

    def __init__(
        self,
        params: list[Tensor],
        state: Mapping[Tensor, dict[str, Tensor]],
        replaces: "FusedGroup | None" = None,
    ) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("Nero's first step makes tables for its kernel: take one before the capture")
        self.params = list(params)
        self.rest: list[Tensor] = []
        lists: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for param in params:
            place = lists.setdefault((param.dtype, param.device), []) if fits(local(param)) else self.rest
            place.append(param)
        self.lists = [TensorList(some, [state[param] for param in some]) for some in lists.values()]
        self.kept: list[TensorList] = []
        if replaces is not None:
            self.kept = replaces.kept + [old for old in replaces.lists if old.grads.captured]

    def holds(self, params: list[Tensor]) -> bool:
        """Whether these are the group's parameters, and neither they nor their state have moved since."""
        return (
            len(params) == len(self.params)
            and all(map(operator.is_, params, self.params))
            and all(tensors.holds() for tensors in self.lists)
        )

    def prepare(self, group: dict[str, Any]) -> list[Callable[[], None]]:
        """Check the gradients; calling what is returned makes the step."""
        return [partial(tensors.update_, tensors.look_up(), group) for tensors in self.lists]


class TensorList:
    """Tensors of one dtype on one device, with the tables by which a launch, or one for each `tiling.Size`, finds them.

    The tables hold addresses. `holds` says whether they are still those of the parameters and of their state;
    gradients move more often and are looked up at every step.
    """

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        self.device, self.dtype = params[0].device, params[0].dtype
        self.sharded = any(map(is_sharded, params))
        self.params, self.states = params, states
        self.averages = [states[0]["avg_sq"], states[-1]["avg_sq"]]
        self.addresses = list(map(Tensor.data_ptr, self._own(params)))
        self.all_contiguous = all(map(Tensor.is_contiguous, self._own(params)))
        self.no_gain = torch.zeros((), device=self.device)
        self.slack = slack(self.dtype)

        records, sizes = self._records()
        long = [record for record in records if record[tiling.KIND] == tiling.LONG]
        pieces, long_rows = sum(record[tiling.TILES] for record in long), sum(record[tiling.ROWS] for record in long)
        self.tensors = torch.tensor(records).to(self.device)
        self.grads = GradientTable(len(params), self.device)
        self.arrivals = torch.zeros(len(params), dtype=torch.int32, device=self.device)
        self.long_arrivals = torch.zeros(max(long_rows, 1), dtype=torch.int32, device=self.device)
        self.sums = torch.zeros(max(pieces, 1) * tiling.SUMS, dtype=torch.float64, device=self.device)
        self.launches = [
            Launch(records, [size == wanted for size in sizes], wanted, self.dtype, self.device)
            for wanted in dict.fromkeys(sizes)
        ]

    def _own(self, tensors: list[Tensor]) -> list[Tensor]:
        return [local(tensor) for tensor in tensors] if self.sharded else tensors

    def _records(self) -> tuple[list[list[int]], list[tiling.Size]]:
        """The table of tensors, one row for each with the columns of `tiling`, and the programs that they take."""
        records, sizes = [], []
        pieces, long_rows = 0, 0
        for param, state in zip(self._own(self.params), self.states, strict=True):
            rows, width, size = param.numel(), 1, tiling.NARROW
            kind, tiles = tiling.ENTRIES, math.ceil(rows / tiling.ENTRIES_TILE)
            if param.ndim >= 2:
                rows, width = param.shape[0], fan_in(param)
                size = tiling.size_for(width)
                aligned = param.data_ptr() % 16 == 0 and width * param.element_size() % 16 == 0
                kind, tiles = tiling.kind_and_programs(rows, width, aligned)
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
            sizes.append(size)
            if kind == tiling.LONG:
                pieces, long_rows = pieces + tiles, long_rows + rows
        return records, sizes

    def holds(self) -> bool:
        """Whether parameters and state are still where the tables say. State moves as a whole or not at all."""
        return (
            self.states[0]["avg_sq"] is self.averages[0]
            and self.states[-1]["avg_sq"] is self.averages[1]
            and self.addresses == list(map(Tensor.data_ptr, self._own(self.params)))
        )

    def look_up(self) -> Gradients:
        """Where the gradients are now; RuntimeError for one that Nero cannot take."""
        grads: list[Any] = [param.grad for param in self.params]
        if self.sharded:
            pairs = zip(self.params, grads, strict=True)
            grads = [None if grad is None else local_gradient(param, grad) for param, grad in pairs]
        return look_up(grads, "Nero", self.all_contiguous)

    def update_(self, grads: Gradients, group: dict[str, Any]) -> None:
        """One step of the tensors that have a gradient."""
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self.update_(grads, group)
        lr, beta = rate_for_kernel(group["lr"], self.device), float(group["beta"])
        table, _copies = self.grads.fill(self._own(self.params), grads)
        tables = (self.tensors, table, self.arrivals, self.long_arrivals, self.sums)
        numbers = (
            beta,
            1 - beta,
            math.log(beta) if beta > 0 else -math.inf,
            -1.0 if group["maximize"] else 1.0,
            float(group["gain_penalty"]),
            self.slack,
        )
        for launch in self.launches:
            launch(tables, lr, numbers, bool(group["mean"]), bool(group["norm"]))
        return None


class Launch:
    """The programs of one size: which tile of which tensor each takes, and the kernel compiled for them."""

    def __init__(
        self, records: list[list[int]], chosen: list[bool], size: tiling.Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        from triton import language as tl

        from nero.optim.triton.nero_kernels import nero_kernel

        self.kernel: Any = nero_kernel
        counts = (record[tiling.TILES] * mine for record, mine in zip(records, chosen, strict=True))
        self.tiles = tile_table(counts, device)
        self.grid = (len(self.tiles), 1, 1)
        kinds = {record[tiling.KIND] for record, mine in zip(records, chosen, strict=True) if mine}
        self.constants = (getattr(tl, str(dtype).removeprefix("torch.")), size.tile, sum(1 << kind for kind in kinds))
        self.options: dict[str, int] = {"num_warps": size.warps}
        if size.registers:
            self.options["maxnreg"] = size.registers
        self.compiled: dict[Any, Any] = {}

    def __call__(
        self, tables: tuple[Tensor, ...], lr: float | Tensor, numbers: tuple[float, ...], mean: bool, norm: bool
    ) -> None:
        last = (*numbers, *self.constants, mean, norm, isinstance(lr, Tensor))
        # Triton would look at every argument again to find its compiled kernel, which takes longer than the launch.
        key = (mean, norm, lr.dtype if isinstance(lr, Tensor) else None)
        if (run := self.compiled.get(key)) is not None:
            rate = lr.data_ptr() if isinstance(lr, Tensor) else lr
            run(self.tiles.data_ptr(), *map(Tensor.data_ptr, tables), rate, *last)
        elif (kernel := self.kernel[self.grid](self.tiles, *tables, lr, *last, **self.options)) is not None:
            self.compiled[key] = kernel[self.grid]  # None from the interpreter
