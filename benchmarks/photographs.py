"""Synthetic JPEG files that take as long to read as photographs: the same sizes, bytes and compression."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nero.data.synthetic.streams import stream

SIZES = ((500, 375), (500, 333), (375, 500), (400, 300), (500, 400), (640, 480), (333, 500), (500, 281))
"""Widths and heights that are common in ImageNet; the mean is about 470 x 390 pixels."""

QUALITY = 90
DISTINCT = 16
"""Patterns from which images are cropped: a new one for each image would take longer than reading it."""


def write_photographs(folder: Path, classes: Sequence[str], each: int, seed: int) -> int:
    """Write `each` images per class into folders named after the classes; returns their total bytes."""
    rng = stream(seed, "photographs")
    patterns = [_pattern(rng, 1000, 800) for _ in range(DISTINCT)]
    total = 0
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            width, height = SIZES[int(rng.integers(len(SIZES)))]
            pattern = patterns[int(rng.integers(DISTINCT))]
            top, left = int(rng.integers(pattern.shape[0] - height)), int(rng.integers(pattern.shape[1] - width))
            path = folder / name / f"{number:06}.JPEG"
            Image.fromarray(pattern[top : top + height, left : left + width]).save(path, "JPEG", quality=QUALITY)
            total += path.stat().st_size
    return total


def _pattern(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Random colours with most variation at large scales, as in photographs; uint8 [height, width, 3]."""
    total = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((4, 60.0), (16, 40.0), (64, 25.0), (256, 14.0)):
        coarse = rng.standard_normal((cells * height // width + 1, cells, 3), np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[:, :, channel]).resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, channel] += strength * np.asarray(layer)
    total += 12.0 * rng.standard_normal((height, width, 1), np.float32)
    return np.clip(total + 118, 0, 255).astype(np.uint8)
