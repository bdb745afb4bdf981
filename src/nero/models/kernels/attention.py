"""Attention within packed short sentences, by one Triton kernel each way.

A program takes one head of one sentence, in the smallest tile that holds it: only padding inside it costs time.
The backward pass recomputes the attention weights, which is cheaper than storing them. One extra program for each head
clears the slots after the last sentence.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = {32: 2, 64: 4}  # of a program, by the tokens of its largest tile
LOWEST = tl.constexpr(-1e30)  # below any score, but finite: a difference of infinities would be NaN


@triton.jit
def _bounds(ends, row):
    """A row's first slot and number of tokens."""
    first = tl.load(ends + row - 1, mask=row > 0, other=0).to(tl.int32)
    return first, tl.load(ends + row).to(tl.int32) - first


@triton.jit
def _entries(first, step, TILE: tl.constexpr, SIZE: tl.constexpr):
    """Offsets of a tile of tokens within a head."""
    return (first + tl.arange(0, TILE))[:, None].to(tl.int64) * step + tl.arange(0, SIZE)[None, :]


@triton.jit
def _load(x, first, count, step, TILE: tl.constexpr, SIZE: tl.constexpr, COMPILED: tl.constexpr):
    inside = (tl.arange(0, TILE) < count)[:, None]
    tile = tl.load(x + _entries(first, step, TILE, SIZE), mask=inside, other=0.0)
    if not COMPILED:  # the interpreter cannot multiply bfloat16
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _store(x, first, count, step, tile, TILE: tl.constexpr, SIZE: tl.constexpr):
    inside = (tl.arange(0, TILE) < count)[:, None]
    tl.store(x + _entries(first, step, TILE, SIZE), tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _clear(x, first, slots, step, SIZE: tl.constexpr):
    while first < slots:
        _store(x, first, slots - first, step, tl.zeros([32, SIZE], tl.float32), 32, SIZE)
        first += 32


@triton.jit
def _tile(
    inputs, outer, gradients, bounds, steps, seed, number, scale, dropout,
    TILE: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, BACK: tl.constexpr,
    PRECISION: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    q, k, v = inputs
    first, queries, first_key, keys = bounds
    q_step, k_step, outer_step = steps
    query = _load(q, first, queries, q_step, TILE, SIZE, COMPILED)
    key = _load(k, first_key, keys, k_step, TILE, SIZE, COMPILED)
    value = _load(v, first_key, keys, k_step, TILE, SIZE, COMPILED)
    i, j = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    # Softmax of the scores; zero for masked keys.
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
    seen = (j < keys) & (i >= j) if CAUSAL else (j < keys) & (i >= 0)
    scores = tl.where(seen, scores, LOWEST)
    weights = tl.where(seen, tl.exp(scores - tl.max(scores, axis=1)[:, None]), 0.0)
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total > 0.0, total, 1.0)[:, None]
    if BACK:
        slope = _load(outer, first, queries, outer_step, TILE, SIZE, COMPILED)
        of_weights = tl.dot(slope, tl.trans(value), input_precision=PRECISION)
    used = weights
    if DROPOUT:  # for both at once: the mask need not stay in registers
        # The random offset of a weight does not depend on the tile.
        kept = tl.rand(tl.load(seed), (number * 64 + i) * 64 + j) >= dropout
        used = tl.where(kept, weights / (1.0 - dropout), 0.0)
        if BACK:
            of_weights = tl.where(kept, of_weights / (1.0 - dropout), 0.0)
    if BACK:
        q_grad, k_grad, v_grad = gradients
        of_value = tl.dot(tl.trans(used.to(slope.dtype)), slope, input_precision=PRECISION)
        _store(v_grad, first_key, keys, k_step, of_value, TILE, SIZE)
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None]) * scale
        of_scores = of_scores.to(key.dtype)
        of_query = tl.dot(of_scores, key, input_precision=PRECISION)
        _store(q_grad, first, queries, q_step, of_query, TILE, SIZE)
        of_key = tl.dot(tl.trans(of_scores), query, input_precision=PRECISION)
        _store(k_grad, first_key, keys, k_step, of_key, TILE, SIZE)
    else:
        mixed = tl.dot(used.to(value.dtype), value, input_precision=PRECISION)
        _store(outer, first, queries, outer_step, mixed, TILE, SIZE)


@triton.jit(do_not_specialize=["slots", "k_slots"])
def attention_kernel(
    q, k, v, outer, q_grad, k_grad, v_grad, q_ends, k_ends, seed, slots, k_slots, q_step, k_step, outer_step, scale,
    dropout, SIZE: tl.constexpr, MOST: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, BACK: tl.constexpr,
    PRECISION: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """Attention or its gradients: one program for each row and head, and an extra row of programs that clears.

    q, q_grad:       [slots, heads * SIZE] with row stride `q_step`; k, v and their gradients [k_slots, ...]
    outer:           of the shape of q: the output, or in the backward pass its gradient, which is an input
    q_ends, k_ends:  int64 [rows]: the slot after each row's last token
    seed:            int64 [1]
    MOST:            tokens of the largest tile, a power of two
    """
    row, head = tl.program_id(0), tl.program_id(1)
    q += head * SIZE
    k += head * SIZE
    v += head * SIZE
    outer += head * SIZE
    if BACK:
        q_grad += head * SIZE
        k_grad += head * SIZE
        v_grad += head * SIZE
    if row == tl.num_programs(0) - 1:
        after = tl.load(q_ends + row - 1).to(tl.int32)
        if BACK:
            after_keys = tl.load(k_ends + row - 1).to(tl.int32)
            _clear(q_grad, after, slots, q_step, SIZE)
            _clear(k_grad, after_keys, k_slots, k_step, SIZE)
            _clear(v_grad, after_keys, k_slots, k_step, SIZE)
        else:
            _clear(outer, after, slots, outer_step, SIZE)
    else:
        first, queries = _bounds(q_ends, row)
        first_key, keys = _bounds(k_ends, row)
        tokens = tl.maximum(queries, keys)
        for power in tl.static_range(4, 7):  # tiles of 16, 32 and 64 tokens
            if 1 << power <= MOST:
                if (tokens <= 1 << power) & ((tokens > 1 << (power - 1)) | (power == 4)):
                    _tile(
                        (q, k, v), outer, (q_grad, k_grad, v_grad), (first, queries, first_key, keys),
                        (q_step, k_step, outer_step), seed, row * tl.num_programs(1) + head, scale, dropout,
                        1 << power, SIZE, CAUSAL, DROPOUT, BACK, PRECISION, COMPILED,
                    )  # fmt: skip


COMPILED = isinstance(attention_kernel, triton.JITFunction)  # False: interpreted (TRITON_INTERPRET=1), for tests


def launch(
    inputs: tuple[Tensor, ...], outer: Tensor, gradients: tuple[Tensor | None, ...], ends: Tensor, memory_ends: Tensor,
    seed: Tensor | None, heads: int, longest: int, dropout: float, causal: bool,
) -> None:  # fmt: skip
    """Write the attention output into `outer`; or, given `gradients`, fill these with the inputs' gradients.

    inputs:     queries, keys and values [slots, width]; the last two have the same strides
    outer:      of the shape of the queries; in the backward pass the output's gradient, which is an input
    gradients:  three tensors with the strides of the inputs, or three times None
    """
    q, k, _ = inputs
    size = q.shape[1] // heads
    if longest > max(WARPS):
        raise ValueError(f"rows have up to {longest} tokens, a tile at most {max(WARPS)}")
    if q.stride(1) != 1 or k.stride(1) != 1:
        raise ValueError("the features of a token must be contiguous")
    most = min(tokens for tokens in WARPS if longest <= tokens)
    with torch.cuda.device_of(q):
        attention_kernel[(len(ends) + 1, heads)](
            *inputs, outer, *gradients, ends, memory_ends, ends if seed is None else seed,
            len(q), len(k), q.stride(0), k.stride(0), outer.stride(0), scale=size**-0.5, dropout=dropout,
            SIZE=size, MOST=most, CAUSAL=causal, DROPOUT=dropout > 0, BACK=gradients[0] is not None,
            PRECISION="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            COMPILED=COMPILED, num_warps=WARPS[most],
        )  # fmt: skip


# ends, memory_ends: int64 [rows], the slot after the last token of each row, of queries and keys; seed: int64 [1], of
# dropout, None without; longest: most tokens of a row; causal: no token attends to a later one.
SETTINGS = "Tensor ends, Tensor memory_ends, Tensor? seed, SymInt heads, SymInt longest, float dropout, bool causal"
FORWARD = f"(Tensor query, Tensor? memory, {SETTINGS}) -> Tensor"
BACKWARD = f"(Tensor grad, Tensor query, Tensor? memory, {SETTINGS}) -> (Tensor, Tensor)"


@torch.library.custom_op("nero::packed_attention", mutates_args=(), schema=FORWARD)
def packed_attention(query: Tensor, memory: Tensor | None, *settings: Any) -> Tensor:
    """`nero.models.attention.attend_projected` of packed tokens."""
    out = _empty_output(query, memory)
    launch(_split(query, memory), out, (None, None, None), *settings)
    return out


@packed_attention.register_fake
def _empty_output(query: Tensor, memory: Tensor | None, *_: Any) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1] // (3 if memory is None else 1))


@torch.library.custom_op("nero::packed_attention_backward", mutates_args=(), schema=BACKWARD)
def _gradients(grad: Tensor, query: Tensor, memory: Tensor | None, *settings: Any) -> tuple[Tensor, Tensor]:
    """Of query and memory; without a memory, the second is an empty tensor."""
    query_grad, memory_grad = _empty_gradients(grad, query, memory)
    gradients = _split(query_grad, None if memory is None else memory_grad)
    launch(_split(query, memory), grad.contiguous(), gradients, *settings)
    return query_grad, memory_grad


@_gradients.register_fake
def _empty_gradients(grad: Tensor, query: Tensor, memory: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(0) if memory is None else torch.empty_like(memory)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, heads, longest, dropout, causal = inputs
    ctx.save_for_backward(*tensors)
    ctx.settings = heads, longest, dropout, causal


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    query_grad, memory_grad = _gradients(grad, *ctx.saved_tensors, *ctx.settings)
    return query_grad, None if ctx.saved_tensors[1] is None else memory_grad, *[None] * 7


packed_attention.register_autograd(_backward, setup_context=_setup_context)


def _split(query: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values, without a copy."""
    return query.chunk(3, dim=1) if memory is None else (query, *memory.chunk(2, dim=1))
