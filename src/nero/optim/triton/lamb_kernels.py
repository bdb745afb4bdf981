"""LAMB's step as one Triton kernel over all tensors of one dtype, with two passes over the entries.

The first pass updates the averages and adds up squares; the second moves the weights. The programs take items from a
list in which the second pass over a tensor comes soon after its first, while its entries are still in the cache. A
program of the second pass waits for those of the first. It cannot wait forever: items are handed out in the order of
the list, so that all those before its own are held by programs that run.

The formulas are those of `nero.optim.LAMB`, up to rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton.entry_kernels import (
    AVERAGE,
    COLUMNS,
    FIRST_TILE,
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

SUMMED = tl.constexpr(512)  # tiles whose sums are added at a time


@triton.jit
def _adam_step(exp_avg, exp_avg_sq, step, log_beta1, log_beta2, eps, DEBIAS: tl.constexpr):
    """Adam's step, from averages that include the gradient."""
    if DEBIAS:
        exp_avg = tl.div_rn(exp_avg, correction(step, log_beta1))
        exp_avg_sq = tl.div_rn(exp_avg_sq, correction(step, log_beta2))
    return tl.div_rn(exp_avg, tl.sqrt_rn(exp_avg_sq) + eps)


@triton.jit
def _rate(weight_square, step_square, lr, clamp_value, LR_IN_TENSOR: tl.constexpr):
    """The factor of Adam's step, lr times r in the docstring of `nero.optim.LAMB`, from two squared norms."""
    weight = tl.sqrt_rn(weight_square.to(tl.float32))
    step = tl.sqrt_rn(step_square.to(tl.float32))
    # Not tl.minimum, which would drop a NaN.
    ratio = tl.div_rn(tl.where(weight > clamp_value, clamp_value, weight), tl.where(step == 0, 1.0, step))
    eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr
    return eta * tl.where((weight == 0) | (step == 0), 1.0, ratio)


@triton.jit
def add_up(sums, tiles):
    """The sum in float64 of every second number from `sums` on, one for each tile."""
    total = tl.full((), 0.0, tl.float64)
    done = tiles * 0
    while done < tiles:
        tile = done + tl.arange(0, SUMMED)
        total += tl.sum(tl.load(sums + 2 * tile, mask=tile < tiles, other=0.0, cache_modifier=".cg").to(tl.float64), 0)
        done += SUMMED
    return total


@triton.jit
def _first_pass(
    record, address, tile, tiles, step, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    sums, totals, arrivals, lr, clamp_value,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr,
    FAR: tl.constexpr, WHOLE: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """Update the averages of a tile, and add up its squares; if it is the tensor's only tile, move its weights too."""
    inside = within(record, tile, TILE)
    weights = entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, FULL)
    squares = entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL)
    averages = entries(tl.load(record + OTHER), tile, tl.float32, TILE, FULL)
    ONCE: tl.constexpr = "evict_first" if MOMENTUM or FAR else ""
    TWICE: tl.constexpr = "evict_first" if FAR else ""
    g = sign * read(entries(address, tile, DTYPE, TILE, FULL), inside, FULL, ONCE)
    w = read(weights, inside, FULL, TWICE)
    v = beta2 * read(squares, inside, FULL, TWICE) + rest_of_beta2 * (g * g)
    m = beta1 * read(averages, inside, FULL, TWICE) + rest_of_beta1 * g if MOMENTUM else g
    write(squares, v, inside, FULL, TWICE)
    if MOMENTUM:
        write(averages, m, inside, FULL, TWICE)
    a = _adam_step(m, v, step, log_beta1, log_beta2, eps, DEBIAS)
    weight_square = tl.sum(w * w, 0)
    step_square = tl.sum(a * a, 0)
    if WHOLE & (tiles == 1):
        w -= _rate(weight_square, step_square, lr, clamp_value, LR_IN_TENSOR) * a
        write(weights, w, inside, FULL)
        tl.store(tl.load(record + STEP).to(tl.pointer_type(tl.float32)), step)
    else:
        all_sums = sums + 2 * tl.load(record + FIRST_TILE)
        tl.store(all_sums + 2 * tile, weight_square)
        tl.store(all_sums + 2 * tile + 1, step_square)
        tl.debug_barrier()
        if tl.atomic_add(arrivals, 1, sem="acq_rel") == tiles - 1:
            # The last one adds up all tiles, in an order that does not depend on which program this is.
            tl.store(totals, add_up(all_sums, tiles))
            tl.store(totals + 1, add_up(all_sums + 1, tiles))
            tl.debug_barrier()
            tl.atomic_add(arrivals, 1, sem="release")


@triton.jit
def _second_pass(
    record, address, tile, tiles, step, rate, log_beta1, log_beta2, eps, sign, arrivals,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Move the weights of a tile."""
    inside = within(record, tile, TILE)
    weights = entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, FULL)
    squares = entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL)
    averages = entries(tl.load(record + OTHER), tile, tl.float32, TILE, FULL)
    w = read(weights, inside, FULL)
    v = read(squares, inside, FULL, "evict_first")
    if MOMENTUM:
        m = read(averages, inside, FULL, "evict_first")
    else:
        m = sign * read(entries(address, tile, DTYPE, TILE, FULL), inside, FULL, "evict_first")
    w -= rate * _adam_step(m, v, step, log_beta1, log_beta2, eps, DEBIAS)
    write(weights, w, inside, FULL)
    tl.debug_barrier()
    if tl.atomic_add(arrivals, 1, sem="relaxed") == 2 * tiles:
        tl.store(arrivals, 0)
        tl.store(tl.load(record + STEP).to(tl.pointer_type(tl.float32)), step)


@triton.jit
def _do_item(
    items, number, tensors, grads, sums, totals, arrivals,
    lr, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, clamp_value, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, NEAR: tl.constexpr,
    WHOLE: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(items + 2 * number)
    code = tl.load(items + 2 * number + 1)
    address = tl.load(grads + tensor)
    if address != 0:
        record = tensors + tensor * COLUMNS
        arrivals += 1 + tensor
        totals += 2 * tensor
        tiles = tl.load(record + TILES)
        step = tl.load(tl.load(record + STEP).to(tl.pointer_type(tl.float32))) + 1
        if code >= 0:
            kind = is_full(record, code, TILE).to(tl.int32)
            if NEAR > 0:
                kind += kind * (tiles - code > NEAR).to(tl.int32)
            for KIND in tl.static_range(0, 3 if NEAR > 0 else 2):
                if kind == KIND:
                    _first_pass(
                        record, address, code, tiles, step, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1,
                        log_beta2, eps, sign, sums, totals, arrivals, lr, clamp_value,
                        DTYPE, MOMENTUM, DEBIAS, TILE, KIND > 0, KIND > 1, WHOLE, LR_IN_TENSOR,
                    )  # fmt: skip
        else:
            while tl.atomic_add(arrivals, 0, sem="acquire") <= tiles:
                pass
            weight_square = tl.load(totals, cache_modifier=".cg")
            step_square = tl.load(totals + 1, cache_modifier=".cg")
            rate = _rate(weight_square, step_square, lr, clamp_value, LR_IN_TENSOR)
            tile = -1 - code
            full = is_full(record, tile, TILE)
            for FULL in tl.static_range(0, 2):
                if full == FULL:
                    _second_pass(
                        record, address, tile, tiles, step, rate, log_beta1, log_beta2, eps, sign, arrivals,
                        DTYPE, MOMENTUM, DEBIAS, TILE, FULL,
                    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def lamb_kernel(
    items, tensors, grads, sums, totals, arrivals,
    lr, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, clamp_value, sign, count,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, NEAR: tl.constexpr,
    WHOLE: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """Step every tensor that has a gradient.

    items:     [count, 2]: index of a tensor; t >= 0 for the first pass over its tile t, -1 - t for the second
    tensors:   [tensors, COLUMNS]; AVERAGE is that of squares, OTHER the average that Adam steps along
    grads:     [tensors]: addresses of the gradients, 0 for none
    sums:      [tiles, 2]: of each tile, the sums of w² and of Adam's step squared
    totals:    [tensors, 2]: those of all tiles, float64
    arrivals:  [1 + tensors]: how many items have been taken; then for each tensor, how many programs of its first pass
               are done, one more once its totals are known, and those of its second pass. All zero between steps.
    sign:      -1 to maximise
    NEAR:      tiles at the end of a tensor that the cache can keep until the second pass; 0 for all
    WHOLE:     a tensor of a single tile has no item for a second pass
    """
    number = tl.atomic_add(arrivals, 1, sem="relaxed")
    while number < count:
        _do_item(
            items, number, tensors, grads, sums, totals, arrivals,
            lr, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, clamp_value, sign,
            DTYPE, MOMENTUM, DEBIAS, TILE, NEAR, WHOLE, LR_IN_TENSOR,
        )  # fmt: skip
        number = tl.atomic_add(arrivals, 1, sem="relaxed")
    if number == count + tl.num_programs(0) - 1:
        tl.store(arrivals, 0)  # every program has been told that there is nothing left
