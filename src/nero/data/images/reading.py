"""What worker processes do: read image files, and decode them unless the device does."""

import gc
import itertools
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor

from nero.data.images.decoding import (
    FILL,
    Unreadable,
    Window,
    decode,
    header,
    random_window,
    read,
    show_centre,
    show_window,
)
from nero.data.images.folders import ListedImages

IGNORED = -100
"""The label of an image that could not be read, or that only fills a batch; what torch's losses pass over."""

PATIENCE = 30
"""Seconds that a worker goes on after SIGTERM, in which its run can checkpoint."""

Wanted = tuple[int, int]
"""Number of an image, -1 for none, and the number that its variation is drawn from."""


class ReadImages(NamedTuple):
    """A batch as it leaves a worker: few large tensors, since each costs a file descriptor.

    pixels:   uint8 [N, 3, size, size], where the worker has decoded; else empty
    files:    bytes of all images' files, one after the other, where the device is to decode; else empty
    ends:     int64 [N]: where each file ends
    sides:    int64 [N, 2]: height and width where `files` has an image's pixels and not its file; else 0
    windows:  int64 [N, 4]: top, left, height and width of the part to show, of images that the device decodes
    flips:    bool [N]: left and right are to be exchanged
    labels:   int64 [N]
    numbers:  int64 [N]: of the images in their listing
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
class Varied:
    """Training images: a random resized crop and a random flip, the same for the same number.

    on_device:  whether the device decodes: the worker then only reads, and draws the window from the file's header
    """

    images: ListedImages
    size: int
    on_device: bool = False

    def __getitems__(self, wanted: Sequence[Wanted]) -> ReadImages:
        batch = _Batch(self.size, len(wanted), self.on_device)
        window = random_window(self.size)
        # torchvision draws from torch's own generator, which may be that of a run: it gets its state back.
        with torch.random.fork_rng(devices=[]):
            for number, variation in wanted:
                torch.default_generator.manual_seed(variation)
                flip = bool(torch.rand(()) < 0.5)
                try:
                    self._add(batch, read(self.images.path(number)), window)
                except Unreadable as fault:
                    batch.add_fault(str(fault))
                batch.place(number, int(self.images.labels[number]), flip)
        return batch.made()

    def _add(self, batch: "_Batch", data: Tensor, window: Window) -> None:
        if self.on_device:
            height, width, as_file = header(data)
            batch.add_file(data if as_file else decode(data), window(height, width))
        else:
            pixels = decode(data)
            batch.add_pixels(show_window(pixels, window(*pixels.shape[1:]), self.size))


@dataclass(frozen=True)
class Centred:
    """Validation images: resized such that the shorter side has `resize` pixels, and the middle of that.

    Always decoded here, as torchvision does it: what is measured should not depend on the device.
    """

    images: ListedImages
    size: int
    resize: int

    def __getitems__(self, wanted: Sequence[Wanted]) -> ReadImages:
        batch = _Batch(self.size, len(wanted), on_device=False)
        for number, _ in wanted:
            if number < 0:
                batch.add_nothing()
                continue
            try:
                batch.add_pixels(show_centre(decode(read(self.images.path(number))), self.resize, self.size))
            except Unreadable as fault:
                batch.add_fault(str(fault))
            batch.place(number, int(self.images.labels[number]), flip=False)
        return batch.made()


class _Batch:
    """A batch of so many images in the making, of their pixels or, where the device decodes, of their files."""

    def __init__(self, size: int, images: int, on_device: bool) -> None:
        self.on_device = on_device
        self.blank = torch.tensor(FILL, dtype=torch.uint8).reshape(3, 1, 1).expand(3, size, size)
        # The three bytes of a pixel side by side, as the decoder has them and convolutions want them.
        shape = (0 if on_device else images, size, size, 3)
        self.pixels = _shared_bytes(math.prod(shape)).reshape(shape).permute(0, 3, 1, 2)
        self.files: list[Tensor] = []
        self.sides: list[tuple[int, int]] = []
        self.windows: list[tuple[int, int, int, int]] = []
        self.flips: list[bool] = []
        self.labels: list[int] = []
        self.numbers: list[int] = []
        self.faults: list[tuple[int, str]] = []

    def add_pixels(self, pixels: Tensor) -> None:
        self.pixels[len(self.labels)] = pixels

    def add_file(self, data: Tensor, window: tuple[int, int, int, int]) -> None:
        """A file's bytes, or its pixels where it is none that the device takes."""
        self.sides.append((data.shape[1], data.shape[2]) if data.ndim == 3 else (0, 0))
        self.files.append(data.contiguous().flatten())
        self.windows.append(window)

    def add_fault(self, reason: str) -> None:
        self.faults.append((len(self.labels), reason))
        size = self.blank.shape[1]
        if self.on_device:
            self.add_file(self.blank, (0, 0, size, size))
        else:
            self.add_pixels(self.blank)

    def add_nothing(self) -> None:
        """An image that only fills the batch."""
        self.add_pixels(self.blank)
        self.place(-1, IGNORED, flip=False)

    def place(self, number: int, label: int, flip: bool) -> None:
        """What goes with the image just added."""
        is_fault = bool(self.faults) and self.faults[-1][0] == len(self.labels)
        self.labels.append(IGNORED if is_fault else label)
        self.numbers.append(number)
        self.flips.append(flip)

    def made(self) -> ReadImages:
        return ReadImages(
            self.pixels,
            torch.cat(self.files) if self.files else torch.empty(0, dtype=torch.uint8),
            torch.tensor([len(file) for file in self.files], dtype=torch.int64).cumsum(0),
            torch.tensor(self.sides, dtype=torch.int64).reshape(-1, 2),
            torch.tensor(self.windows, dtype=torch.int64).reshape(-1, 4),
            torch.tensor(self.flips),
            torch.tensor(self.labels),
            torch.tensor(self.numbers),
            self.faults,
        )


def _shared_bytes(count: int) -> Tensor:
    """Memory that a worker hands over as it is, where torch would copy any other; elsewhere the usual kind."""
    if not count or torch.utils.data.get_worker_info() is None:
        return torch.empty(count, dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(count))


def files_of(batch: ReadImages) -> list[Tensor]:
    """For each image that the device is to decode, its file, or its pixels [3, height, width]."""
    begins = [0, *batch.ends.tolist()]
    parts = [batch.files[begin:end] for begin, end in itertools.pairwise(begins)]
    return [
        part.reshape(3, height, width) if height else part
        for part, (height, width) in zip(parts, batch.sides.tolist(), strict=True)
    ]


def heed_no_terminal(worker: int) -> None:
    """A worker ends when its run does: signals are for the run, which goes on until it has checkpointed.

    A terminal sends Ctrl-C, and a scheduler SIGTERM, to all processes at once. So SIGTERM ends a worker only after a
    while, or when it comes a second time. What the run has left as garbage is not collected here: a CUDA event among
    it, ended in a process that has no CUDA, would abort the worker.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)


def _end_later(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
