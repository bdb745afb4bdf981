"""Tests of batches of sentences of similar length, against torchtext."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nero.data.text.buckets import bucketed, length_key, padded, padded_length, shuffled_buckets
from nero.data.text.parallel_text import BEGIN, END, MARKS, PAD, ParallelText, toy_pairs

LENGTHS = st.integers(0, 2**16 - 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def keys_of(count: int, seed: int = 0) -> list[int]:
    """Random keys like those of Multi30k: for lengths from 8 to 39, with many ties."""
    lengths = torch.randint(8, 40, (count, 2), generator=generator(seed)).tolist()
    return [length_key(source, target) for source, target in lengths]


@given(source=LENGTHS, target=LENGTHS)
def test_length_key_matches_torchtext_interleave_keys(source: int, target: int) -> None:
    data = pytest.importorskip("torchtext.data")
    assert length_key(source, target) == data.interleave_keys(source, target)


@given(source=st.integers(0, 2**40), target=st.integers(0, 2**40))
def test_length_key_interleaves_bits_of_both_lengths(source: int, target: int) -> None:
    bits = f"{length_key(source, target):0100b}"
    assert (int(bits[0::2], 2), int(bits[1::2], 2)) == (source, target)


@given(
    keys=st.lists(st.integers(0, 6), max_size=700), batch_size=st.integers(1, 5), seed=st.integers(0, 9), data=st.data()
)
def test_bucketed_matches_torchtext_pool(keys: list[int], batch_size: int, seed: int, data: st.DataObject) -> None:
    torchtext = pytest.importorskip("torchtext.data")
    order = torch.randperm(len(keys), generator=generator(seed)).tolist()
    order = order[: data.draw(st.integers(0, len(order)))]
    pools = torchtext.pool(order, batch_size, key=lambda n: keys[n], shuffle=False, sort_within_batch=True)
    expected = list(pools)
    assert bucketed(order, keys, batch_size) == expected


def torchtext_bucket_iterator(text: ParallelText, **settings: object) -> Any:
    """A BucketIterator over the training pairs of a text, with its batches created."""
    data = pytest.importorskip("torchtext.data")

    class Pair:
        def __init__(self, number: int) -> None:
            self.number, self.src, self.trg = number, text.train.source[number], text.train.target[number]

    class Dataset(data.Dataset):  # type: ignore[name-defined]
        @staticmethod
        def sort_key(pair: Any) -> int:
            return data.interleave_keys(len(pair.src), len(pair.trg))

    pairs = Dataset([Pair(number) for number in range(len(text.train))], [])
    iterator = data.BucketIterator(pairs, batch_size=4, **settings)
    iterator.create_batches()
    return iterator


def pair_keys(text: ParallelText) -> list[int]:
    return [length_key(len(s), len(t)) for s, t in zip(text.train.source, text.train.target, strict=True)]


def test_bucketed_matches_torchtext_bucket_iterator() -> None:
    text = toy_pairs(500, 1)
    iterator = torchtext_bucket_iterator(text, shuffle=False, sort=False, sort_within_batch=True)
    expected = [[pair.number for pair in batch] for batch in iterator.batches]
    assert bucketed(range(500), pair_keys(text), 4) == expected
    assert len(expected) == 125


def test_torchtext_default_training_batches_match_pool_of_one_batch() -> None:
    """Only `sort_within_batch` makes torchtext group by length; the authors' code apparently used the default."""
    text = toy_pairs(500, 1)
    iterator = torchtext_bucket_iterator(text, train=True, shuffle=False)
    expected = [sorted(pair.number for pair in batch) for batch in iterator.batches]
    assert [sorted(batch) for batch in bucketed(range(500), pair_keys(text), 4, pool=1)] == expected


@given(keys=st.lists(st.integers(0, 9), max_size=80), batch_size=st.integers(1, 7), pool=st.integers(1, 4))
def test_bucketed_sorts_each_pool_stably(keys: list[int], batch_size: int, pool: int) -> None:
    order = torch.randperm(len(keys), generator=generator(1)).tolist()
    expected = []
    for start in range(0, len(order), pool * batch_size):
        together = sorted(order[start : start + pool * batch_size], key=keys.__getitem__)
        expected += [together[i : i + batch_size] for i in range(0, len(together), batch_size)]
    assert bucketed(order, keys, batch_size, pool) == expected


@given(
    keys=st.lists(st.integers(0, 9), max_size=80), batch_size=st.integers(1, 7), pool=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_shuffled_buckets_permutes_batches_within_each_pool(
    keys: list[int], batch_size: int, pool: int, seed: int
) -> None:
    found = shuffled_buckets(generator(seed), keys, batch_size, pool)
    batches = bucketed(torch.randperm(len(keys), generator=generator(seed)).tolist(), keys, batch_size, pool)
    assert sorted(n for batch in found for n in batch) == list(range(len(keys)))
    assert len(found) == len(batches)
    for start in range(0, len(batches), pool):
        assert sorted(found[start : start + pool]) == sorted(batches[start : start + pool])


def test_shuffled_buckets_is_determined_by_generator() -> None:
    keys = keys_of(1000)
    one, two, other = (shuffled_buckets(generator(seed), keys, 8) for seed in (5, 5, 6))
    assert one == two
    assert one != other
    same = generator(5)
    assert shuffled_buckets(same, keys, 8) == one
    assert shuffled_buckets(same, keys, 8) != one, "the next epoch's"
    lengths = [keys[batch[0]] for batch in one[:100]]
    assert lengths != sorted(lengths), "batches do not come by length"


def test_batches_have_small_spread_in_source_and_target_length() -> None:
    lengths = torch.randint(8, 40, (6400, 2), generator=generator())
    keys = [length_key(source, target) for source, target in lengths.tolist()]
    spread = torch.stack(
        [lengths[batch].amax(0) - lengths[batch].amin(0) for batch in shuffled_buckets(generator(), keys, 64)]
    )
    assert spread.double().mean(0).max() < 12, "of 31"


def test_empty_input_gives_no_batches() -> None:
    assert bucketed([], [], 4) == []
    assert shuffled_buckets(generator(), [], 4) == []


def test_multi30k_sized_epoch_has_full_batches_but_one() -> None:
    batches = shuffled_buckets(generator(0), keys_of(29_000), 128)
    assert [len(batch) for batch in batches].count(128) == 226
    assert len(batches) == 227


@pytest.mark.parametrize(
    ("length", "lengths", "expected"),
    [
        (1, (16, 24), 16),
        (16, (24, 16), 16),
        (17, (16, 24), 24),
        (25, (16, 24), 32),
        (32, (24,), 32),
        (33, (24,), 48),
        (5, (), 16),
        (20, (40, 30, 50), 30),
    ],
)
def test_padded_length(length: int, lengths: Sequence[int], expected: int) -> None:
    assert padded_length(length, lengths) == expected


@given(length=st.integers(1, 300), lengths=st.lists(st.integers(1, 200), max_size=5))
def test_padded_length_is_smallest_sufficient_length(length: int, lengths: list[int]) -> None:
    found = padded_length(length, lengths)
    assert found >= length
    assert not any(length <= other < found for other in lengths)
    assert found in lengths or (found % 16 == 0 and found - length < 16 and length > max(lengths, default=0))


def test_padded() -> None:
    rows = padded([[5, 6], [], [7, 8, 9]], rows=4, length=3)
    assert rows.dtype == torch.int64
    assert rows.is_contiguous()
    assert rows.tolist() == [[5, 6, 0], [0, 0, 0], [7, 8, 9], [0, 0, 0]]
    assert padded([[5]], 2, 2, pad=-1).tolist() == [[5, -1], [-1, -1]]
    assert padded([], 2, 3).tolist() == [[0] * 3] * 2
    assert padded([], 0, 3).shape == (0, 3)
    assert padded([[]], 1, 0).shape == (1, 0)


def test_padded_raises_when_sentences_do_not_fit() -> None:
    with pytest.raises(IndexError, match="boolean index did not match"):
        padded([[1], [2], [3]], 2, 5)
    with pytest.raises(ValueError, match="cannot assign"):
        padded([[1], [1, 2, 3, 4]], 2, 3)


@given(sentences=st.lists(st.lists(st.integers(4, 9), max_size=7), min_size=1, max_size=6), more=st.integers(0, 5))
def test_padded_matches_torchtext_field(sentences: list[list[int]], more: int) -> None:
    data = pytest.importorskip("torchtext.data")
    words = [*MARKS, *map(str, range(4, 10))]
    field = data.Field(
        init_token="<s>", eos_token="</s>", pad_token="<blank>", fix_length=max(map(len, sentences)) + 2 + more
    )
    expected = [[words.index(word) for word in row] for row in field.pad([[words[n] for n in s] for s in sentences])]
    assert field.pad_token == MARKS[PAD]
    ours = padded([[BEGIN, *sentence, END] for sentence in sentences], len(sentences), field.fix_length)
    assert ours.tolist() == expected
