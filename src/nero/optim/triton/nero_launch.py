"""Nero's fused path: how its kernel divides tensors among programs, and the tables by which a launch finds them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nero.optim.balance import fan_in, slack, stored_view
from nero.optim.sharding import local
from nero.optim.triton.compiled_launch import CompiledLaunch
from nero.optim.triton.pointer_tables import TensorList, tile_table


class Size(NamedTuple):
    """Entries that a program holds, its warps, and the registers of a thread (0: any number)."""

    tile: int
    warps: int
    registers: int = 0


# Programs for neurons of a padded fan-in up to 2048 and for tensors without neurons, and for longer neurons. The more
# entries a thread holds, the fewer threads there are to hide the latency of memory, so one size cannot serve both.
NARROW, WIDE = Size(2048, 4, registers=56), Size(8192, 8, registers=80)

# Kinds of tensors: log2 of the padded fan-in for neurons that one program holds, up to LONGEST_ROW; then these two.
LONGEST_ROW, LONG, ENTRIES = 13, 14, 15  # LONG: neurons in pieces; ENTRIES: a tensor without neurons
ALIGNED = 16  # added to a kind below LONG where every neuron starts at a multiple of 16 bytes

ENTRIES_TILE = 512  # entries per program of a tensor without neurons: few, as each takes a root and a division
LONG_TILE = 2048  # entries in a piece of a long neuron
MOST_PIECES = 512  # of the longest neuron that the kernel supports
LONGEST_FAN_IN = MOST_PIECES * LONG_TILE
SUMS = 5  # numbers stored per piece of a long neuron: the sums of g², w, g, w² and wg

# Columns of the table of tensors.
WEIGHT, AVG_SQ, STEP, SCALE, GAIN, NORM, ROWS, FAN_IN, KIND, TILES, FIRST_PIECE, FIRST_LONG_ROW = range(12)
COLUMNS = 12


def rows_in_a_tile(tile: int, width_log: int, aligned: bool) -> int:
    """Neurons of a padded fan-in of 2 ** width_log per program."""
    # At most one per thread: each neuron takes a root and a division. And fewer where a thread has to hold the address
    # of each entry instead of one for every four.
    return int(max(1, min(tile >> width_log, 128) >> (0 if aligned else 2)))


def division(rows: int, fan_in: int, aligned: bool) -> tuple[int, int, Size]:
    """The kind of a tensor with neurons, its number of programs and their size."""
    width_log = max(fan_in - 1, 0).bit_length()
    size = NARROW if 1 << width_log <= NARROW.tile else WIDE
    if width_log > LONGEST_ROW:
        return LONG, rows * math.ceil(fan_in / LONG_TILE), size
    programs = math.ceil(rows / rows_in_a_tile(size.tile, width_log, aligned))
    return width_log + (ALIGNED if aligned else 0), programs, size


def has_kind(kinds: int, kind: int) -> bool:
    """Whether a bit set of kinds has this one."""
    return bool(kinds >> kind & 1)


class NeroTensors(TensorList):
    """Tensors of one dtype on one device, with one launch for each `Size` among them."""

    optimizer = "Nero"

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        super().__init__(params, states)
        self.no_gain = torch.zeros((), device=self.device)
        records, sizes = [], []
        pieces, long_rows = 0, 0
        for param, state in zip(self.local_params(), states, strict=True):
            rows, width = param.numel(), 1
            kind, tiles, size = ENTRIES, math.ceil(rows / ENTRIES_TILE), NARROW
            if state["avg_sq"].ndim < param.ndim:
                rows, width = param.shape[0], fan_in(param)
                aligned = param.data_ptr() % 16 == 0 and width * param.element_size() % 16 == 0
                kind, tiles, size = division(rows, width, aligned)
            gain = state.get("gain", self.no_gain)
            pointers = [param, local(state["avg_sq"]), state["step"], state["scale"], gain]
            norm = local(state["norm"]).data_ptr() if "norm" in state else 0
            numbers = [norm, rows, width, kind, tiles, pieces, long_rows]
            records.append([*map(Tensor.data_ptr, pointers), *numbers])  # as COLUMNS
            sizes.append(size)
            if kind == LONG:
                pieces, long_rows = pieces + tiles, long_rows + rows
        self.tensors = torch.tensor(records).to(self.device)
        self.arrivals = torch.zeros(len(params), dtype=torch.int32, device=self.device)
        self.long_arrivals = torch.zeros(max(long_rows, 1), dtype=torch.int32, device=self.device)
        self.sums = torch.zeros(max(pieces, 1) * SUMS, dtype=torch.float64, device=self.device)
        self.launches = [
            Launch(records, [size == wanted for size in sizes], wanted, self.dtype, self.device)
            for wanted in dict.fromkeys(sizes)
        ]

    @staticmethod
    def fits(param: Tensor, state: Mapping[str, Tensor], group: dict[str, Any]) -> bool:
        if not TensorList.fits(param, state, group):
            return False
        average = local(state["avg_sq"])
        if average.ndim < param.ndim:
            return group["neuron_dim"] == 0 and fan_in(param) <= LONGEST_FAN_IN
        return stored_view(average, like=param).is_contiguous()

    def launch(self, grads: Tensor, lr: float | Tensor, group: dict[str, Any]) -> None:
        beta = float(group["beta"])
        log_beta = math.log(beta) if beta > 0 else -math.inf
        sign, penalty = -1.0 if group["maximize"] else 1.0, float(group["gain_penalty"])
        numbers = (beta, 1 - beta, log_beta, sign, penalty, slack(self.dtype))
        tables = (self.tensors, grads, self.arrivals, self.long_arrivals, self.sums)
        stochastic = bool(group["stochastic_rounding"]) and self.dtype == torch.bfloat16
        for launch in self.launches:
            launch(tables, lr, numbers, (bool(group["mean"]), bool(group["norm"]), stochastic))


class Launch(CompiledLaunch):
    """The programs of one size: which tile of which tensor each takes."""

    def __init__(
        self, records: list[list[int]], chosen: list[bool], size: Size, dtype: torch.dtype, device: torch.device
    ) -> None:
        from triton import language as tl

        from nero.optim.triton.nero_kernels import nero_kernel

        self.tiles = tile_table((row[TILES] * mine for row, mine in zip(records, chosen, strict=True)), device)
        own = [record for record, mine in zip(records, chosen, strict=True) if mine]
        kinds = sum(1 << kind for kind in {record[KIND] for record in own})
        lengths = any(record[NORM] for record in own)
        self.constants = (getattr(tl, str(dtype).removeprefix("torch.")), size.tile, kinds, lengths)
        super().__init__(nero_kernel, len(self.tiles), num_warps=size.warps, maxnreg=size.registers)

    def __call__(
        self, tables: tuple[Tensor, ...], lr: float | Tensor, numbers: tuple[float, ...], switches: tuple[Any, ...]
    ) -> None:
        super().__call__((self.tiles, *tables), lr, numbers, (*self.constants, *switches))
