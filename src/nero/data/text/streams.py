"""Independent random streams for made-up data, named by what they are for."""

import random
import zlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the seed and the purpose alone; seed is any integer from 0."""
    if seed < 0:
        raise ValueError(f"a seed is a non-negative integer, not {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())])))


def word_stream(seed: int, purpose: str) -> random.Random:
    """The same for choices made one by one, at which Python's own generator is quicker."""
    if seed < 0:
        raise ValueError(f"a seed is a non-negative integer, not {seed}")
    return random.Random(f"{seed}/{purpose}")


def balanced_labels(rng: np.random.Generator, count: int, classes: int) -> np.ndarray:
    """`count` class numbers in random order, each class as often as any other or once more."""
    if count < 0:
        raise ValueError(f"a number of images is not negative: {count}")
    return rng.permutation(np.arange(count) % classes)


def uniform(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """float32 draws, shaped [count, 1, 1] so that they spread over the pixels of their image."""
    return (low + (high - low) * rng.random((count, 1, 1), np.float32)).astype(np.float32)
