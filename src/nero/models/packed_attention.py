"""Attention of packed sentences, each within itself or to another: by kernels on a GPU, elsewhere in rows."""

from typing import Any

import torch
from torch import Tensor

from nero.models.arithmetic import product_dtype
from nero.models.attention import attend, padding_mask, split_heads
from nero.models.kernels.compiled import are_compiled
from nero.models.packing import NONE, Packing

# Words of a row that the kernels take: what fits the shared memory of small GPUs too.
LONGEST = {torch.float32: 32, torch.bfloat16: 64, torch.float16: 64}
SIZES = (16, 32, 64, 128)  # of a head that they take, as tensor cores do
SEEDS = 2**62


def attend_packed(
    query: Tensor,
    memory: Tensor | None,
    packed: Packing,
    of_memory: Packing,
    heads: int,
    dropout: float,
    causal: bool = False,
    fused: bool = True,
) -> Tensor:
    """What the words of each row find in the row of the same number that they look at: [slots, width].

    query:   [slots, width]; without a memory [slots, 3 * width], queries, keys and values
    memory:  [slots, 2 * width]: keys and values
    causal:  no word looks at a later one
    fused:   whether by kernels where there are any
    """
    longest = torch.sym_max(packed.slots.shape[1], of_memory.slots.shape[1])
    size = _width(query, memory) // heads
    if fused and _has_kernels(query.device.type) and _kernels_take(query.dtype, size, longest):
        seed = torch.randint(SEEDS, (1,), device=query.device) if dropout else None
        return by_kernels(query, memory, packed.ends, of_memory.ends, seed, heads, longest, dropout, causal)
    looking, *looked_at = split_heads(packed.unpack(query), heads, 3 if memory is None else 1)
    key, value = looked_at if memory is None else split_heads(of_memory.unpack(memory), heads, 2)
    # What comes after the last word of a row is hidden from all words by being later than they are.
    mask = None if causal else padding_mask(of_memory.slots == NONE, product_dtype(key))
    return packed.pack(attend(looking, key, value, dropout, mask, causal))


# `attention_kernels.attend_` says what they mean.
SETTINGS = "Tensor ends, Tensor memory_ends, Tensor? seed, SymInt heads, SymInt longest, float dropout, bool causal"


@torch.library.custom_op(
    "nero::packed_attention", mutates_args=(), schema=f"(Tensor query, Tensor? memory, {SETTINGS}) -> Tensor"
)
def by_kernels(query: Tensor, memory: Tensor | None, *settings: Any) -> Tensor:
    """As `attend_packed`."""
    from nero.models.kernels import attention as attention_kernels

    found = _found(query, memory)
    attention_kernels.attend_(_parts(query, memory), found, None, *settings)
    return found


@by_kernels.register_fake
def _found(query: Tensor, memory: Tensor | None, *_: Any) -> Tensor:
    return query.new_empty(query.shape[0], _width(query, memory))


@torch.library.custom_op(
    "nero::packed_attention_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor query, Tensor? memory, {SETTINGS}) -> (Tensor, Tensor)",
)
def _back_by_kernels(grad: Tensor, query: Tensor, memory: Tensor | None, *settings: Any) -> tuple[Tensor, Tensor]:
    """The gradients of query and memory; in place of the latter something empty if there is none."""
    from nero.models.kernels import attention as attention_kernels

    of_query, of_memory = _like(query, memory)
    gradients = _parts(of_query, None if memory is None else of_memory)
    attention_kernels.attend_(_parts(query, memory), grad.contiguous(), gradients, *settings)
    return of_query, of_memory


@_back_by_kernels.register_fake
def _(grad: Tensor, query: Tensor, memory: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(query, memory)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, heads, longest, dropout, causal = inputs
    ctx.save_for_backward(*tensors)
    ctx.settings = heads, longest, dropout, causal


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_query, of_memory = _back_by_kernels(grad, *ctx.saved_tensors, *ctx.settings)
    return of_query, None if ctx.saved_tensors[1] is None else of_memory, *[None] * 7


by_kernels.register_autograd(_differentiate, setup_context=_keep)


def _parts(query: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, without a copy."""
    if memory is None:
        first, key, value = query.chunk(3, dim=1)
    else:
        first, (key, value) = query, memory.chunk(2, dim=1)
    if first.stride(1) != 1 or key.stride(1) != 1:
        raise ValueError("the entries of a word must stand side by side")
    return first, key, value


def _like(query: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(0) if memory is None else torch.empty_like(memory)


def _width(query: Tensor, memory: Tensor | None) -> int:
    return query.shape[1] // (3 if memory is None else 1)


def _kernels_take(dtype: torch.dtype, size: int, longest: int) -> bool:
    return size in SIZES and longest <= LONGEST.get(dtype, 0)


@torch.compiler.assume_constant_result
def _has_kernels(device: str) -> bool:
    return device == "cuda" and are_compiled("nero.models.kernels.attention")
