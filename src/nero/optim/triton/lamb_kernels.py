"""LAMB's step as three Triton kernels over all tensors of one dtype, with two passes over the entries.

The first updates the averages and stores, for each tile, sums of squares; the second computes each tensor's rate from
them; the third moves the weights. The formulas are those of `nero.optim.LAMB`, up to rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton.nero_kernels import correction

TILE = tl.constexpr(4096)  # entries per program
WARPS = 8
SUMMED = tl.constexpr(1024)  # tiles whose sums are added at a time

# Columns of the table of tensors.
WEIGHT, EXP_AVG, EXP_AVG_SQ, STEP, COUNT, ALIGNED, FIRST_TILE, TILES = map(tl.constexpr, range(8))
COLUMNS = tl.constexpr(8)


@triton.jit
def _pointer(address, dtype: tl.constexpr, ALIGN: tl.constexpr):
    """A pointer to an address; declared a multiple of 16 bytes where it is, so that 16 are loaded at a time."""
    if ALIGN:
        return tl.multiple_of((address // 16 * 16).to(tl.pointer_type(dtype)), 16)
    else:
        return address.to(tl.pointer_type(dtype))


@triton.jit
def _offsets(record, tile, DTYPE: tl.constexpr, ALIGN: tl.constexpr):
    """The offsets of a tile's entries in their tensor, and which of them are within it."""
    PER_16_BYTES: tl.constexpr = 128 // DTYPE.primitive_bitwidth
    count = tl.load(record + COUNT)
    if ALIGN:
        count = count // PER_16_BYTES * PER_16_BYTES
    offset = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    return offset, offset < count


@triton.jit
def _adam_step(record, exp_avg, exp_avg_sq, log_beta1, log_beta2, eps, DEBIAS: tl.constexpr):
    """Adam's step, from averages that include the gradient."""
    if DEBIAS:
        step = tl.load(tl.load(record + STEP).to(tl.pointer_type(tl.float32)))
        exp_avg = tl.div_rn(exp_avg, correction(step, log_beta1))
        exp_avg_sq = tl.div_rn(exp_avg_sq, correction(step, log_beta2))
    return tl.div_rn(exp_avg, tl.sqrt_rn(exp_avg_sq) + eps)


@triton.jit
def _average_tile(
    record, address, tile, sums, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    offset, inside = _offsets(record, tile, DTYPE, ALIGN)
    w = tl.load(_pointer(tl.load(record + WEIGHT), DTYPE, ALIGN) + offset, mask=inside, other=0.0).to(tl.float32)
    g = sign * tl.load(_pointer(address, DTYPE, ALIGN) + offset, mask=inside, other=0.0).to(tl.float32)
    squares = _pointer(tl.load(record + EXP_AVG_SQ), tl.float32, ALIGN) + offset
    v = beta2 * tl.load(squares, mask=inside, other=0.0) + rest_of_beta2 * (g * g)
    tl.store(squares, v, mask=inside)
    m = g
    if MOMENTUM:
        averages = _pointer(tl.load(record + EXP_AVG), tl.float32, ALIGN) + offset
        m = beta1 * tl.load(averages, mask=inside, other=0.0) + rest_of_beta1 * g
        tl.store(averages, m, mask=inside)
    a = _adam_step(record, m, v, log_beta1, log_beta2, eps, DEBIAS)
    tl.store(sums, tl.sum(w * w, 0))
    tl.store(sums + 1, tl.sum(a * a, 0))


@triton.jit
def average_kernel(
    tiles, tensors, grads, sums, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr,
):  # fmt: skip
    """Update the averages of tensors with a gradient; store for each tile the sums of w² and of Adam's step squared.

    tiles:    [programs, 2]: index of a tensor, index of the tile in it; those of a tensor are consecutive
    tensors:  [tensors, COLUMNS]
    grads:    [tensors]: addresses of the gradients, 0 for none
    sums:     [programs, 2]
    sign:     -1 to maximise
    """
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    record = tensors + tensor * COLUMNS
    address = tl.load(grads + tensor)
    aligned = tl.load(record + ALIGNED)
    for ALIGN in tl.static_range(0, 2):
        if (address != 0) & (aligned == ALIGN):
            _average_tile(
                record, address, tile, sums + 2 * tl.program_id(0), beta1, rest_of_beta1, beta2,
                rest_of_beta2, log_beta1, log_beta2, eps, sign, DTYPE, MOMENTUM, DEBIAS, ALIGN,
            )  # fmt: skip


@triton.jit
def rate_kernel(tensors, sums, rates, lr, clamp_value, LR_IN_TENSOR: tl.constexpr):
    """The factor of each tensor's Adam step: lr times r in the docstring of `nero.optim.LAMB`."""
    record = tensors + tl.program_id(0) * COLUMNS
    tiles = tl.load(record + TILES)
    own = sums + 2 * tl.load(record + FIRST_TILE)
    weight = tl.full((), 0.0, tl.float64)
    step = tl.full((), 0.0, tl.float64)
    done = tiles * 0
    while done < tiles:
        tile = done + tl.arange(0, SUMMED)
        weight += tl.sum(tl.load(own + 2 * tile, mask=tile < tiles, other=0.0).to(tl.float64), 0)
        step += tl.sum(tl.load(own + 2 * tile + 1, mask=tile < tiles, other=0.0).to(tl.float64), 0)
        done += SUMMED
    weight = tl.sqrt_rn(weight.to(tl.float32))
    step = tl.sqrt_rn(step.to(tl.float32))
    # Not tl.minimum, which would drop a NaN.
    ratio = tl.div_rn(tl.where(weight > clamp_value, clamp_value, weight), tl.where(step == 0, 1.0, step))
    ratio = tl.where((weight == 0) | (step == 0), 1.0, ratio)
    eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr
    tl.store(rates + tl.program_id(0), eta * ratio)


@triton.jit
def _move_tile(
    record, address, tile, rate, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    offset, inside = _offsets(record, tile, DTYPE, ALIGN)
    weights = _pointer(tl.load(record + WEIGHT), DTYPE, ALIGN) + offset
    w = tl.load(weights, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(_pointer(tl.load(record + EXP_AVG_SQ), tl.float32, ALIGN) + offset, mask=inside, other=0.0)
    if MOMENTUM:
        m = tl.load(_pointer(tl.load(record + EXP_AVG), tl.float32, ALIGN) + offset, mask=inside, other=0.0)
    else:
        m = sign * tl.load(_pointer(address, DTYPE, ALIGN) + offset, mask=inside, other=0.0).to(tl.float32)
    w -= rate * _adam_step(record, m, v, log_beta1, log_beta2, eps, DEBIAS)
    tl.store(weights, w.to(DTYPE), mask=inside)


@triton.jit
def move_kernel(
    tiles, tensors, grads, rates, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr,
):  # fmt: skip
    """Move the weights of every tensor that has a gradient by its rate times Adam's step."""
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    record = tensors + tensor * COLUMNS
    rate = tl.load(rates + tensor)
    address = tl.load(grads + tensor)
    aligned = tl.load(record + ALIGNED)
    for ALIGN in tl.static_range(0, 2):
        if (address != 0) & (aligned == ALIGN):
            _move_tile(
                record, address, tile, rate, log_beta1, log_beta2, eps, sign,
                DTYPE, MOMENTUM, DEBIAS, ALIGN,
            )  # fmt: skip
