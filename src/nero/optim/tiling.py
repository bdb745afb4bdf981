"""How the fused kernel divides tensors among its programs; numbers that the kernel and its caller share."""

import math

TILE = 4096
"""Entries that a program holds."""
WARPS = 8
"""Groups of 32 threads in a program."""

LONGEST_ROW = 13
"""log2 of the longest neuron that one program holds alone, padded to a power of two."""
LONG = 14
"""Kind of a tensor whose neurons are longer than that. Kinds below are log2 of the padded fan-in."""
ENTRIES = 15
"""Kind of a tensor without neurons."""
ALIGNED = 16
"""Added to a kind below `LONG` where every neuron begins at a multiple of 16 bytes."""

ENTRIES_TILE = 128 * WARPS
"""Entries of a tensor without neurons that a program takes: few, since each has a root and a division of its own."""
MOST_PIECES = 256
"""Pieces of the longest neuron that the kernel takes."""
LONGEST_FAN_IN = MOST_PIECES * TILE

# Columns of the table of tensors.
WEIGHT, AVG_SQ, STEP, SCALE, GAIN, ROWS, FAN_IN, KIND, TILES, FIRST_PIECE, FIRST_LONG_ROW = range(11)
COLUMNS = 11

SUMS = 5
"""Numbers that a program leaves of its piece of a long neuron: the sums of g², w, g, w² and wg."""


def rows_in_a_tile(width_log: int) -> int:
    """How many neurons of a padded fan-in of 2 ** width_log a program takes."""
    # No more than it has threads: each neuron takes roots and divisions of its own.
    return int(max(1, min(TILE >> width_log, 32 * WARPS)))


def kind_of(rows: int, fan_in: int, aligned: bool) -> tuple[int, int]:
    """The kind of a tensor with neurons, and how many programs it takes."""
    width_log = max(fan_in - 1, 0).bit_length()
    if width_log > LONGEST_ROW:
        return LONG, rows * math.ceil(fan_in / TILE)
    return width_log + (ALIGNED if aligned else 0), math.ceil(rows / rows_in_a_tile(width_log))


def has_kind(kinds: int, kind: int) -> bool:
    """Whether a set of kinds, held as bits, has this one."""
    return bool(kinds >> kind & 1)
