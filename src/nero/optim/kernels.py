"""Nero's step as one Triton kernel over all tensors of one dtype: w and g are read once, w is written once.

A program takes a tile: as many whole neurons of one tensor as make `TILE` entries (rows padded to a power of two), as
many entries of a tensor without neurons, or a piece of a neuron too long for one tile. Of a long neuron every program
leaves the sums over its piece; the one that comes last knows the whole and turns the neuron, whose entries are still in
the cache. No program waits for another.

The formulas are those of `nero.optim.nero.nero_update` and `nero.optim.balance.project`; what differs is rounding.
"""

import triton
import triton.language as tl

from nero.optim import tiling

# A kernel sees only those names of its module that are constants to Triton.
TILE = tl.constexpr(tiling.TILE)
LONG = tl.constexpr(tiling.LONG)
ENTRIES = tl.constexpr(tiling.ENTRIES)
ALIGNED = tl.constexpr(tiling.ALIGNED)
ENTRIES_TILE = tl.constexpr(tiling.ENTRIES_TILE)
MOST_PIECES = tl.constexpr(tiling.MOST_PIECES)
SUMS = tl.constexpr(tiling.SUMS)
COLUMNS = tl.constexpr(tiling.COLUMNS)
WEIGHT, AVG_SQ, STEP, SCALE = map(tl.constexpr, (tiling.WEIGHT, tiling.AVG_SQ, tiling.STEP, tiling.SCALE))
GAIN, ROWS, FAN_IN, KIND = map(tl.constexpr, (tiling.GAIN, tiling.ROWS, tiling.FAN_IN, tiling.KIND))
TILES, FIRST_PIECE = tl.constexpr(tiling.TILES), tl.constexpr(tiling.FIRST_PIECE)
FIRST_LONG_ROW = tl.constexpr(tiling.FIRST_LONG_ROW)
rows_in_a_tile = triton.constexpr_function(tiling.rows_in_a_tile)
has_kind = triton.constexpr_function(tiling.has_kind)


@triton.jit
def _rate(avg_sq, correction, lr, scale):
    """Factor of the gradient; zero where none was ever seen, and a NaN passes."""
    grad_norm = tl.sqrt_rn(tl.div_rn(avg_sq, correction))
    return tl.where(grad_norm == 0, 0.0, tl.div_rn(lr * scale, tl.where(grad_norm == 0, 1.0, grad_norm)))


@triton.jit
def _power_of_two(largest):
    """The power of two at or below each positive number, and one over it, both without rounding; one for zero."""
    bits = largest.to(tl.int32, bitcast=True) & 0x7F800000
    # Kept away from the ends of the range, where a number or its inverse would not be normal.
    bits = tl.minimum(tl.maximum(bits, 0x00800000), 0x7E000000)
    unit = tl.where(largest == 0, 1.0, bits.to(tl.float32, bitcast=True))
    inverse = tl.where(largest == 0, 1.0, (0x7F000000 - bits).to(tl.float32, bitcast=True))
    return unit, inverse


@triton.jit
def _project(rows, inside, fan_in, tolerance, MEAN: tl.constexpr, NORM: tl.constexpr):
    """`balance.project` of a tile [rows, padded fan-in] whose entries outside are zero."""
    unit, inverse = _power_of_two(tl.max(tl.abs(rows), 1))
    scaled = rows * inverse[:, None]
    # An infinite entry has no unit: the row becomes NaN, as it does elsewhere.
    size = tl.sqrt_rn(tl.sum(scaled * scaled, 1))
    is_unit = (tl.abs(unit * size - 1) <= tolerance) | (size == 0)
    over_size = tl.div_rn(1.0, tl.where(size == 0, 1.0, size))
    if MEAN:
        count = fan_in.to(tl.float32)
        row_mean = tl.div_rn(tl.sum(scaled, 1), count)
        centred = tl.where(inside, scaled - row_mean[:, None], 0.0)
        centred = tl.where(inside, centred - tl.div_rn(tl.sum(centred, 1), count)[:, None], 0.0)
        rest = tl.sqrt_rn(tl.sum(centred * centred, 1))
        is_centred = tl.abs(row_mean) * tl.sqrt_rn(count) <= tolerance * size
        vanishes = (rest <= tolerance * size) | (is_unit & (rest <= 2 * tolerance * size))
        if NORM:
            settled = is_unit & (is_centred | vanishes)
            of_scaled = tl.where(settled, unit, tl.where(vanishes, over_size, 0.0))
            of_centred = tl.where(settled | vanishes, 0.0, tl.div_rn(1.0, tl.where(rest == 0, 1.0, rest)))
        else:
            settled = is_centred | vanishes
            of_scaled = tl.where(settled, unit, 0.0)
            of_centred = tl.where(settled, 0.0, unit)
        return centred * of_centred[:, None] + scaled * of_scaled[:, None]
    else:
        return scaled * tl.where(is_unit, unit, over_size)[:, None]


@triton.jit
def _short_rows(
    weight, grad, avg_sq, tile, rows, fan_in, scale, correction, lr, beta, rest_of_beta, sign, tolerance,
    WIDTH_LOG: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One step of a tile of whole neurons."""
    WIDTH: tl.constexpr = 1 << WIDTH_LOG
    HEIGHT: tl.constexpr = rows_in_a_tile(WIDTH_LOG)
    row = tile * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < fan_in)[None, :]
    place = row.to(tl.int64)[:, None] * fan_in + column[None, :]
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    g = sign * tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    average = tl.load(avg_sq + row, mask=row < rows, other=0.0)
    average = beta * average + rest_of_beta * tl.sum(g * g, 1)
    tl.store(avg_sq + row, average, mask=row < rows)
    w -= _rate(average, correction, lr, scale)[:, None] * g
    if MEAN or NORM:
        w = _project(w, inside, fan_in, tolerance, MEAN, NORM)
    tl.store(weight + place, w.to(weight.dtype.element_ty), mask=inside)


@triton.jit
def _entries(
    weight, grad, avg_sq, gain, tile, count, scale, correction, lr, beta, rest_of_beta, sign, penalty
):  # fmt: skip
    """One step of a tile of a tensor without neurons: every entry is its own."""
    place = tile.to(tl.int64) * ENTRIES_TILE + tl.arange(0, ENTRIES_TILE)
    inside = place < count
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    g = sign * tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    g += penalty * gain * (w - 1)
    average = tl.load(avg_sq + place, mask=inside, other=0.0)
    average = beta * average + rest_of_beta * (g * g)
    tl.store(avg_sq + place, average, mask=inside)
    w -= _rate(average, correction, lr, scale) * g
    tl.store(weight + place, w.to(weight.dtype.element_ty), mask=inside)


@triton.jit
def _shift_and_factor(rate, gg, sw, sg, ww, wg, fan_in, tolerance, MEAN: tl.constexpr, NORM: tl.constexpr):
    """What `balance.project` subtracts from w - rate g and multiplies it by, from sums over the neuron."""
    squares = tl.maximum(ww - 2 * rate * wg + rate * rate * gg, 0.0, propagate_nan=tl.PropagateNan.ALL)
    row_mean = (sw - rate * sg) / fan_in
    variance = tl.maximum(squares - row_mean * row_mean * fan_in, 0.0, propagate_nan=tl.PropagateNan.ALL)
    size = tl.sqrt(squares)
    rest = tl.sqrt(variance)
    is_unit = (tl.abs(size - 1) <= tolerance) | (size == 0)
    is_centred = tl.abs(row_mean) * tl.sqrt(fan_in.to(tl.float64)) <= tolerance * size
    vanishes = (rest <= tolerance * size) | (is_unit & (rest <= 2 * tolerance * size))
    over_size = 1.0 / tl.where(size == 0, 1.0, size)
    none = tl.full((), 0.0, tl.float64)
    one = tl.full((), 1.0, tl.float64)
    if MEAN and NORM:
        settled = is_unit & (is_centred | vanishes)
        shift = tl.where(settled | vanishes, none, row_mean)
        factor = tl.where(vanishes, over_size, 1.0 / tl.where(rest == 0, 1.0, rest))
        factor = tl.where(settled, one, factor)
    elif MEAN:
        shift = tl.where(is_centred | vanishes, none, row_mean)
        factor = one
    elif NORM:
        shift = none
        factor = tl.where(is_unit, one, over_size)
    else:
        shift = none
        factor = one
    return shift, factor


@triton.jit
def _long_row(
    weight, grad, avg_sq, sums, arrivals, piece, fan_in, scale, correction, lr, beta, rest_of_beta, sign, tolerance,
    MEAN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """A piece of a neuron that has several. The sums are in float64, where a difference of two still has its digits."""
    pieces = tl.cdiv(fan_in, TILE)
    row = (piece // pieces).to(tl.int64)
    weight += row * fan_in
    grad += row * fan_in
    column = (piece % pieces) * TILE + tl.arange(0, TILE)
    w = tl.load(weight + column, mask=column < fan_in, other=0.0).to(tl.float64)
    g = sign * tl.load(grad + column, mask=column < fan_in, other=0.0).to(tl.float64)
    own = sums + piece.to(tl.int64) * SUMS
    tl.store(own, tl.sum(g * g, 0))
    tl.store(own + 1, tl.sum(w, 0))
    tl.store(own + 2, tl.sum(g, 0))
    tl.store(own + 3, tl.sum(w * w, 0))
    tl.store(own + 4, tl.sum(w * g, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrivals + row, 1, sem="acq_rel") == pieces - 1:
        tl.store(arrivals + row, 0)
        index = tl.arange(0, MOST_PIECES)
        all_of = sums + (row * pieces + index) * SUMS
        known = index < pieces
        gg = tl.sum(tl.load(all_of, mask=known, other=0.0, cache_modifier=".cg"), 0)
        sw = tl.sum(tl.load(all_of + 1, mask=known, other=0.0, cache_modifier=".cg"), 0)
        sg = tl.sum(tl.load(all_of + 2, mask=known, other=0.0, cache_modifier=".cg"), 0)
        ww = tl.sum(tl.load(all_of + 3, mask=known, other=0.0, cache_modifier=".cg"), 0)
        wg = tl.sum(tl.load(all_of + 4, mask=known, other=0.0, cache_modifier=".cg"), 0)

        average = beta * tl.load(avg_sq + row) + rest_of_beta * gg.to(tl.float32)
        tl.store(avg_sq + row, average)
        rate = _rate(average, correction, lr, scale).to(tl.float64)
        shift, factor = _shift_and_factor(rate, gg, sw, sg, ww, wg, fan_in, tolerance, MEAN, NORM)
        done = pieces * 0
        while done < pieces:
            column = done * TILE + tl.arange(0, TILE)
            w = tl.load(weight + column, mask=column < fan_in, other=0.0).to(tl.float64)
            g = sign * tl.load(grad + column, mask=column < fan_in, other=0.0).to(tl.float64)
            w = (w - rate * g - shift) * factor
            # By way of float32, as everywhere: bfloat16 is rounded from there.
            tl.store(weight + column, w.to(tl.float32).to(weight.dtype.element_ty), mask=column < fan_in)
            done += 1


@triton.jit
def nero_kernel(
    tiles, tensors, grads, arrivals, long_arrivals, sums,
    lr, beta, rest_of_beta, log_beta, sign, penalty, tolerance,
    DTYPE: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """One step of every tensor that has a gradient.

    tiles:         [programs, 2]: number of a tensor, number of the tile in it
    tensors:       [tensors, COLUMNS]: columns as in `tiling`
    grads:         [tensors]: addresses of the gradients, 0 for none
    arrivals:      [tensors]: programs of this step that have read the step count; zero between steps
    long_arrivals: one such count for every long neuron; sums: SUMS numbers for each of their pieces
    sign:          -1 to climb; penalty: of gains, see `Nero`
    KINDS:         the set of kinds among the tensors, as bits, so that only their code is compiled
    """
    PER_16_BYTES: tl.constexpr = 128 // DTYPE.primitive_bitwidth
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    address = tl.load(grads + tensor)
    if address != 0:
        record = tensors + tensor * COLUMNS
        kind = tl.load(record + KIND)
        rows = tl.load(record + ROWS)
        fan_in = tl.load(record + FAN_IN)
        weight = tl.load(record + WEIGHT).to(tl.pointer_type(DTYPE))
        grad = address.to(tl.pointer_type(DTYPE))
        avg_sq = tl.load(record + AVG_SQ).to(tl.pointer_type(tl.float32))
        scale = tl.load(tl.load(record + SCALE).to(tl.pointer_type(tl.float32)))
        step_count = tl.load(record + STEP).to(tl.pointer_type(tl.float32))
        step = tl.load(step_count) + 1
        # In float64, since 1 - 0.999 keeps only four digits in float32.
        correction = (1 - tl.exp(step.to(tl.float64) * log_beta)).to(tl.float32)
        eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr

        for kind_of in tl.static_range(0, LONG):
            if has_kind(KINDS, kind_of):
                if kind == kind_of:
                    _short_rows(
                        weight, grad, avg_sq, tile, rows, fan_in, scale, correction,
                        eta, beta, rest_of_beta, sign, tolerance, kind_of, MEAN, NORM,
                    )  # fmt: skip
            if has_kind(KINDS, kind_of + ALIGNED):
                if kind == kind_of + ALIGNED:
                    # Values of their own: what is said of them must not be taken for true of the others.
                    aligned_weight = (tl.load(record + WEIGHT) // 16 * 16).to(tl.pointer_type(DTYPE))
                    aligned_grad = (address // 16 * 16).to(tl.pointer_type(DTYPE))
                    _short_rows(
                        tl.multiple_of(aligned_weight, 16), tl.multiple_of(aligned_grad, 16), avg_sq, tile, rows,
                        fan_in // PER_16_BYTES * PER_16_BYTES, scale, correction,
                        eta, beta, rest_of_beta, sign, tolerance, kind_of, MEAN, NORM,
                    )  # fmt: skip
        if has_kind(KINDS, LONG):
            if kind == LONG:
                _long_row(
                    weight, grad, avg_sq, sums + tl.load(record + FIRST_PIECE) * SUMS,
                    long_arrivals + tl.load(record + FIRST_LONG_ROW), tile, fan_in, scale, correction,
                    eta, beta, rest_of_beta, sign, tolerance, MEAN, NORM,
                )  # fmt: skip
        if has_kind(KINDS, ENTRIES):
            if kind == ENTRIES:
                gain = tl.load(tl.load(record + GAIN).to(tl.pointer_type(tl.float32)))
                _entries(
                    weight, grad, avg_sq, gain, tile, rows, scale, correction,
                    eta, beta, rest_of_beta, sign, penalty,
                )  # fmt: skip

        # The program that comes last has seen all others read the old count, and may write the new one.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + tensor, 1, sem="relaxed") == tl.load(record + TILES) - 1:
            tl.store(step_count, step)
            tl.store(arrivals + tensor, 0)
