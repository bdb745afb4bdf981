"""Valid and damaged image files, and class folders of them."""

import io
import random
from pathlib import Path

import numpy as np
from PIL import Image

from nero.data.images.folders import ListedImages, list_images


def picture(height: int = 37, width: int = 53, seed: int = 0) -> Image.Image:
    """A smooth image, which JPEG preserves well; it is not mirror-symmetric and depends on the seed."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    pixels = np.stack([x, y, 0.5 + 0.5 * np.sin(6 * x * y + seed)], -1) * 255
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def garbage(length: int = 500) -> bytes:
    return random.Random(0).randbytes(length)


SOUND = encoded(picture())
DAMAGED = {
    "truncated": (SOUND[: len(SOUND) * 9 // 10], "image file is truncated"),
    "only a beginning": (SOUND[:30], "Truncated File Read"),
    "garbage": (garbage(), "no image"),
    "text": (b"<html>404 Not Found</html>\n", "no image"),
    "empty": (b"", "an empty file"),
}
"""Contents that are not an image, with the start of the expected error."""


def class_folders(root: Path, classes: int = 2, each: int = 6, damaged: tuple[int, ...] = ()) -> ListedImages:
    """Write `each` JPEG files of varying size per class; those numbered in `damaged` are garbage, named "-bad"."""
    for number in range(classes * each):
        folder = root / f"class{number // each}"
        folder.mkdir(parents=True, exist_ok=True)
        is_bad = number in damaged
        data = garbage() if is_bad else encoded(picture(30 + number % 7, 40 - number % 5, seed=number))
        (folder / f"{number:03d}{'-bad' if is_bad else ''}.jpg").write_bytes(data)
    return list_images(root)


def colour_folders(root: Path, each: int, seed: int = 0) -> None:
    """Write three classes that a small network can tell apart: noise that is mostly red, green or blue."""
    rng = np.random.default_rng(seed)
    for label, name in enumerate(("blue", "green", "red")):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = rng.integers(0, 128, (24, 32, 3))
            pixels[:, :, 2 - label] += 100
            (root / name / f"{number:03d}.jpg").write_bytes(encoded(Image.fromarray(pixels.astype(np.uint8))))
