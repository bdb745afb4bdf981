"""Multi-head attention of the transformers, over padded rows or over packed sentences.

More than half of a random batch of sentences is padding. A packed batch [slots, width] has the tokens of all sentences
one after the other and no padding between them; layers that work token by token take it as it is. Attention looks
across a sentence: by Triton kernels on a GPU, else over rows [batch, length] that are unpacked and packed again.
"""

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from nero.models.kernels import are_compiled, product_dtype

SHORT = 64  # keys up to which torch's plain products are faster on a GPU than its fused kernels, made for long texts
EMPTY = -1  # in place of an index: no token there
# Limits of the kernels: tokens of a row, which must fit the shared memory of small GPUs too, and sizes of a head.
LONGEST = {torch.float32: 32, torch.bfloat16: 64, torch.float16: 64}
HEAD_SIZES = (16, 32, 64, 128)


def check_sizes(width: int, heads: int, layers: int, dropout: float) -> None:
    """Raise ValueError for sizes that no transformer can have."""
    for name, value in (("width", width), ("heads", heads), ("layers", layers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, not {value!r}")
    if width % heads:
        raise ValueError(f"width must be a multiple of heads: {width} is not a multiple of {heads}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout!r}")


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """[batch, length, parts * width] -> `parts` tensors [batch, heads, length, width / heads], without a copy."""
    batch, length, width = x.shape
    return x.view(batch, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4).unbind()


def attend(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Scaled dot-product attention of heads [batch, heads, length, size], merged to [batch, length, width].

    mask:    added to the scores, broadcast to [batch, heads, queries, keys]
    causal:  no position attends to a later one. A flag, since torch inspects a mask on the host.
    """
    with sdpa_kernel(SDPBackend.MATH) if key.is_cuda and key.shape[2] <= SHORT else nullcontext():
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    return mixed.transpose(1, 2).flatten(2)


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """[length, width]: sines in even columns and cosines in odd ones, of wavelengths from 2 pi to 20,000 pi."""
    frequencies = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width].to(torch.get_default_dtype())


def padding_mask(is_padding: Tensor, dtype: torch.dtype) -> Tensor:
    """[batch, keys] -> [batch, 1, 1, keys] to add to scores: minus infinity where a key is padding.

    The first key is never hidden: the softmax of a row that is all padding, as fills up a batch, would be NaN.
    """
    hidden = is_padding.clone()
    hidden[:, 0] = False
    scores = torch.zeros(is_padding.shape, dtype=dtype, device=is_padding.device)
    return scores.masked_fill(hidden, -math.inf)[:, None, None, :]


class Packing(NamedTuple):
    """The correspondence of rows [batch, length] and slots. Missing entries are zero and get no gradient."""

    indices: Tensor  # int64 [slots]: index into the flattened rows of each slot's token, or EMPTY
    slots: Tensor  # int64 [batch, length]: the slot of each token, EMPTY for padding
    ends: Tensor  # int64 [batch]: the slot after each row's last token

    def pack(self, rows: Tensor) -> Tensor:
        """[batch, length, width] -> [slots, width]."""
        return _Pick.apply(rows.flatten(0, 1), self.indices, self.slots.flatten())

    def unpack(self, packed: Tensor) -> Tensor:
        """[slots, width] -> [batch, length, width]."""
        return _Pick.apply(packed, self.slots.flatten(), self.indices).unflatten(0, self.slots.shape)


Layout = Packing | Tensor | None
"""How the tokens of one language are laid out: packed, or in rows with a padding mask if one is needed."""


def packing(indices: Tensor, batch: int, length: int) -> Packing:
    """The packing of tokens at these indices of [batch, length]: row after row, each from the left."""
    device = indices.device
    after_rows = torch.arange(1, batch + 1, device=device) * length
    ends = torch.searchsorted(indices.where(indices != EMPTY, batch * length), after_rows)
    starts = F.pad(ends[:-1], (1, 0))
    slots = starts[:, None] + torch.arange(length, device=device)
    return Packing(indices, slots.where(slots < ends[:, None], EMPTY), ends)


def token_indices(counts: Tensor, lengths: Tensor, slots: int) -> Tensor:
    """The indices of the tokens of many batches, each row's from the left: int64 [batches, slots].

    counts:   int64 [batches, rows]: tokens of each row
    lengths:  int64 [batches]: length of the rows of each batch
    slots:    at least the number of tokens of any batch
    """
    ends = counts.cumsum(1)
    numbers = torch.arange(slots, device=counts.device).expand(len(counts), slots).contiguous()
    rows = torch.searchsorted(ends, numbers, right=True)  # past the last row where there are no more tokens
    inside = rows < counts.shape[1]
    rows = rows.clamp(max=counts.shape[1] - 1)
    columns = numbers - (ends - counts).gather(1, rows)
    return (rows * lengths[:, None] + columns).where(inside, EMPTY)


def take_tokens(tokens: Tensor, indices: Tensor, fill: int) -> Tensor:
    """The tokens [batch, length] at these indices: [slots], with `fill` where an index is EMPTY."""
    return _pick(tokens.flatten(), indices, fill)


class _Pick(torch.autograd.Function):
    """Select rows by index. Given the inverse indices, the backward pass is a selection too, not a scatter-add."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return _pick(rows, indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _pick(gradient, *ctx.saved_tensors), None, None


def _pick(rows: Tensor, indices: Tensor, fill: float = 0.0) -> Tensor:
    missing = (indices == EMPTY).view(-1, *[1] * (rows.ndim - 1))
    return rows.index_select(0, indices.clamp(min=0)).masked_fill(missing, fill)


def attend_projected(
    query: Tensor, memory: Tensor | None, layout: Layout, of_memory: Layout, heads: int, dropout: float,
    causal: bool = False, fused: bool = True,
) -> Tensor:  # fmt: skip
    """Attention of the tokens of each sentence to those of the memory's sentence of the same number: [..., width].

    query:              [..., width]; for self-attention (no memory) [..., 3 * width]: queries, keys and values
    memory:             [..., 2 * width]: keys and values
    layout, of_memory:  of the queries and of the keys: either both are packed or neither is
    causal:             no token attends to a later one
    fused:              whether packed attention uses the Triton kernels where there are any
    """
    if isinstance(layout, Packing) and isinstance(of_memory, Packing):
        longest = torch.sym_max(layout.slots.shape[1], of_memory.slots.shape[1])
        size = query.shape[1] // (3 * heads if memory is None else heads)
        if fused and _has_kernels(query.device.type) and _kernels_take(query.dtype, size, longest):
            from nero.models.kernels.attention import packed_attention

            seed = torch.randint(2**62, (1,), device=query.device) if dropout else None
            return packed_attention(query, memory, layout.ends, of_memory.ends, seed, heads, longest, dropout, causal)
        # With `causal`, padding is hidden because it comes after the last token of its row.
        mask = None if causal else padding_mask(of_memory.slots == EMPTY, product_dtype(query))
        memory_rows = None if memory is None else of_memory.unpack(memory)
        return layout.pack(attend_projected(layout.unpack(query), memory_rows, None, mask, heads, dropout, causal))
    assert not isinstance(of_memory, Packing)
    queries, *keys_values = split_heads(query, heads, 3 if memory is None else 1)
    key, value = keys_values if memory is None else split_heads(memory, heads, 2)
    return attend(queries, key, value, dropout, of_memory, causal)


def _kernels_take(dtype: torch.dtype, size: int, longest: int) -> bool:
    return size in HEAD_SIZES and longest <= LONGEST.get(dtype, 0)


@torch.compiler.assume_constant_result
def _has_kernels(device: str) -> bool:
    return device == "cuda" and are_compiled("nero.models.kernels.attention")
