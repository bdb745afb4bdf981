"""Image files to pixels, and which part of an image to show."""

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
"""Of ImageNet's pixels, by colour, as everybody normalises them."""

FILL = tuple(round(255 * mean) for mean in MEAN)
"""What stands where an image could not be read: nothing, once normalised."""

Window = Callable[[int, int], tuple[int, int, int, int]]
"""From an image's height and width to the part that is shown: top, left, height, width."""


class Unreadable(ValueError):
    """A file is no image, or a damaged one; the message is one line."""


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
    """Pixels of an image file, uint8 [3, height, width]: of a JPEG by torchvision, of all else by Pillow."""
    # Not other formats: of a damaged GIF, torchvision's decoder writes beyond its memory.
    if bytes(data[: len(JPEG)].tolist()) == JPEG:
        try:
            return decode_jpeg(data, mode=ImageReadMode.RGB)
        except RuntimeError:
            pass
    with _opened(data) as image:
        return pil_to_tensor(_as_bytes(image).convert("RGB"))


def header(data: Tensor) -> tuple[int, int, bool]:
    """Height and width of an image file, and whether it is a JPEG as nvJPEG takes it: grey or of three colours."""
    with _opened(data) as image:
        return image.height, image.width, image.format == "JPEG" and image.mode in ("RGB", "L")


@contextmanager
def _opened(data: Tensor) -> Iterator[Image.Image]:
    """By Pillow; what goes wrong on opening it or afterwards is the file's fault."""
    try:
        with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
            yield image
    except Exception as error:  # a damaged file makes a decoder stumble anywhere
        raise Unreadable(_reason(error)) from error


def _as_bytes(image: Image.Image) -> Image.Image:
    """Greys of 16 bits as the upper 8 of them; Pillow itself would call everything above 255 white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))


def _reason(error: Exception) -> str:
    """Pillow's, in one line; of a file that is no image at all it would give the address of a buffer."""
    return "no image" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split()) or "no image"


def random_window(size: int) -> Window:
    """That of a random resized crop, drawn from torch's own generator: 8 to 100 % of the area, sides 3:4 to 4:3."""
    crop = v2.RandomResizedCrop(size, antialias=True)

    def draw(height: int, width: int) -> tuple[int, int, int, int]:
        # What is asked of an image is its size: one pixel seen everywhere will do.
        drawn = crop.make_params([torch.empty(()).expand(3, height, width)])
        return drawn["top"], drawn["left"], drawn["height"], drawn["width"]

    return draw


def show_window(pixels: Tensor, window: tuple[int, int, int, int], size: int) -> Tensor:
    """A part of an image as uint8 [3, size, size], the bytes of a pixel side by side where they were so before."""
    part = v2.functional.crop(pixels, *window)
    if part.stride(0) == 1:  # of a part whose rows lie apart, torch would give one with the colours apart
        part = part.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return _resize(part, [size, size])


def show_centre(pixels: Tensor, resize: int, size: int) -> Tensor:
    """The middle of an image whose shorter side is made `resize` first, as uint8 [3, size, size]."""
    shown: Tensor = v2.functional.center_crop(_resize(pixels, [resize]), [size, size])
    return shown


def _resize(pixels: Tensor, size: list[int]) -> Tensor:
    """As torchvision resizes, with antialiasing; uint8."""
    # torch's AVX kernel for uint8 takes an output of 1 x 1 to be channels last, and ends in an internal assertion where
    # the input is channels first.
    source = pixels if min(size) > 1 else pixels.float()
    resized: Tensor = v2.functional.resize(source, size, antialias=True)
    return resized if resized.dtype == torch.uint8 else resized.round().to(torch.uint8)
