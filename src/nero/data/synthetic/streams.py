"""Independent random streams for synthetic data, named by purpose: the same seed gives the same data."""

import random
import zlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the seed, a non-negative integer, and the purpose alone."""
    if seed < 0:
        raise ValueError(f"a seed is a non-negative integer, not {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())])))


def word_stream(seed: int, purpose: str) -> random.Random:
    """The same for single choices, for which Python's own generator is faster."""
    if seed < 0:
        raise ValueError(f"a seed is a non-negative integer, not {seed}")
    return random.Random(f"{seed}/{purpose}")


def balanced_labels(rng: np.random.Generator, count: int, classes: int) -> np.ndarray:
    """`count` class numbers in random order, with class sizes that differ by one at most."""
    if count < 0:
        raise ValueError(f"a number of images is not negative: {count}")
    return rng.permutation(np.arange(count) % classes)


def uniform(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """float32 draws of shape [count, 1, 1], which broadcast over the pixels of an image."""
    return (low + (high - low) * rng.random((count, 1, 1), np.float32)).astype(np.float32)
