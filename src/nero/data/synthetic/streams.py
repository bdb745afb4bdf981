"""Independent random streams for synthetic data, named by purpose: the same seed gives the same data."""

import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nero.data.images.arrays import ImageSet

CHUNK = 1000  # images drawn at once: bounds the memory


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A generator that depends on the seed, a non-negative integer, and the purpose alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())])))


def image_set(
    name: str,
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    shape: tuple[int, ...],
    seed: int,
    train: int,
    test: int,
) -> ImageSet:
    """Ten classes, whose sizes differ by one at most; training and test images come from different streams.

    draw:  from a generator and labels [N] to uint8 images [N, *shape]
    """

    def drawn(part: str, count: int) -> tuple[Tensor, Tensor]:
        rng = stream(seed, f"{name}/{part}")
        images = np.empty((count, *shape), np.uint8)
        labels = rng.permutation(np.arange(count) % 10)
        for start in range(0, count, CHUNK):
            images[start : start + CHUNK] = draw(rng, labels[start : start + CHUNK])
        return torch.from_numpy(images), torch.from_numpy(labels).long()

    return ImageSet(*drawn("train", train), *drawn("test", test), classes=10)


def uniform(rng: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """float32 draws of shape [count, 1, 1], which broadcast over the pixels of an image."""
    return (low + (high - low) * rng.random((count, 1, 1), np.float32)).astype(np.float32)
