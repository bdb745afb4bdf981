"""Decodes image files on the CPU, and crops and resizes images as torchvision does."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor

from nero.data.images.folders import JPEG

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, by colour: the usual normalisation."""

FILL = tuple(round(255 * mean) for mean in MEAN)
"""The pixels of an image that could not be read: zero once normalised."""

Box = tuple[int, int, int, int]
"""Top, left, height, width of a crop."""

Window = Callable[[int, int], Box]
"""From an image's height and width to the crop."""


class Unreadable(ValueError):
    """A file is damaged or not an image; the message is one line."""


def read(path: Path) -> Tensor:
    """A file's bytes, uint8."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be read") from error
    if not data:
        raise Unreadable("an empty file")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decode(data: Tensor) -> Tensor:
    """Pixels of an image file, uint8 [3, height, width]. torchvision decodes JPEGs, Pillow everything else."""
    # Not other formats: torchvision's GIF decoder writes out of bounds for a damaged file.
    if bytes(data[: len(JPEG)].tolist()) == JPEG:
        try:
            return decode_jpeg(data, mode=ImageReadMode.RGB)
        except RuntimeError:
            pass
    with _opened(data) as image:
        return pil_to_tensor(_as_bytes(image).convert("RGB"))


def header(data: Tensor) -> tuple[int, int, bool]:
    """Height and width of an image file, and whether nvJPEG can decode it: a JPEG in grey or RGB."""
    with _opened(data) as image:
        return image.height, image.width, image.format == "JPEG" and image.mode in ("RGB", "L")


@contextmanager
def _opened(data: Tensor) -> Iterator[Image.Image]:
    """Opened by Pillow; any exception then or later becomes Unreadable."""
    try:
        with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
            yield image
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise Unreadable(_reason(error)) from error


def _as_bytes(image: Image.Image) -> Image.Image:
    """The upper 8 bits of 16-bit greys; Pillow itself would clip everything above 255 to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))


def _reason(error: Exception) -> str:
    """Pillow's reason in one line; for a file that is no image it would give the address of a buffer."""
    return "no image" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split()) or "no image"


def random_window(size: int) -> Window:
    """The window of torchvision's RandomResizedCrop, drawn from torch's global generator."""
    crop = v2.RandomResizedCrop(size, antialias=True)

    def draw(height: int, width: int) -> Box:
        # Only the size of the image matters: one pixel is expanded to it.
        drawn = crop.make_params([torch.empty(()).expand(3, height, width)])
        return drawn["top"], drawn["left"], drawn["height"], drawn["width"]

    return draw


def resized_crop(pixels: Tensor, window: Box, size: int) -> Tensor:
    """A crop of an image resized to uint8 [3, size, size]; a channels-last layout is kept."""
    part = v2.functional.crop(pixels, *window)
    if part.stride(0) == 1:  # torch would not keep channels last for a crop, whose rows are not adjacent
        part = part.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return _resize(part, [size, size])


def centre_crop(pixels: Tensor, resize: int, size: int) -> Tensor:
    """The centre of an image whose shorter side is first resized to `resize`, as uint8 [3, size, size]."""
    shown: Tensor = v2.functional.center_crop(_resize(pixels, [resize]), [size, size])
    return shown


def _resize(pixels: Tensor, size: list[int]) -> Tensor:
    """As torchvision resizes, with antialiasing; uint8."""
    # torch's AVX kernel for uint8 treats a 1 x 1 output as channels last, and fails if the input is channels first.
    source = pixels if min(size) > 1 else pixels.float()
    resized: Tensor = v2.functional.resize(source, size, antialias=True)
    return resized if resized.dtype == torch.uint8 else resized.round().to(torch.uint8)
