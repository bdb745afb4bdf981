"""The embedded default in ImageNet's layout: small JPEG files in class folders, made up from a seed.

    <folder>/<name>/{train,val}/<figure>/<number>.jpg

The images are the shapes of drawn_shapes.py, each stretched to a size of its own, so that whatever crops and resizes
photographs has something to do.
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from nero.data.synthetic.seeds import shapes
from nero.data.synthetic.shapes import FIGURES
from nero.data.text.streams import stream

FORMAT = 1  # raised when the same arguments give other files, so that old ones are not taken for new
SHORTEST, LONGEST = 40, 64  # pixels of a side
QUALITY = 90
NAMES = tuple(figure.__name__.removeprefix("_") for figure in FIGURES)


def jpeg_folders(folder: Path, train: int, val: int, seed: int = 0) -> tuple[Path, Path]:
    """The folders of `train` training and `val` validation images in ten classes, under `folder`; made unless there.

    They appear as a whole or not at all: of several processes at once one comes first and the others use what it made,
    and one that was killed leaves at most a hidden folder that nobody reads.
    """
    for count in (train, val):
        if count < len(NAMES):
            raise ValueError(f"{count} images do not fill {len(NAMES)} classes")
    name = f"shapes-{train}-{val}-seed{seed}-v{FORMAT}"
    place = folder / name
    if not place.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder, ignore_cleanup_errors=True) as scratch:
            # Not the scratch folder itself is renamed: only its owner may enter it.
            made = Path(scratch) / name
            _make(made, train, val, seed)
            try:
                made.rename(place)
            except OSError:
                if not place.is_dir():  # else another process was first
                    raise
    return place / "train", place / "val"


def _make(place: Path, train: int, val: int, seed: int) -> None:
    drawn = shapes(seed, train, val)
    _write(place / "train", drawn.train_images, drawn.train_labels, stream(seed, "jpeg folders/train"))
    _write(place / "val", drawn.test_images, drawn.test_labels, stream(seed, "jpeg folders/val"))


def _write(place: Path, images: Tensor, labels: Tensor, rng: np.random.Generator) -> None:
    """images: uint8 [N, 3, side, side]; labels: places in NAMES."""
    for name in NAMES:
        (place / name).mkdir(parents=True)
    pixels = images.permute(0, 2, 3, 1).numpy()
    sizes = rng.integers(SHORTEST, LONGEST, (len(pixels), 2), endpoint=True).tolist()
    for number, (image, label, (width, height)) in enumerate(zip(pixels, labels.tolist(), sizes, strict=True)):
        stretched = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        stretched.save(place / NAMES[label] / f"{number:06d}.jpg", quality=QUALITY)
