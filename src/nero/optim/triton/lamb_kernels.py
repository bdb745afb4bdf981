"""LAMB's step as three Triton kernels over all tensors of one dtype, with two passes over the entries.

The first takes the gradients into the averages and leaves, tile by tile, sums of squares; the second makes a rate for
each tensor of them; the third moves the weights. The formulas are those of `nero.optim.lamb.lamb_update`; what differs
is rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton.nero_kernels import correction

TILE = tl.constexpr(4096)
"""Entries that a program takes."""
WARPS = 8

# Columns of the table of tensors.
WEIGHT, EXP_AVG, EXP_AVG_SQ, STEP, COUNT, ALIGNED, FIRST_TILE, TILES = map(tl.constexpr, range(8))
COLUMNS = tl.constexpr(8)

SUMMED = tl.constexpr(1024)
"""Tiles whose sums are added up in one go."""


@triton.jit
def _pointer(address, of: tl.constexpr, ALIGN: tl.constexpr):
    """To what lies at an address; said to be a multiple of 16 bytes, where it is, so that 16 are loaded at a time."""
    if ALIGN:
        return tl.multiple_of((address // 16 * 16).to(tl.pointer_type(of)), 16)
    else:
        return address.to(tl.pointer_type(of))


@triton.jit
def _places(record, tile, DTYPE: tl.constexpr, ALIGN: tl.constexpr):
    """Where the entries of a tile are in their tensor, and which of them are."""
    PER_16_BYTES: tl.constexpr = 128 // DTYPE.primitive_bitwidth
    count = tl.load(record + COUNT)
    if ALIGN:
        count = count // PER_16_BYTES * PER_16_BYTES
    place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    return place, place < count


@triton.jit
def _direction(exp_avg, exp_avg_sq, step, log_beta1, log_beta2, eps, DEBIAS: tl.constexpr):
    """Adam's step, from averages that have taken in the gradient."""
    if DEBIAS:
        exp_avg = tl.div_rn(exp_avg, correction(step, log_beta1))
        exp_avg_sq = tl.div_rn(exp_avg_sq, correction(step, log_beta2))
    return tl.div_rn(exp_avg, tl.sqrt_rn(exp_avg_sq) + eps)


@triton.jit
def _average_tile(
    record, address, tile, sums, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    place, inside = _places(record, tile, DTYPE, ALIGN)
    w = tl.load(_pointer(tl.load(record + WEIGHT), DTYPE, ALIGN) + place, mask=inside, other=0.0).to(tl.float32)
    g = sign * tl.load(_pointer(address, DTYPE, ALIGN) + place, mask=inside, other=0.0).to(tl.float32)
    squares = _pointer(tl.load(record + EXP_AVG_SQ), tl.float32, ALIGN) + place
    v = beta2 * tl.load(squares, mask=inside, other=0.0) + rest_of_beta2 * (g * g)
    tl.store(squares, v, mask=inside)
    m = g
    if MOMENTUM:
        averages = _pointer(tl.load(record + EXP_AVG), tl.float32, ALIGN) + place
        m = beta1 * tl.load(averages, mask=inside, other=0.0) + rest_of_beta1 * g
        tl.store(averages, m, mask=inside)
    step = tl.load(tl.load(record + STEP).to(tl.pointer_type(tl.float32)))
    a = _direction(m, v, step, log_beta1, log_beta2, eps, DEBIAS)
    tl.store(sums, tl.sum(w * w, 0))
    tl.store(sums + 1, tl.sum(a * a, 0))


@triton.jit
def average_kernel(
    tiles, tensors, grads, sums, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr,
):  # fmt: skip
    """The averages of every tensor, and of each tile the sums of w² and of Adam's step squared.

    tiles:    [programs, 2]: number of a tensor, number of the tile in it; those of a tensor one after the other
    tensors:  [tensors, COLUMNS]
    grads:    [tensors]: addresses of the gradients
    sums:     [programs, 2]
    sign:     -1 to climb
    """
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    record = tensors + tensor * COLUMNS
    address = tl.load(grads + tensor)
    own = sums + 2 * tl.program_id(0)
    if tl.load(record + ALIGNED) != 0:
        _average_tile(
            record, address, tile, own, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
            DTYPE, MOMENTUM, DEBIAS, True,
        )  # fmt: skip
    else:
        _average_tile(
            record, address, tile, own, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
            DTYPE, MOMENTUM, DEBIAS, False,
        )  # fmt: skip


@triton.jit
def rate_kernel(tensors, sums, rates, lr, clamp_value, LR_IN_TENSOR: tl.constexpr):
    """What Adam's step of each tensor is multiplied by: lr times `nero.optim.lamb.trust_ratio`."""
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
    # Not a minimum, which would pass over a NaN.
    ratio = tl.div_rn(tl.where(weight > clamp_value, clamp_value, weight), tl.where(step == 0, 1.0, step))
    ratio = tl.where((weight == 0) | (step == 0), 1.0, ratio)
    eta = tl.load(lr).to(tl.float32) if LR_IN_TENSOR else lr
    tl.store(rates + tl.program_id(0), eta * ratio)


@triton.jit
def _move_tile(
    record, address, tile, rate, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    place, inside = _places(record, tile, DTYPE, ALIGN)
    weights = _pointer(tl.load(record + WEIGHT), DTYPE, ALIGN) + place
    w = tl.load(weights, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(_pointer(tl.load(record + EXP_AVG_SQ), tl.float32, ALIGN) + place, mask=inside, other=0.0)
    if MOMENTUM:
        m = tl.load(_pointer(tl.load(record + EXP_AVG), tl.float32, ALIGN) + place, mask=inside, other=0.0)
    else:
        m = sign * tl.load(_pointer(address, DTYPE, ALIGN) + place, mask=inside, other=0.0).to(tl.float32)
    step = tl.load(tl.load(record + STEP).to(tl.pointer_type(tl.float32)))
    w -= rate * _direction(m, v, step, log_beta1, log_beta2, eps, DEBIAS)
    tl.store(weights, w.to(DTYPE), mask=inside)


@triton.jit
def move_kernel(
    tiles, tensors, grads, rates, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr,
):  # fmt: skip
    """Move the weights of every tensor by its rate."""
    tensor = tl.load(tiles + 2 * tl.program_id(0))
    tile = tl.load(tiles + 2 * tl.program_id(0) + 1)
    record = tensors + tensor * COLUMNS
    address = tl.load(grads + tensor)
    rate = tl.load(rates + tensor)
    if tl.load(record + ALIGNED) != 0:
        _move_tile(
            record, address, tile, rate, log_beta1, log_beta2, eps, sign, DTYPE, MOMENTUM, DEBIAS, True,
        )  # fmt: skip
    else:
        _move_tile(
            record, address, tile, rate, log_beta1, log_beta2, eps, sign, DTYPE, MOMENTUM, DEBIAS, False,
        )  # fmt: skip
