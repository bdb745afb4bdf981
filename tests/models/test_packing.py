"""Packing tokens without padding, and unpacking them into rows."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nero.models.attention import EMPTY, Packing, packing, take_tokens, token_indices

ROWS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def plain_places(counts: list[int], length: int) -> list[int]:
    return [row * length + column for row, count in enumerate(counts) for column in range(count)]


def packed(counts: list[int], length: int, empty: int = 2) -> Packing:
    places = torch.tensor([*plain_places(counts, length), *[EMPTY] * empty], dtype=torch.int64)
    return packing(places, len(counts), length)


@given(batches=st.lists(ROWS, min_size=1, max_size=4), more=st.integers(0, 3), empty=st.integers(0, 4))
def test_token_indices_enumerate_tokens_row_by_row(batches: list[list[int]], more: int, empty: int) -> None:
    rows = max(map(len, batches))
    counts = [counts + [0] * (rows - len(counts)) for counts in batches]
    lengths = [max(max(batch), 1) + more for batch in counts]
    slots = max(map(sum, counts)) + empty
    found = token_indices(torch.tensor(counts), torch.tensor(lengths), slots).tolist()
    for row, batch, length in zip(found, counts, lengths, strict=True):
        assert row == plain_places(batch, length) + [EMPTY] * (slots - sum(batch))


@given(counts=ROWS, more=st.integers(0, 3), empty=st.integers(0, 3))
def test_pack_and_unpack_round_trip_with_zero_padding(counts: list[int], more: int, empty: int) -> None:
    assume(sum(counts) + empty)
    length = max(*counts, 1) + more
    layout = packed(counts, length, empty)
    rows = torch.randn(len(counts), length, 3, generator=torch.Generator().manual_seed(0))
    inside = torch.arange(length) < torch.tensor(counts)[:, None]
    words = layout.pack(rows)
    assert torch.equal(words[: sum(counts)], rows[inside])
    assert not words[sum(counts) :].any()
    assert torch.equal(layout.unpack(words), rows * inside[..., None])


def test_slots_are_inverse_of_indices() -> None:
    layout = packed([2, 0, 3], 4)
    assert layout.slots.tolist() == [[0, 1, EMPTY, EMPTY], [EMPTY] * 4, [2, 3, 4, EMPTY]]


@pytest.mark.parametrize("counts", [[2, 0, 3], [4, 4], [1]])
def test_pack_and_unpack_pass_gradcheck(counts: list[int]) -> None:
    layout = packed(counts, 4)
    rows = torch.randn(len(counts), 4, 2, dtype=torch.float64, requires_grad=True)
    words = torch.randn(len(layout.indices), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layout.pack, rows)
    assert torch.autograd.gradcheck(layout.unpack, words)


def test_empty_slots_do_not_propagate_nan() -> None:
    layout = packed([1, 2], 3)
    words = torch.ones(len(layout.indices), 2)
    words[3:] = torch.nan
    words.requires_grad_()
    rows = layout.unpack(words)
    assert rows.isfinite().all()
    rows.backward(torch.full_like(rows, torch.nan).masked_fill((layout.slots != EMPTY)[..., None], 1.0))
    assert words.grad is not None
    assert words.grad.isfinite().all()


def test_take_tokens_gathers_by_index() -> None:
    tokens = torch.tensor([[5, 6, 0], [7, 0, 0]])
    found: Tensor = take_tokens(tokens, torch.tensor([0, 1, 3, EMPTY]), fill=9)
    assert found.tolist() == [5, 6, 7, 9]
