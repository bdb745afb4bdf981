"""Batches of sentences of similar length, padded to few shapes: less padding to compute on, and few steps to capture.

The order is that of torchtext's BucketIterator with `sort_within_batch`: shuffled, sorted by length within pools of a
hundred batches, then the batches of each pool shuffled. Without it, which the authors' curves show, that iterator draws
batches at random: a pool is then one batch.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from nero.data.text.parallel_text import PAD


def length_key(source: int, target: int) -> int:
    """The bits of two lengths interleaved, the source's first: pairs similar in both lengths have nearby keys."""
    bits = range(max(source, target).bit_length())
    return sum((source >> bit & 1) << 2 * bit + 1 | (target >> bit & 1) << 2 * bit for bit in bits)


def bucketed(order: Sequence[int], keys: Sequence[int], batch_size: int, pool: int = 100) -> list[list[int]]:
    """Cut examples into batches after a stable sort by `keys[example]` within each pool of `pool` batches."""
    examples = np.asarray(order, np.int64)
    # Sorted by pool first, so that one stable sort of everything sorts each pool.
    pools = np.arange(len(examples)) // (pool * batch_size)
    found = examples[np.lexsort((np.asarray(keys, np.int64)[examples], pools))].tolist()
    return [found[start : start + batch_size] for start in range(0, len(found), batch_size)]


def shuffled_buckets(
    generator: torch.Generator, keys: Sequence[int], batch_size: int, pool: int = 100
) -> list[list[int]]:
    """One epoch's batches of the examples 0 to len(keys) - 1, in an order drawn from a CPU generator."""
    order = torch.randperm(len(keys), generator=generator)
    batches = bucketed(order.tolist(), keys, batch_size, pool)
    shuffled: list[list[int]] = []
    for start in range(0, len(batches), pool):
        together = batches[start : start + pool]
        shuffled += [together[number] for number in torch.randperm(len(together), generator=generator).tolist()]
    return shuffled


def padded_length(length: int, lengths: Sequence[int]) -> int:
    """The smallest of `lengths` that suffices; beyond the largest, the smallest multiple of 16 that suffices."""
    return min((enough for enough in lengths if enough >= length), default=-(-length // 16) * 16)


def padded(sentences: Sequence[Sequence[int]], rows: int, length: int, pad: int = PAD) -> Tensor:
    """int64 [rows, length]: the sentences from the top left, and `pad` elsewhere."""
    sizes = np.fromiter(map(len, sentences), np.int64, len(sentences))
    filled = np.full((rows, length), pad, np.int64)
    inside = np.arange(length) < sizes[:, None]
    filled[: len(sizes)][inside] = np.fromiter(chain.from_iterable(sentences), np.int64, sizes.sum())
    return torch.from_numpy(filled)
