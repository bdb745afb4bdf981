"""Nero's fused path: how its kernel divides tensors among programs, and the tables by which a launch finds them."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nero.optim.balance import slack
from nero.optim.param_groups import fan_in
from nero.optim.sharding import is_sharded, local, local_gradient
from nero.optim.triton.pointer_tables import (
    Gradients,
    GradientTable,
    is_dense,
    look_up,
    on_device,
    rate_for_kernel,
    tile_table,
)


@dataclass(frozen=True)
class Size:
    """Entries that a program holds, its warps, and the registers of a thread (0: any number)."""

    tile: int
    warps: int
    registers: int = 0


# Programs for neurons of a padded fan-in up to 2048 and for tensors without neurons, and for longer neurons. The more
# entries a thread holds, the fewer threads there are to hide the latency of memory, so one size cannot serve both.
NARROW, WIDE = Size(2048, 4, registers=56), Size(8192, 8)

# Kinds of tensors: log2 of the padded fan-in for neurons that one program holds, up to LONGEST_ROW; then these two.
LONGEST_ROW, LONG, ENTRIES = 13, 14, 15  # LONG: neurons in pieces; ENTRIES: a tensor without neurons
ALIGNED = 16  # added to a kind below LONG where every neuron starts at a multiple of 16 bytes

ENTRIES_TILE = 512  # entries per program of a tensor without neurons: few, as each takes a root and a division
LONG_TILE = 2048  # entries in a piece of a long neuron
MOST_PIECES = 512  # of the longest neuron that the kernel supports
LONGEST_FAN_IN = MOST_PIECES * LONG_TILE
SUMS = 5  # numbers stored per piece of a long neuron: the sums of g², w, g, w² and wg

# Columns of the table of tensors.
WEIGHT, AVG_SQ, STEP, SCALE, GAIN, ROWS, FAN_IN, KIND, TILES, FIRST_PIECE, FIRST_LONG_ROW = range(11)
COLUMNS = 11


def width_log(fan_in: int) -> int:
    """log2 of the padded fan-in."""
    return max(fan_in - 1, 0).bit_length()


def size_for(fan_in: int) -> Size:
    """The size of the programs for neurons of this fan-in."""
    return NARROW if 1 << width_log(fan_in) <= NARROW.tile else WIDE


def rows_in_a_tile(tile: int, width_log: int, aligned: bool) -> int:
    """Neurons of a padded fan-in of 2 ** width_log per program."""
    # At most one per thread: each neuron takes a root and a division. And fewer where a thread has to hold the address
    # of each entry instead of one for every four.
    return int(max(1, min(tile >> width_log, 128) >> (0 if aligned else 2)))


def kind_and_programs(rows: int, fan_in: int, aligned: bool) -> tuple[int, int]:
    """The kind of a tensor with neurons, and its number of programs."""
    width = width_log(fan_in)
    if width > LONGEST_ROW:
        return LONG, rows * math.ceil(fan_in / LONG_TILE)
    in_a_tile = rows_in_a_tile(size_for(fan_in).tile, width, aligned)
    return width + (ALIGNED if aligned else 0), math.ceil(rows / in_a_tile)


def has_kind(kinds: int, kind: int) -> bool:
    """Whether a bit set of kinds has this one."""
    return bool(kinds >> kind & 1)


def fits(param: Tensor) -> bool:
    """Whether the kernel supports this tensor."""
    if param.numel() == 0 or not is_dense(param):
        return False
    return param.ndim < 2 or fan_in(param) <= LONGEST_FAN_IN


class FusedGroup:
    """The launches for one param group; `rest` are the parameters that the kernel does not support.

    `replaces`: an earlier one, whose tables stay alive where a CUDA graph reads them.
    """

    def __init__(
        self, params: list[Tensor], state: Mapping[Tensor, dict[str, Tensor]], replaces: "FusedGroup | None" = None
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
        self.captured: list[TensorList] = []
        if replaces is not None:
            self.captured = replaces.captured + [old for old in replaces.lists if old.grads.captured]

    def holds(self, params: list[Tensor]) -> bool:
        """Whether these are the group's parameters, and neither they nor their state have moved in memory."""
        same = len(params) == len(self.params) and all(map(operator.is_, params, self.params))
        return same and all(tensors.holds() for tensors in self.lists)

    def prepare(self, group: dict[str, Any]) -> list[Callable[[], None]]:
        """Check the gradients; return functions that make the step."""
        return [partial(tensors.update_, tensors.look_up(), group) for tensors in self.lists]


class TensorList:
    """Tensors of one dtype on one device, with the tables for one launch for each `Size` among them.

    The tables hold addresses; `holds` tells whether they are up to date. Gradients move more often and are looked up at
    every step.
    """

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        self.device, self.dtype = params[0].device, params[0].dtype
        self.sharded = any(map(is_sharded, params))
        self.params, self.states = params, states
        self.averages = [states[0]["avg_sq"], states[-1]["avg_sq"]]
        self.addresses = list(map(Tensor.data_ptr, self._local(params)))
        self.all_contiguous = all(map(Tensor.is_contiguous, self._local(params)))
        self.no_gain = torch.zeros((), device=self.device)

        records, sizes = self._records()
        long = [record for record in records if record[KIND] == LONG]
        pieces, long_rows = sum(record[TILES] for record in long), sum(record[ROWS] for record in long)
        self.tensors = torch.tensor(records).to(self.device)
        self.grads = GradientTable(len(params), self.device)
        self.arrivals = torch.zeros(len(params), dtype=torch.int32, device=self.device)
        self.long_arrivals = torch.zeros(max(long_rows, 1), dtype=torch.int32, device=self.device)
        self.sums = torch.zeros(max(pieces, 1) * SUMS, dtype=torch.float64, device=self.device)
        self.launches = [
            Launch(records, [size == wanted for size in sizes], wanted, self.dtype, self.device)
            for wanted in dict.fromkeys(sizes)
        ]

    def _local(self, tensors: list[Tensor]) -> list[Tensor]:
        return [local(tensor) for tensor in tensors] if self.sharded else tensors

    def _records(self) -> tuple[list[list[int]], list[Size]]:
        """The table of tensors, a row for each, and the sizes of their programs."""
        records, sizes = [], []
        pieces, long_rows = 0, 0
        for param, state in zip(self._local(self.params), self.states, strict=True):
            rows, width, size = param.numel(), 1, NARROW
            kind, tiles = ENTRIES, math.ceil(rows / ENTRIES_TILE)
            if param.ndim >= 2:
                rows, width = param.shape[0], fan_in(param)
                size = size_for(width)
                aligned = param.data_ptr() % 16 == 0 and width * param.element_size() % 16 == 0
                kind, tiles = kind_and_programs(rows, width, aligned)
            gain = state.get("gain", self.no_gain)
            pointers = [param, local(state["avg_sq"]), state["step"], state["scale"], gain]
            records.append([*map(Tensor.data_ptr, pointers), rows, width, kind, tiles, pieces, long_rows])  # as COLUMNS
            sizes.append(size)
            if kind == LONG:
                pieces, long_rows = pieces + tiles, long_rows + rows
        return records, sizes

    def holds(self) -> bool:
        """Whether parameters and state are still where the tables say. All state moves together or not at all."""
        return (
            self.states[0]["avg_sq"] is self.averages[0]
            and self.states[-1]["avg_sq"] is self.averages[1]
            and self.addresses == list(map(Tensor.data_ptr, self._local(self.params)))
        )

    def look_up(self) -> Gradients:
        """The current gradients; RuntimeError for an unsupported one."""
        grads: list[Any] = [param.grad for param in self.params]
        if self.sharded:
            pairs = zip(self.params, grads, strict=True)
            grads = [None if grad is None else local_gradient(param, grad) for param, grad in pairs]
        return look_up(grads, "Nero", self.all_contiguous)

    def update_(self, grads: Gradients, group: dict[str, Any]) -> None:
        """Step the tensors that have a gradient."""
        lr, beta = rate_for_kernel(group["lr"], self.device), float(group["beta"])
        log_beta = math.log(beta) if beta > 0 else -math.inf
        sign, penalty = -1.0 if group["maximize"] else 1.0, float(group["gain_penalty"])
        numbers = (beta, 1 - beta, log_beta, sign, penalty, slack(self.dtype))
        with on_device(self.device):
            table, _copies = self.grads.fill(self._local(self.params), grads)
            tables = (self.tensors, table, self.arrivals, self.long_arrivals, self.sums)
            for launch in self.launches:
                launch(tables, lr, numbers, bool(group["mean"]), bool(group["norm"]))


class Launch:
    """The programs of one size: which tile of which tensor each takes, and the kernel compiled for them."""

    def __init__(
        self, records: list[list[int]], chosen: list[bool], size: Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        from triton import language as tl

        from nero.optim.triton.nero_kernels import nero_kernel

        self.kernel: Any = nero_kernel
        self.tiles = tile_table((row[TILES] * mine for row, mine in zip(records, chosen, strict=True)), device)
        self.grid = (len(self.tiles), 1, 1)
        kinds = {record[KIND] for record, mine in zip(records, chosen, strict=True) if mine}
        self.constants = (getattr(tl, str(dtype).removeprefix("torch.")), size.tile, sum(1 << kind for kind in kinds))
        self.options = {"num_warps": size.warps} | ({"maxnreg": size.registers} if size.registers else {})
        self.compiled: dict[Any, Any] = {}

    def __call__(
        self, tables: tuple[Tensor, ...], lr: float | Tensor, numbers: tuple[float, ...], mean: bool, norm: bool
    ) -> None:
        last = (*numbers, *self.constants, mean, norm, isinstance(lr, Tensor))
        # Triton would inspect every argument again to find its compiled kernel, which takes longer than the launch.
        key = (mean, norm, lr.dtype if isinstance(lr, Tensor) else None)
        if (run := self.compiled.get(key)) is not None:
            rate = lr.data_ptr() if isinstance(lr, Tensor) else lr
            run(self.tiles.data_ptr(), *map(Tensor.data_ptr, tables), rate, *last)
        elif (kernel := self.kernel[self.grid](self.tiles, *tables, lr, *last, **self.options)) is not None:
            self.compiled[key] = kernel[self.grid]  # the interpreter returns None
