"""How the fused kernel divides tensors among its programs; numbers that the kernel and its caller share."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Entries that a program holds, groups of 32 threads that hold them, and registers of a thread (0: any number)."""

    tile: int
    warps: int
    registers: int = 0


NARROW, WIDE = Size(2048, 4, registers=56), Size(8192, 8)
"""Programs for neurons of a padded fan-in up to 2048 and for tensors without neurons, and for longer neurons: the more
entries a thread holds, the fewer threads there are to wait for memory, so that one size cannot serve both."""

LONGEST_ROW = 13
"""log2 of the longest neuron that one program holds alone, padded to a power of two."""
LONG = 14
"""Kind of a tensor whose neurons are longer than that. Kinds below are log2 of the padded fan-in."""
ENTRIES = 15
"""Kind of a tensor without neurons."""
ALIGNED = 16
"""Added to a kind below `LONG` where every neuron begins at a multiple of 16 bytes."""

ENTRIES_TILE = 512
"""Entries of a tensor without neurons that a program takes: few, since each has a root and a division of its own."""
LONG_TILE = 2048
"""Entries in a piece of a long neuron."""
MOST_PIECES = 512
"""Pieces of the longest neuron that the kernel takes."""
LONGEST_FAN_IN = MOST_PIECES * LONG_TILE

# Columns of the table of tensors.
WEIGHT, AVG_SQ, STEP, SCALE, GAIN, ROWS, FAN_IN, KIND, TILES, FIRST_PIECE, FIRST_LONG_ROW = range(11)
COLUMNS = 11

SUMS = 5
"""Numbers that a program leaves of its piece of a long neuron: the sums of g², w, g, w² and wg."""


def width_log(fan_in: int) -> int:
    """log2 of the padded fan-in."""
    return max(fan_in - 1, 0).bit_length()


def size_for(fan_in: int) -> Size:
    """The programs that take neurons of this fan-in."""
    return NARROW if 1 << width_log(fan_in) <= NARROW.tile else WIDE


def rows_in_a_tile(tile: int, width_log: int, aligned: bool) -> int:
    """How many neurons of a padded fan-in of 2 ** width_log a program takes."""
    # Not more than it has threads: each neuron takes a root and a division of its own. And fewer where a thread has to
    # keep the address of each entry instead of one for each four.
    return int(max(1, min(tile >> width_log, 128) >> (0 if aligned else 2)))


def kind_and_programs(rows: int, fan_in: int, aligned: bool) -> tuple[int, int]:
    """The kind of a tensor with neurons, and how many programs it takes."""
    width = width_log(fan_in)
    if width > LONGEST_ROW:
        return LONG, rows * math.ceil(fan_in / LONG_TILE)
    in_a_tile = rows_in_a_tile(size_for(fan_in).tile, width, aligned)
    return width + (ALIGNED if aligned else 0), math.ceil(rows / in_a_tile)


def has_kind(kinds: int, kind: int) -> bool:
    """Whether a set of kinds, held as bits, has this one."""
    return bool(kinds >> kind & 1)
