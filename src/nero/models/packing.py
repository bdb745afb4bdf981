"""Sentences of a batch without their padding, one after the other.

What a network does word by word it does on these alone. Attention, which looks across a sentence, gets them in rows
[batch, length] and gives its result back. In a batch drawn at random more than half of the rows is padding.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NONE = -1
"""In place of a number: nothing stands there."""


class Packing(NamedTuple):
    """Where each word goes. Either way what is not given is zero, and no gradient passes to it."""

    places: Tensor  # int64 [slots]: the place of the word in each slot, counted through all rows; NONE if it is empty
    slots: Tensor  # int64 [batch, length]: the slot of the word in each place; NONE where there is padding
    ends: Tensor  # int64 [batch]: the slot after each row's last word

    def pack(self, rows: Tensor) -> Tensor:
        """[batch, length, width] -> [slots, width]."""
        return _Pick.apply(rows.flatten(0, 1), self.places, self.slots.flatten())

    def unpack(self, packed: Tensor) -> Tensor:
        """[slots, width] -> [batch, length, width]."""
        return _Pick.apply(packed, self.slots.flatten(), self.places).unflatten(0, self.slots.shape)


def packing(places: Tensor, batch: int, length: int) -> Packing:
    """Of words in these places of [batch, length], one row after the other and each from the left."""
    device = places.device
    after_rows = torch.arange(1, batch + 1, device=device) * length
    ends = torch.searchsorted(places.where(places != NONE, batch * length), after_rows)
    starts = F.pad(ends[:-1], (1, 0))
    slots = starts[:, None] + torch.arange(length, device=device)
    return Packing(places, slots.where(slots < ends[:, None], NONE), ends)


def places_of(counts: Tensor, lengths: Tensor, slots: int) -> Tensor:
    """The places of many batches' words, each row's from the left: int64 [batches, slots].

    counts:   int64 [batches, rows]: words of each row
    lengths:  int64 [batches]: places in a row of each batch
    slots:    no fewer than any batch has words
    """
    ends = counts.cumsum(1)
    numbers = torch.arange(slots, device=counts.device).expand(len(counts), slots).contiguous()
    rows = torch.searchsorted(ends, numbers, right=True)  # past the last row where there are no more words
    inside = rows < counts.shape[1]
    rows = rows.clamp(max=counts.shape[1] - 1)
    columns = numbers - (ends - counts).gather(1, rows)
    return (rows * lengths[:, None] + columns).where(inside, NONE)


def take(tokens: Tensor, places: Tensor, empty: int) -> Tensor:
    """The tokens [batch, length] in these places: [slots], with `empty` where nothing stands."""
    return _pick(tokens.flatten(), places, empty)


class _Pick(torch.autograd.Function):
    """Rows by number. On the way back each row knows where it went: a copy too, where torch would add up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, numbers: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return _pick(rows, numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return _pick(gradient, back), None, None


def _pick(rows: Tensor, numbers: Tensor, empty: float = 0.0) -> Tensor:
    missing = (numbers == NONE).view(-1, *[1] * (rows.ndim - 1))
    return rows.index_select(0, numbers.clamp(min=0)).masked_fill(missing, empty)
