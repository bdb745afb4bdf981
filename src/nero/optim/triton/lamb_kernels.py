"""LAMB's step as one Triton kernel over all tensors of one dtype.

The weights of a tensor move once two norms of all its entries are known. A tensor of few tiles is read once: its
programs run at the same time, keep weights and steps in registers and wait for each other. For a larger one, programs
of a first pass update the averages and add up squares, and others move the weights in a second pass, soon after it.

No program waits for long. One that loses its patience, as can happen where other kernels keep the GPU busy, leaves its
tile to the last program of the tensor to arrive, so that a step ends in whatever order programs run.

The formulas are those of `nero.optim.LAMB`, up to rounding.
"""

import triton
import triton.language as tl

from nero.optim.triton.entry_kernels import (
    AVERAGE,
    COLUMNS,
    COUNT,
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
PIECES = tl.constexpr(4)  # in which a tile that is not full is dealt with
LEFT, KNOWN = tl.constexpr(1), tl.constexpr(2)  # states of a tile: its program lost patience; its totals are known


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
    """The sums in float64 over the tiles of a tensor, always in the same order."""
    weight_square = tl.full((), 0.0, tl.float64)
    step_square = tl.full((), 0.0, tl.float64)
    done = tiles * 0
    while done < tiles:
        tile = done + tl.arange(0, SUMMED)
        weight_squares = tl.load(sums + 2 * tile, mask=tile < tiles, other=0.0, cache_modifier=".cg")
        step_squares = tl.load(sums + 2 * tile + 1, mask=tile < tiles, other=0.0, cache_modifier=".cg")
        weight_square += tl.sum(weight_squares.to(tl.float64), 0)
        step_square += tl.sum(step_squares.to(tl.float64), 0)
        done += SUMMED
    return weight_square, step_square


@triton.jit
def _arrive(sums, tile, tiles, weight_square, step_square, totals, arrivals):
    """Hand in the sums of a tile. Whether all tiles of the tensor have: then this program has stored the totals."""
    tl.store(sums + 2 * tile, weight_square)
    tl.store(sums + 2 * tile + 1, step_square)
    tl.debug_barrier()
    last = tl.atomic_add(arrivals, 1, sem="acq_rel") == tiles - 1
    if last:
        weight_total, step_total = add_up(sums, tiles)
        tl.store(totals, weight_total)
        tl.store(totals + 1, step_total)
        tl.debug_barrier()
        tl.atomic_add(arrivals, 1, sem="release")
    return last


@triton.jit
def _await_totals(state, tiles, arrivals, patience):
    """Whether the totals are known. If not, the last program to arrive moves the tile."""
    known = tl.atomic_add(arrivals, 0, sem="acquire") > tiles
    polls = tiles * 0
    while (polls < patience) & (known == 0):
        known = tl.atomic_add(arrivals, 0, sem="acquire") > tiles
        polls += 1
    if known == 0:
        tl.debug_barrier()
        known = tl.atomic_xchg(state, LEFT, sem="acq_rel") == KNOWN
    return known


@triton.jit
def _depart(record, states, tiles, arrivals, step):
    """Say that a tile has moved. The last one to do so cleans up for the next step."""
    if tl.atomic_add(arrivals, 1, sem="relaxed") == 2 * tiles + 1:
        tl.store(arrivals, 0)
        done = tiles * 0
        while done < tiles:
            tile = done + tl.arange(0, SUMMED)
            tl.store(states + tile, 0, mask=tile < tiles)
            done += SUMMED
        tl.store(tl.load(record + STEP).to(tl.pointer_type(tl.float32)), step)


@triton.jit
def _known_rate(totals, lr, clamp_value, LR_IN_TENSOR: tl.constexpr):
    weight_square = tl.load(totals, cache_modifier=".cg")
    step_square = tl.load(totals + 1, cache_modifier=".cg")
    return _rate(weight_square, step_square, lr, clamp_value, LR_IN_TENSOR)


@triton.jit
def _averaged(
    record, address, tile, step, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The weights of a tile, its new averages, and Adam's step."""
    inside = within(record, tile, TILE)
    ONCE: tl.constexpr = "evict_first" if MOMENTUM else ""
    g = sign * read(entries(address, tile, DTYPE, TILE, FULL), inside, FULL, ONCE)
    w = read(entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, FULL), inside, FULL)
    v = read(entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL), inside, FULL)
    v = beta2 * v + rest_of_beta2 * (g * g)
    m = g
    if MOMENTUM:
        m = read(entries(tl.load(record + OTHER), tile, tl.float32, TILE, FULL), inside, FULL)
        m = beta1 * m + rest_of_beta1 * g
    return w, m, v, _adam_step(m, v, step, log_beta1, log_beta2, eps, DEBIAS)


@triton.jit
def _write_averages(record, tile, m, v, MOMENTUM: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr):
    inside = within(record, tile, TILE)
    write(entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL), v, inside, FULL)
    if MOMENTUM:
        write(entries(tl.load(record + OTHER), tile, tl.float32, TILE, FULL), m, inside, FULL)


@triton.jit
def _move(
    record, address, tile, step, rate, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Move the weights of a tile whose averages are in memory."""
    inside = within(record, tile, TILE)
    weights = entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, FULL)
    w = read(weights, inside, FULL)
    v = read(entries(tl.load(record + AVERAGE), tile, tl.float32, TILE, FULL), inside, FULL, "evict_first")
    if MOMENTUM:
        m = read(entries(tl.load(record + OTHER), tile, tl.float32, TILE, FULL), inside, FULL, "evict_first")
    else:
        m = sign * read(entries(address, tile, DTYPE, TILE, FULL), inside, FULL, "evict_first")
    w -= rate * _adam_step(m, v, step, log_beta1, log_beta2, eps, DEBIAS)
    write(weights, w, inside, FULL)


@triton.jit
def _pieces(record, tile, TILE: tl.constexpr):
    """The first piece of a tile, and the first after its last one."""
    first = tile.to(tl.int64) * PIECES
    return first, tl.minimum(tl.cdiv(tl.load(record + COUNT), TILE // PIECES), first + PIECES)


@triton.jit
def _move_pieces(
    record, address, tile, step, rate, log_beta1, log_beta2, eps, sign,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    piece, end = _pieces(record, tile, TILE)
    while piece < end:
        _move(
            record, address, piece, step, rate, log_beta1, log_beta2, eps, sign,
            DTYPE, MOMENTUM, DEBIAS, TILE // PIECES, False,
        )  # fmt: skip
        piece += 1


@triton.jit(do_not_specialize=["held", "patience"])
def lamb_kernel(
    items, tensors, grads, sums, totals, states, arrivals,
    lr, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps, clamp_value, sign, held, patience,
    DTYPE: tl.constexpr, MOMENTUM: tl.constexpr, DEBIAS: tl.constexpr, TILE: tl.constexpr, LR_IN_TENSOR: tl.constexpr,
):  # fmt: skip
    """Step every tensor that has a gradient.

    items:     [programs, 2]: index of a tensor; t >= 0 for the first pass over its tile t, -1 - t for the second
    tensors:   [tensors, COLUMNS]; AVERAGE is that of squares, OTHER the average that Adam steps along
    grads:     [tensors]: addresses of the gradients, 0 for none
    sums:      [tiles, 2]: of each tile, the sums of w² and of Adam's step squared
    totals:    [tensors, 2]: those of all tiles, float64
    states:    [tiles]: LEFT, KNOWN or 0; zero between steps
    arrivals:  [tensors]: tiles whose sums are known, plus one once the totals are, plus tiles that have moved, plus one
               once nobody can leave a tile behind any more; zero between steps
    sign:      -1 to maximise
    held:      number of tiles up to which a tensor has no second pass
    patience:  how often a program asks for the totals
    """
    tensor = tl.load(items + 2 * tl.program_id(0))
    code = tl.load(items + 2 * tl.program_id(0) + 1)
    # Everything is loaded before it is used, so that no load waits for another one without need.
    record = tensors + tensor * COLUMNS
    address = tl.load(grads + tensor)
    tiles = tl.load(record + TILES)
    first_tile = tl.load(record + FIRST_TILE)
    step_count = tl.load(record + STEP).to(tl.pointer_type(tl.float32))
    tile = tl.where(code >= 0, code, -1 - code)
    full = is_full(record, tile, TILE)
    if address != 0:
        step = tl.load(step_count) + 1
        sums += 2 * first_tile
        states += first_tile
        totals += 2 * tensor
        arrivals += tensor
        last = tiles < 0
        if code >= 0:
            if full:
                w, m, v, a = _averaged(
                    record, address, tile, step, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2, eps,
                    sign, DTYPE, MOMENTUM, DEBIAS, TILE, True,
                )  # fmt: skip
                weight_square = tl.sum(w * w, 0)
                step_square = tl.sum(a * a, 0)
                if tiles <= held:
                    # Others wait for the sums, but not for the averages.
                    last = _arrive(sums, tile, tiles, weight_square, step_square, totals, arrivals)
                    _write_averages(record, tile, m, v, MOMENTUM, TILE, True)
                    if _await_totals(states + tile, tiles, arrivals, patience):
                        w -= _known_rate(totals, lr, clamp_value, LR_IN_TENSOR) * a
                        write(entries(tl.load(record + WEIGHT), tile, DTYPE, TILE, True), w, True, True)
                        _depart(record, states, tiles, arrivals, step)
                else:
                    _write_averages(record, tile, m, v, MOMENTUM, TILE, True)
                    last = _arrive(sums, tile, tiles, weight_square, step_square, totals, arrivals)
            else:
                weight_square = 0.0
                step_square = 0.0
                # Fewer entries at a time: each takes an address of its own.
                piece, end = _pieces(record, tile, TILE)
                while piece < end:
                    w, m, v, a = _averaged(
                        record, address, piece, step, beta1, rest_of_beta1, beta2, rest_of_beta2, log_beta1, log_beta2,
                        eps, sign, DTYPE, MOMENTUM, DEBIAS, TILE // PIECES, False,
                    )  # fmt: skip
                    weight_square += tl.sum(w * w, 0)
                    step_square += tl.sum(a * a, 0)
                    _write_averages(record, piece, m, v, MOMENTUM, TILE // PIECES, False)
                    piece += 1
                last = _arrive(sums, tile, tiles, weight_square, step_square, totals, arrivals)
        if (code < 0) | ((full == 0) & (tiles <= held)):
            if _await_totals(states + tile, tiles, arrivals, patience):
                rate = _known_rate(totals, lr, clamp_value, LR_IN_TENSOR)
                if full:
                    _move(
                        record, address, tile, step, rate, log_beta1, log_beta2, eps, sign,
                        DTYPE, MOMENTUM, DEBIAS, TILE, True,
                    )  # fmt: skip
                else:
                    _move_pieces(
                        record, address, tile, step, rate, log_beta1, log_beta2, eps, sign,
                        DTYPE, MOMENTUM, DEBIAS, TILE,
                    )  # fmt: skip
                _depart(record, states, tiles, arrivals, step)
        if last:
            # From here on nobody leaves a tile behind. Move those that were.
            rate = _known_rate(totals, lr, clamp_value, LR_IN_TENSOR)
            done = tiles * 0
            while done < tiles:
                some = done + tl.arange(0, SUMMED)
                state = tl.atomic_xchg(states + some, KNOWN, mask=some < tiles, sem="acq_rel")
                left = tl.max(tl.where((some < tiles) & (state == LEFT), some, -1), 0)
                while left >= 0:
                    _move_pieces(
                        record, address, left, step, rate, log_beta1, log_beta2, eps, sign,
                        DTYPE, MOMENTUM, DEBIAS, TILE,
                    )  # fmt: skip
                    _depart(record, states, tiles, arrivals, step)
                    left = tl.max(tl.where((some < left) & (state == LEFT), some, -1), 0)
                done += SUMMED
            _depart(record, states, tiles, arrivals, step)
