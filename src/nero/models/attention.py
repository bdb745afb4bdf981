"""What transformers have in common: attention over heads, and sinusoidal positions."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SHORT = 64
"""Keys up to which torch's plain products are faster on a GPU than its fused kernels, which are made for long texts."""


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """[batch, length, parts * width] -> `parts` times [batch, heads, length, width / heads], without a copy."""
    batch, length, width = x.shape
    return x.view(batch, length, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4).unbind()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Scaled dot-product attention of heads [batch, heads, length, size], put together as [batch, length, width].

    mask:    what is added to the scores, broadcast to [batch, heads, queries, keys]
    causal:  no position looks at a later one. Told, not given as a mask, which would be looked at on the host.
    """
    # Elsewhere torch chooses among all that it has.
    with sdpa_kernel(SDPBackend.MATH) if key.is_cuda and key.shape[2] <= SHORT else nullcontext():
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    return mixed.transpose(1, 2).flatten(2)


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """[length, width]: sines in even places and cosines in odd ones, of wavelengths from 2 pi to 20,000 pi."""
    frequencies = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width].to(torch.get_default_dtype())


def padding_mask(is_padding: Tensor, dtype: torch.dtype) -> Tensor:
    """[batch, keys] -> [batch, 1, 1, keys] to add to scores: minus infinity where a key is padding.

    The first key counts always: a row that is all padding, as fills up a batch, would else be all NaN.
    """
    hidden = is_padding.clone()
    hidden[:, 0] = False
    scores = torch.zeros(is_padding.shape, dtype=dtype, device=is_padding.device)
    return scores.masked_fill(hidden, -math.inf)[:, None, None, :]
