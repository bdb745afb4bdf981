"""Madam's step as one Triton kernel over all tensors of one dtype.

The formulas are those of `nero.optim.Madam`, up to rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton.entry_kernels import (
    AVERAGE,
    COLUMNS,
    OTHER,
    STEP,
    TILES,
    WEIGHT,
    entries,
    is_full,
    read,
    within,
    write,
)
from nero.optim.triton.nero_kernels import correction


@triton.jit
def _step_tile(
    record, address, tile, eta, root, bound, beta, rest_of_beta, g_bound, sign,
    DTYPE: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    inside = within(record, tile, TILE)
    weights = entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, FULL)
    averages = entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL)
    w = read(weights, inside, FULL)
    g = sign * read(entries(address, tile, DTYPE, TILE, FULL), inside, FULL, "evict_first")
    average = beta * read(averages, inside, FULL) + rest_of_beta * (g * g)
    write(averages, average, inside, FULL)
    # Not tl.clamp, which would drop a NaN. Where no gradient was ever seen, this is 0/1.
    relative = tl.div_rn(g * root, tl.sqrt_rn(tl.where(average == 0, 1.0, average)))
    relative = tl.where(relative > g_bound, g_bound, tl.where(relative < -g_bound, -g_bound, relative))
    moved = w * tl.exp(tl.where(w < 0, eta, tl.where(w == 0, 0.0, -eta)) * relative)
    moved = tl.where(moved > bound, bound, tl.where(moved < -bound, -bound, moved))
    write(weights, tl.where(average == 0, w, moved), inside, FULL)


@triton.jit
def madam_kernel(
    tiles, tensors, grads, arrivals, lr, beta, rest_of_beta, log_beta, g_bound, sign,
    DTYPE: tl.constexpr, TILE: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """Step every tensor that has a gradient.

    tiles:     [programs, 2]: index of a tensor, index of the tile in it
    tensors:   [tensors, COLUMNS]; OTHER is the largest absolute weight
    grads:     [tensors]: addresses of the gradients, 0 for none
    arrivals:  [tensors]: programs of this step that have read the step count; zero between steps
    sign:      -1 to maximise
    """
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    address = tl.load(grads + tensor)
    if address != 0:
        record = tensors + tensor * COLUMNS
        step_count = tl.load(record + STEP).to(tl.pointer_type(tl.float32))
        step = tl.load(step_count) + 1
        root = tl.sqrt_rn(correction(step, log_beta))
        bound = tl.load(tl.load(record + OTHER).to(tl.pointer_type(tl.float32)))
        eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr
        full = is_full(record, tile, TILE)
        for FULL in tl.static_range(0, 2):
            if full == FULL:
                _step_tile(
                    record, address, tile, eta, root, bound, beta, rest_of_beta, g_bound, sign, DTYPE, TILE, FULL
                )
        # The last program to arrive knows that all others have read the old count, and writes the new one.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + tensor, 1, sem="relaxed") == tl.load(record + TILES) - 1:
            tl.store(step_count, step)
            tl.store(arrivals + tensor, 0)
