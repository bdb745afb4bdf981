"""Nero's step as one Triton kernel over all tensors of one dtype: w and g are read once, w is written once.

A program takes a tile: whole neurons of one tensor (rows padded to a power of two) with `TILE` entries in all, entries
of a tensor without neurons, or a piece of a neuron too long for one tile. For a long neuron every program stores the
sums over its piece; the last one to finish adds them up and turns the neuron, whose entries are still in the cache. No
program waits for another.

The formulas are those of `nero.optim.nero.nero_update` and `nero.optim.balance.project`, up to rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton import nero_launch as launch

# A kernel sees only those globals that are constexpr.
LONG, ENTRIES, ALIGNED = map(tl.constexpr, (launch.LONG, launch.ENTRIES, launch.ALIGNED))
LONG_TILE, ENTRIES_TILE = tl.constexpr(launch.LONG_TILE), tl.constexpr(launch.ENTRIES_TILE)
MOST_PIECES, SUMS = tl.constexpr(launch.MOST_PIECES), tl.constexpr(launch.SUMS)
# Columns of the table of tensors, in the order of `nero_launch`.
WEIGHT, AVG_SQ, STEP, SCALE, GAIN, LENGTH, ROWS, FAN_IN, KIND, TILES, FIRST_PIECE, FIRST_LONG_ROW = map(
    tl.constexpr, range(12)
)
COLUMNS = tl.constexpr(launch.COLUMNS)
rows_in_a_tile = triton.constexpr_function(launch.rows_in_a_tile)
has_kind = triton.constexpr_function(launch.has_kind)


@triton.jit
def correction(step, log_beta):
    """1 - beta^step, by its series where the difference would lose digits: 1 - 0.999 keeps four in float32."""
    x = step * log_beta
    series = 1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8)))
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * series)))
    return tl.where(x > -0.5, series, 1 - tl.exp(x))


@triton.jit
def _rate(avg_sq, step, scale, eta, log_beta):
    """Factor of the gradient; zero where no gradient was ever seen. A NaN is kept."""
    pace = eta * scale * tl.sqrt_rn(correction(step, log_beta))
    return tl.where(avg_sq == 0, 0.0, tl.div_rn(pace, tl.sqrt_rn(tl.where(avg_sq == 0, 1.0, avg_sq))))


@triton.jit
def _power_of_two(largest):
    """The power of two at or below each positive number, and one over it, both without rounding; one for zero."""
    bits = largest.to(tl.int32, bitcast=True) & 0x7F800000
    # Clamped to where a number and its inverse are both normal.
    bits = tl.minimum(tl.maximum(bits, 0x00800000), 0x7E000000)
    unit = tl.where(largest == 0, 1.0, bits.to(tl.float32, bitcast=True))
    inverse = tl.where(largest == 0, 1.0, (0x7F000000 - bits).to(tl.float32, bitcast=True))
    return unit, inverse


@triton.jit
def _rounded(values, dtype: tl.constexpr, seed, offset, STOCHASTIC: tl.constexpr):
    """float32 in the dtype of a tensor; to bfloat16 on request up or down with the probabilities of the nearness."""
    if STOCHASTIC:
        # A hash of the entry's offset: two rounds of multiplying and shifting, which are cheap beside a generator.
        noise = (offset.to(tl.int32) ^ seed).to(tl.uint32)
        noise = (noise ^ (noise >> 16)) * 0x7FEB352D
        noise = (noise ^ (noise >> 15)) * 0x846CA68B
        bits = values.to(tl.int32, bitcast=True)
        # Infinity and NaN stay as they are.
        moved = tl.where((bits & 0x7F800000) == 0x7F800000, bits, bits + (noise >> 16).to(tl.int32))
        values = (moved & -65536).to(tl.float32, bitcast=True)
    return values.to(dtype)


@triton.jit
def _mean_and_factor(
    size, off_centre, rest, unit, wanted, tolerance,
    LENGTHS: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Whether `balance.project` keeps a neuron's mean (if MEAN), and the factor by which it multiplies the neuron.

    All lengths are squared, of the neuron divided by `unit`: `size` of the neuron, `off_centre` of its part along the
    vector of ones, `rest` of the remainder. `wanted` is the norm that it should have if LENGTHS, the largest one where
    negative.
    """
    near_one = (1 + tolerance) * (1 + tolerance)
    tolerance *= tolerance
    length = unit * unit * size
    if LENGTHS:
        square = wanted * wanted
        is_unit = ((length <= square * near_one) & ((wanted < 0) | (length * near_one >= square))) | (size == 0)
    else:
        is_unit = ((length <= near_one) & (length * near_one >= 1)) | (size == 0)
    keeps_mean = is_unit
    settled = is_unit
    of_what = tl.where(size == 0, 1.0, size)
    if MEAN:
        vanishes = (rest <= tolerance * size) | (is_unit & (rest <= 4 * tolerance * size))
        settled = ((off_centre <= tolerance * size) | vanishes) & (is_unit | (not NORM))
        keeps_mean = settled | vanishes
        of_what = tl.where(keeps_mean, of_what, rest)
    factor = unit
    if NORM:
        factor = tl.rsqrt(of_what)
        if LENGTHS:
            factor *= tl.abs(wanted)
            settled |= (wanted < 0) & (factor > unit)
        factor = tl.where(settled, unit, factor)
    return keeps_mean, factor


@triton.jit
def _project(rows, inside, fan_in, wanted, tolerance, LENGTHS: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr):
    """`balance.project` of a tile [neurons, padded fan-in] that is zero outside."""
    unit, inverse = _power_of_two(tl.max(tl.abs(rows), 1))
    count = fan_in.to(tl.float32)
    total = tl.sum(rows, 1)
    scaled = rows * inverse[:, None]
    if MEAN:
        row_mean = total * inverse / count
        centred = tl.where(inside, scaled - row_mean[:, None], 0.0)
        # The rounding error of the first subtraction, which can exceed a small residual.
        left = tl.sum(centred, 1)
        squares = tl.sum(centred * centred, 1)
        size = squares + row_mean * (2 * left + count * row_mean)
        left = left / count
        rest = squares - count * left * left
        off_centre = row_mean * row_mean * count
        keeps_mean, factor = _mean_and_factor(size, off_centre, rest, unit, wanted, tolerance, LENGTHS, MEAN, NORM)
        row_mean = tl.where(keeps_mean, 0.0, row_mean)
        left = tl.where(keeps_mean, 0.0, left)
        return (scaled - row_mean[:, None] - left[:, None]) * factor[:, None]
    else:
        size = tl.sum(scaled * scaled, 1)
        _, factor = _mean_and_factor(size, size, size, unit, wanted, tolerance, LENGTHS, MEAN, NORM)
        return scaled * factor[:, None]


@triton.jit
def _short_rows(
    weight, grad, avg_sq, lengths, tile, rows, fan_in, step, scale, eta, beta, rest_of_beta, log_beta, sign, tolerance,
    seed, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, LENGTHS: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr,
    STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """Step a tile of whole neurons."""
    first = tile.to(tl.int64) * HEIGHT
    weight += first * fan_in
    grad += first * fan_in
    avg_sq += first
    row = tl.arange(0, HEIGHT)
    column = tl.arange(0, WIDTH)
    rows -= first
    inside = (row < rows)[:, None] & (column < fan_in)[None, :]
    offset = row[:, None] * fan_in.to(tl.int32) + column[None, :]
    g = sign * tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + offset, mask=inside, other=0.0).to(tl.float32)
    average = tl.load(avg_sq + row, mask=row < rows, other=0.0)
    average = beta * average + rest_of_beta * tl.sum(g * g, 1)
    tl.store(avg_sq + row, average, mask=row < rows)
    w -= _rate(average, step, scale, eta, log_beta)[:, None] * g
    if MEAN or NORM:
        wanted = _length(lengths, first + row, row < rows) if LENGTHS else 1.0
        w = _project(w, inside, fan_in, wanted, tolerance, LENGTHS, MEAN, NORM)
    w = _rounded(w, weight.dtype.element_ty, seed, first * fan_in + offset, STOCHASTIC)
    tl.store(weight + offset, w, mask=inside)


@triton.jit
def _length(lengths, row, inside):
    """The norms that neurons should have; one where the tensor has no table of them."""
    return tl.load(lengths.to(tl.pointer_type(tl.float32)) + row, mask=inside & (lengths != 0), other=1.0)


@triton.jit
def _entries(
    weight, grad, avg_sq, gain, tile, count, step, scale, eta, beta, rest_of_beta, log_beta, sign, penalty, seed,
    STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """Step a tile of a tensor without neurons, entry by entry."""
    offset = tile.to(tl.int64) * ENTRIES_TILE + tl.arange(0, ENTRIES_TILE)
    inside = offset < count
    w = tl.load(weight + offset, mask=inside, other=0.0).to(tl.float32)
    g = sign * tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
    g += penalty * gain * (w - 1)
    average = tl.load(avg_sq + offset, mask=inside, other=0.0)
    average = beta * average + rest_of_beta * (g * g)
    tl.store(avg_sq + offset, average, mask=inside)
    w -= _rate(average, step, scale, eta, log_beta) * g
    tl.store(weight + offset, _rounded(w, weight.dtype.element_ty, seed, offset, STOCHASTIC), mask=inside)


@triton.jit
def _long_row(
    weight, grad, avg_sq, lengths, sums, arrivals, piece, fan_in, step, scale, eta, beta, rest_of_beta, log_beta, sign,
    tolerance, seed, LENGTHS: tl.constexpr, MEAN: tl.constexpr, NORM: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """Step a piece of a long neuron. The sums are in float64, where their differences keep enough digits."""
    pieces = tl.cdiv(fan_in, LONG_TILE)
    row = (piece // pieces).to(tl.int64)
    weight += row * fan_in
    grad += row * fan_in
    column = (piece % pieces) * LONG_TILE + tl.arange(0, LONG_TILE)
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
        rate = _rate(average, step, scale, eta, log_beta).to(tl.float64)
        one = tl.full((), 1.0, tl.float64)
        # Of the turned neuron w - rate g.
        size = tl.maximum(ww - 2 * rate * wg + rate * rate * gg, 0.0, propagate_nan=tl.PropagateNan.ALL)
        shift = (sw - rate * sg) / fan_in
        off_centre = shift * shift * fan_in
        wanted = _length(lengths, row, row >= 0).to(tl.float64) if LENGTHS else one
        rest = size - off_centre
        keeps_mean, factor = _mean_and_factor(size, off_centre, rest, one, wanted, tolerance, LENGTHS, MEAN, NORM)
        shift = tl.where(keeps_mean, 0.0, shift) if MEAN else 0.0
        done = pieces * 0
        while done < pieces:
            column = done * LONG_TILE + tl.arange(0, LONG_TILE)
            w = tl.load(weight + column, mask=column < fan_in, other=0.0).to(tl.float64)
            g = sign * tl.load(grad + column, mask=column < fan_in, other=0.0).to(tl.float64)
            w = (w - rate * g - shift) * factor
            # Via float32, from which bfloat16 is rounded everywhere else.
            rounded = _rounded(w.to(tl.float32), weight.dtype.element_ty, seed, row * fan_in + column, STOCHASTIC)
            tl.store(weight + column, rounded, mask=column < fan_in)
            done += 1


@triton.jit
def nero_kernel(
    tiles, tensors, grads, arrivals, long_arrivals, sums,
    lr, beta, rest_of_beta, log_beta, sign, penalty, tolerance,
    DTYPE: tl.constexpr, TILE: tl.constexpr, KINDS: tl.constexpr, LENGTHS: tl.constexpr,
    MEAN: tl.constexpr, NORM: tl.constexpr, STOCHASTIC: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """Step every tensor that has a gradient.

    tiles:         [programs, 2]: index of a tensor, index of the tile in it
    tensors:       [tensors, COLUMNS]
    grads:         [tensors]: addresses of the gradients, 0 for none
    arrivals:      [tensors]: programs of this step that have read the step count; zero between steps
    long_arrivals: one such count for every long neuron; sums: SUMS numbers for each of their pieces
    sign:          -1 to maximise; penalty: on gains, see `Nero`
    KINDS:         bit set of the kinds among the tensors, so that only their code is compiled
    LENGTHS:       whether some neurons should have another norm than one
    STOCHASTIC:    whether to round at random
    """
    PER_16_BYTES: tl.constexpr = 128 // DTYPE.primitive_bitwidth
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    # Everything is loaded before it is used, and so that no load waits for another one without need.
    record = tensors + tensor * COLUMNS
    address = tl.load(grads + tensor)
    kind = tl.load(record + KIND)
    rows = tl.load(record + ROWS)
    fan_in = tl.load(record + FAN_IN)
    place = tl.load(record + WEIGHT)
    avg_sq = tl.load(record + AVG_SQ).to(tl.pointer_type(tl.float32))
    lengths = tl.load(record + LENGTH)
    scales = tl.load(record + SCALE).to(tl.pointer_type(tl.float32))
    step_count = tl.load(record + STEP).to(tl.pointer_type(tl.float32))
    if address != 0:
        weight = place.to(tl.pointer_type(DTYPE))
        grad = address.to(tl.pointer_type(DTYPE))
        scale = tl.load(scales)
        step = tl.load(step_count) + 1
        eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr
        seed = step.to(tl.int32) * 1_000_003 + tensor * 7919

        for kind_of in tl.static_range(0, LONG):
            if has_kind(KINDS, kind_of):
                if kind == kind_of:
                    _short_rows(
                        weight, grad, avg_sq, lengths, tile, rows, fan_in, step, scale, eta, beta, rest_of_beta,
                        log_beta, sign, tolerance, seed, rows_in_a_tile(TILE, kind_of, False), 1 << kind_of,
                        LENGTHS, MEAN, NORM, STOCHASTIC,
                    )  # fmt: skip
            if has_kind(KINDS, kind_of + ALIGNED):
                if kind == kind_of + ALIGNED:
                    # Separate values: their declared alignment must not apply to the other kinds.
                    aligned_weight = (place // 16 * 16).to(tl.pointer_type(DTYPE))
                    aligned_grad = (address // 16 * 16).to(tl.pointer_type(DTYPE))
                    _short_rows(
                        tl.multiple_of(aligned_weight, 16), tl.multiple_of(aligned_grad, 16), avg_sq, lengths, tile,
                        rows, fan_in // PER_16_BYTES * PER_16_BYTES, step, scale, eta, beta, rest_of_beta, log_beta,
                        sign, tolerance, seed, rows_in_a_tile(TILE, kind_of, True), 1 << kind_of,
                        LENGTHS, MEAN, NORM, STOCHASTIC,
                    )  # fmt: skip
        if has_kind(KINDS, LONG):
            if kind == LONG:
                _long_row(
                    weight, grad, avg_sq, lengths,
                    sums + tl.load(record + FIRST_PIECE) * SUMS, long_arrivals + tl.load(record + FIRST_LONG_ROW),
                    tile, fan_in, step, scale, eta, beta, rest_of_beta, log_beta, sign, tolerance, seed,
                    LENGTHS, MEAN, NORM, STOCHASTIC,
                )  # fmt: skip
        if has_kind(KINDS, ENTRIES):
            if kind == ENTRIES:
                gain = tl.load(tl.load(record + GAIN).to(tl.pointer_type(tl.float32)))
                _entries(
                    weight, grad, avg_sq, gain, tile, rows, step, scale, eta, beta, rest_of_beta, log_beta, sign,
                    penalty, seed, STOCHASTIC,
                )  # fmt: skip

        # The last program to arrive knows that all others have read the old count, and writes the new one.
        tl.debug_barrier()
        if tl.atomic_add(arrivals + tensor, 1, sem="relaxed") == tl.load(record + TILES) - 1:
            tl.store(step_count, step)
            tl.store(arrivals + tensor, 0)
