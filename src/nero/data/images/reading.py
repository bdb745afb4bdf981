"""What worker processes do: read image files, and decode them unless the device does."""

import gc
import itertools
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

from nero.data.images.decoding import (
    FILL,
    Box,
    Unreadable,
    Window,
    centre_crop,
    decode,
    header,
    random_window,
    read,
    resized_crop,
)
from nero.data.images.folders import ListedImages

IGNORED = -100
"""The label of an image that could not be read or that pads a batch; torch's losses skip it."""

TERM_GRACE = 30
"""Seconds that a worker continues after SIGTERM, in which its run can checkpoint."""

Request = tuple[int, int]
"""Index of an image, -1 for padding, and the seed of its random crop and flip."""


class ReadImages(NamedTuple):
    """A batch from a worker: few large tensors, since each costs a file descriptor.

    pixels:   uint8 [N, 3, size, size] if the worker has decoded; else empty
    files:    all files' bytes one after another if the device decodes; else empty
    ends:     int64 [N]: where each file ends
    sides:    int64 [N, 2]: height and width if `files` has an image's pixels instead of its file; else 0
    windows:  int64 [N, 4]: top, left, height and width of the crop, for images that the device decodes
    flips:    bool [N]: flip left and right
    labels, numbers:  int64 [N]: labels, and indices of the images
    faults:   places in the batch that could not be read, and why
    """

    pixels: Tensor
    files: Tensor
    ends: Tensor
    sides: Tensor
    windows: Tensor
    flips: Tensor
    labels: Tensor
    numbers: Tensor
    faults: list[tuple[int, str]]


@dataclass(frozen=True)
class RandomCrops:
    """Training images: a random resized crop and a random flip, which depend on the seed in the request alone.

    on_device:  the device decodes: the worker reads the file and draws the crop from the size in its header
    """

    images: ListedImages
    size: int
    on_device: bool = False

    def __getitems__(self, requests: Sequence[Request]) -> ReadImages:
        batch = _Batch(self.size, len(requests), self.on_device)
        window = random_window(self.size)
        # torchvision draws from torch's global generator, which the run may use too.
        with torch.random.fork_rng(devices=[]):
            for number, seed in requests:
                torch.default_generator.manual_seed(seed)
                flip = bool(torch.rand(()) < 0.5)
                try:
                    image, drawn = self._crop(read(self.images.path(number)), window)
                    batch.add(number, int(self.images.labels[number]), image, drawn, flip)
                except Unreadable as error:
                    batch.add_blank(number, str(error), flip)
        return batch.finish()

    def _crop(self, data: Tensor, window: Window) -> tuple[Tensor, Box]:
        """What goes into the batch, and the crop."""
        if self.on_device:
            height, width, device_decodes = header(data)
            return data if device_decodes else decode(data), window(height, width)
        pixels = decode(data)
        drawn = window(*pixels.shape[1:])
        return resized_crop(pixels, drawn, self.size), drawn


@dataclass(frozen=True)
class CentreCrops:
    """Validation images: the shorter side is resized to `resize` pixels, then the centre is cropped.

    Always decoded by the workers, so that metrics do not depend on the device.
    """

    images: ListedImages
    size: int
    resize: int

    def __getitems__(self, requests: Sequence[Request]) -> ReadImages:
        batch = _Batch(self.size, len(requests), on_device=False)
        for number, _ in requests:
            try:
                if number < 0:
                    batch.add_blank(number)
                    continue
                pixels = centre_crop(decode(read(self.images.path(number))), self.resize, self.size)
                batch.add(number, int(self.images.labels[number]), pixels)
            except Unreadable as error:
                batch.add_blank(number, str(error))
        return batch.finish()


class _Batch:
    """Collects images: their pixels or, if the device decodes, their files."""

    def __init__(self, size: int, images: int, on_device: bool) -> None:
        self.size, self.on_device = size, on_device
        # The three bytes of a pixel are adjacent, as the decoder has them and convolutions want them.
        shape = (0 if on_device else images, size, size, 3)
        self.pixels = torch.empty(shape, dtype=torch.uint8).permute(0, 3, 1, 2)
        self.files: list[Tensor] = []
        self.windows: list[Box] = []
        self.rows: list[tuple[int, int, bool]] = []  # number, label, flip
        self.faults: list[tuple[int, str]] = []

    def add(self, number: int, label: int, image: Tensor, window: Box = (0, 0, 0, 0), flip: bool = False) -> None:
        """image: a file's bytes [n] for the device to decode, or pixels [3, height, width]."""
        if self.on_device:
            self.files.append(image)
            self.windows.append(window)
        else:
            self.pixels[len(self.rows)] = image
        self.rows.append((number, label, flip))

    def add_blank(self, number: int, fault: str | None = None, flip: bool = False) -> None:
        """An image that could not be read, or padding."""
        if fault is not None:
            self.faults.append((len(self.rows), fault))
        blank = torch.tensor(FILL, dtype=torch.uint8).reshape(3, 1, 1).expand(3, self.size, self.size)
        self.add(number, IGNORED, blank, (0, 0, self.size, self.size), flip)

    def finish(self) -> ReadImages:
        numbers, labels, flips = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        sides = [tuple(file.shape[1:]) if file.ndim == 3 else (0, 0) for file in self.files]
        flat = [file.contiguous().flatten() for file in self.files]
        return ReadImages(
            self.pixels,
            torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8),
            torch.tensor([len(file) for file in flat], dtype=torch.int64).cumsum(0),
            torch.tensor(sides, dtype=torch.int64).reshape(-1, 2),
            torch.tensor(self.windows, dtype=torch.int64).reshape(-1, 4),
            torch.tensor(flips, dtype=torch.bool),
            torch.tensor(labels, dtype=torch.int64),
            torch.tensor(numbers, dtype=torch.int64),
            self.faults,
        )


def files_of(batch: ReadImages) -> list[Tensor]:
    """For each image that the device decodes, its file [n] or its pixels [3, height, width]."""
    parts = [batch.files[begin:end] for begin, end in itertools.pairwise([0, *batch.ends.tolist()])]
    return [
        part.reshape(3, height, width) if height else part
        for part, (height, width) in zip(parts, batch.sides.tolist(), strict=True)
    ]


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
