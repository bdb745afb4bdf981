"""What worker processes do: read image files, decode them unless the device does, and crop them as torchvision does."""

import gc
import io
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor

from nero.data.images.folders import JPEG, ListedImages

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, by colour: the usual normalisation
FILL = tuple(round(255 * mean) for mean in MEAN)  # an image that could not be read: zero once normalised
IGNORED = -100  # the label of an image that could not be read or that pads a batch; torch's losses skip it
TERM_GRACE = 30  # seconds that a worker continues after SIGTERM, in which its run can checkpoint
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)  # of random crops: the share of the image's area, and width over height
LOG_RATIOS = torch.tensor(RATIOS).log().tolist()  # rounded to float32, as torchvision has them

Box = tuple[int, int, int, int]  # top, left, height, width of a crop
Request = tuple[int, int]  # index of an image, -1 for padding, and the seed of its random crop and flip


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
        if image.mode.startswith("I"):  # 16-bit greys: Pillow would clip everything above 255 to white
            image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
        return pil_to_tensor(image.convert("RGB"))


def header(data: Tensor) -> tuple[int, int, bool]:
    """Height and width of an image file, and whether nvJPEG can decode it: a JPEG in grey or RGB."""
    with _opened(data) as image:
        return image.height, image.width, image.format == "JPEG" and image.mode in ("RGB", "L")


@contextmanager
def _opened(data: Tensor) -> Iterator[Image.Image]:
    """Opened by Pillow; any exception then or later becomes Unreadable, with a reason in one line."""
    try:
        with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
            yield image
    except UnidentifiedImageError as error:  # whose message has the address of a buffer
        raise Unreadable("no image") from error
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise Unreadable(" ".join(str(error).split()) or "no image") from error


def random_window(height: int, width: int, generator: torch.Generator) -> Box:
    """The window that torchvision's RandomResizedCrop would draw, with its defaults, if it took a generator.

    It draws from torch's global one, which threads share: one may read training images while another reads validation
    images.
    """
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*AREAS, generator=generator).item()
        ratio = torch.empty(1).uniform_(*LOG_RATIOS, generator=generator).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(torch.randint(n + 1, (1,), generator=generator)) for n in (height - h, width - w))
            return top, left, h, w
    # No window fitted: the largest one in the centre.
    w, h = min(width, round(height * RATIOS[1])), min(height, round(width / RATIOS[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def resized_crop(pixels: Tensor, window: Box, size: int) -> Tensor:
    """A crop of an image resized to uint8 [3, size, size]; a channels-last layout is kept."""
    part = v2.functional.crop(pixels, *window)
    if part.stride(0) == 1:  # torch would not keep channels last for a crop, whose rows are not adjacent
        part = part.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return _resize(part, [size, size])


def centre_crop(pixels: Tensor, resize: int, size: int) -> Tensor:
    """The centre of an image whose shorter side is first resized to `resize`, as uint8 [3, size, size]."""
    return v2.functional.center_crop(_resize(pixels, [resize]), [size, size])


def _resize(pixels: Tensor, size: list[int]) -> Tensor:
    """As torchvision resizes, with antialiasing; uint8."""
    if min(size) > 1:
        return v2.functional.resize(pixels, size, antialias=True)
    # torch's AVX kernel for uint8 treats a 1 x 1 output as channels last, and fails if the input is channels first.
    return v2.functional.resize(pixels.float(), size, antialias=True).round().to(torch.uint8)


class ReadImages(NamedTuple):
    """A batch from a worker: few large tensors, since each costs a file descriptor."""

    pixels: Tensor  # uint8 [N, 3, size, size] in channels_last format if the worker has decoded; else empty
    files: Tensor  # all files' bytes one after another if the device decodes; else empty, as the next two
    lengths: Tensor  # int64 [N]: bytes of each file
    sides: Tensor  # int64 [N, 2]: height and width if `files` has an image's pixels instead of its file; else 0
    windows: Tensor  # int64 [N, 4]: top, left, height and width of the crop
    flips: Tensor  # bool [N]: flip left and right
    labels: Tensor  # int64 [N]
    numbers: Tensor  # int64 [N]: indices of the images
    faults: dict[int, str]  # places in the batch that could not be read, and why


@dataclass(frozen=True)
class Reader:
    """Reads batches of images.

    resize:     for validation, the shorter side before the centre is cropped; None for training: a random resized crop
                and a random flip, which depend on the seed in the request alone
    on_device:  the device decodes: the worker reads the file and draws the crop from the size in its header. Not for
                validation, so that metrics do not depend on the device
    """

    images: ListedImages
    size: int
    resize: int | None = None
    on_device: bool = False

    def __getitems__(self, requests: Sequence[Request]) -> ReadImages:
        read = [self._read(*request) for request in requests]
        images, windows, flips, labels, reasons = zip(*read, strict=True)
        pixels, files, lengths, sides = (torch.empty(0, dtype=torch.uint8) for _ in range(4))
        if self.on_device:
            sides = torch.tensor([tuple(image.shape[1:]) if image.ndim == 3 else (0, 0) for image in images])
            lengths = torch.tensor([image.numel() for image in images])
            files = torch.cat([image.flatten() for image in images])
        else:  # the three bytes of a pixel are adjacent, as the decoder has them and convolutions want them
            pixels = torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)
        return ReadImages(
            pixels,
            files,
            lengths,
            sides,
            torch.tensor(windows),
            torch.tensor(flips),
            torch.tensor(labels),
            torch.tensor([number for number, _ in requests]),
            {place: reason for place, reason in enumerate(reasons) if reason},
        )

    def _read(self, number: int, seed: int) -> tuple[Tensor, Box, bool, int, str | None]:
        """An image, its window, whether it is flipped, its label, and why it could not be read."""
        generator = torch.Generator().manual_seed(seed)
        flip = self.resize is None and bool(torch.rand((), generator=generator) < 0.5)
        reason = None
        try:
            if number >= 0:
                image, window = self._crop(read(self.images.path(number)), generator)
                return image, window, flip, int(self.images.labels[number]), None
        except Unreadable as error:
            reason = str(error)
        blank = torch.tensor(FILL, dtype=torch.uint8).reshape(3, 1, 1).expand(3, self.size, self.size)
        return blank, (0, 0, self.size, self.size), flip, IGNORED, reason

    def _crop(self, data: Tensor, generator: torch.Generator) -> tuple[Tensor, Box]:
        if self.on_device:
            height, width, device_decodes = header(data)
            return data if device_decodes else decode(data), random_window(height, width, generator)
        pixels = decode(data)
        if self.resize is not None:
            return centre_crop(pixels, self.resize, self.size), (0, 0, self.size, self.size)
        _, height, width = pixels.shape
        window = random_window(height, width, generator)
        return resized_crop(pixels, window, self.size), window


def files_of(batch: ReadImages) -> list[Tensor]:
    """For each image that the device decodes, its file [n] or its pixels [3, height, width]."""
    parts = zip(batch.files.split(batch.lengths.tolist()), batch.sides.tolist(), strict=True)
    return [part.reshape(3, height, width) if height else part for part, (height, width) in parts]


def defer_signals(worker: int) -> None:
    """Have a worker outlive Ctrl-C and SIGTERM, which reach all processes, until its run has checkpointed.

    SIGTERM ends it after a while, or when it comes a second time. Garbage of the run is not collected here: a CUDA
    event among it would abort a worker, which has no CUDA.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)


def _end_later(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(TERM_GRACE)
