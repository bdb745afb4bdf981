"""The embedded default in ImageNet's layout: <folder>/<name>/{train,val}/<figure>/<number>.jpg.

The images are those of shapes.py, each stretched to a random size, so that there is something to crop and resize.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from nero.data.images.jpeg_folders import create
from nero.data.synthetic.shapes import FIGURES, shapes
from nero.data.synthetic.streams import stream

FORMAT = 1  # increased when the same arguments give other files, so that old ones are not reused
SHORTEST, LONGEST = 40, 64  # pixels of a side
QUALITY = 90
NAMES = tuple(FIGURES)


def jpeg_folders(folder: Path, train: int, val: int, seed: int = 0) -> tuple[Path, Path]:
    """The folders of `train` training and `val` validation images in ten classes, created under `folder` if missing."""
    for count in (train, val):
        if count < len(NAMES):
            raise ValueError(f"{count} images do not fill {len(NAMES)} classes")
    place = folder / f"shapes-{train}-{val}-seed{seed}-v{FORMAT}"
    if not place.is_dir():
        create(place, lambda made: _make(made, train, val, seed))
    return place / "train", place / "val"


def _make(place: Path, train: int, val: int, seed: int) -> None:
    drawn = shapes(seed, train, val)
    _write(place / "train", drawn.train_images, drawn.train_labels, stream(seed, "jpeg folders/train"))
    _write(place / "val", drawn.test_images, drawn.test_labels, stream(seed, "jpeg folders/val"))


def _write(place: Path, images: Tensor, labels: Tensor, rng: np.random.Generator) -> None:
    """images: uint8 [N, 3, side, side]; labels: indices into NAMES."""
    for name in NAMES:
        (place / name).mkdir(parents=True)
    pixels = images.permute(0, 2, 3, 1).numpy()
    sizes = rng.integers(SHORTEST, LONGEST, (len(pixels), 2), endpoint=True).tolist()
    for number, (image, label, (width, height)) in enumerate(zip(pixels, labels.tolist(), sizes, strict=True)):
        stretched = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        stretched.save(place / NAMES[label] / f"{number:06d}.jpg", quality=QUALITY)
