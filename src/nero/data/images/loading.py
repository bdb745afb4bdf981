"""Loads images from folders to the device while earlier batches are trained on."""

import atexit
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nero.data.images.folders import ListedImages
from nero.data.images.reading import FILL, IGNORED, Reader, ReadImages, Request, defer_signals, files_of

DEVICE_PREFETCH = 3  # batches that are copied to a device, or wait there, while the one before is trained on
FEW = 10  # if more images than this in a row cannot be read, something is wrong with the storage

# Images, uint8 [N, 3, size, size], and labels, int64 [N], on the device.
DeviceBatch = tuple[Tensor, Tensor]
# From files (or pixels) and windows to images on the device, and the errors by place in the batch.
Decode = Callable[[list[Tensor], Tensor], tuple[Tensor, dict[int, str]]]
# From an epoch to the order of the images, and the seed of each image's random crop.
Order = Callable[[int], tuple[Tensor, Tensor]]


class Faults:
    """Files that could not be read; each is logged once."""

    def __init__(self, images: ListedImages, log: Callable[[str], None] | None = None) -> None:
        self.images = images
        self.log = log or (lambda line: print(line, file=sys.stderr, flush=True))
        self.reasons: dict[str, str] = {}
        self.unread = 0  # images since the last batch with a readable one

    def add(self, reasons: dict[int, str], any_read: bool) -> None:
        """Log the reasons in a batch, by number of the image; RuntimeError if nothing could be read for too long."""
        named = {f"{self.images.root.name}/{self.images.name(number)}": reasons[number] for number in reasons}
        for name, reason in named.items():
            if name not in self.reasons:
                self.log(f"skipped: {name}: {reason}")
        self.reasons |= named
        self.unread = 0 if any_read else self.unread + len(named)
        if named and self.unread > FEW:
            name, reason = next(iter(named.items()))
            raise RuntimeError(f"none of {self.unread} images in a row could be read; of {name}: {reason}")


class Waiting:
    """Measures how long the device was idle because the next batch was not ready."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds = 0.0
        self._gaps: list[tuple[Any, Any]] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        begin = self._now()
        yield
        self._gaps.append((begin, self._now()))

    def read(self) -> float:
        """Total seconds; waits for the device."""
        for begin, end in self._gaps:
            if self.on_gpu:
                end.synchronize()
            self.seconds += begin.elapsed_time(end) / 1000 if self.on_gpu else end - begin
        self._gaps.clear()
        return self.seconds

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.monotonic()
        # The device's own clock: there is nothing but waiting between two events in its queue.
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


_active: "weakref.WeakSet[ImageStream]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Workers ignore signals, so end them before Python waits for its child processes at exit."""
    for stream in list(_active):
        stream.close()


@dataclass(eq=False)
class ImageStream:
    """Batches of training images, from any step of the training to its end."""

    images: ListedImages
    size: int
    order: Order
    batch: int
    part: range  # which places of a batch this process has
    steps: int
    epochs: int
    device: torch.device
    workers: int
    decode: Decode | None = None  # how the device decodes; None if workers do

    def __post_init__(self) -> None:
        self.reader = Reader(self.images, self.size, on_device=self.decode is not None)
        self.faults, self.waiting = Faults(self.images), Waiting(self.device)
        self._batches: Generator[DeviceBatch, None, None] | None = None
        self._next = (-1, -1)

    def batches(self, epoch: int, start: int = 0) -> Iterator[DeviceBatch]:
        """The epoch's batches from step `start` on. Workers continue with the next epoch by themselves."""
        if self._batches is None or self._next != (epoch, start):
            self.close()
            requests = _requests(self.order, self.batch, self.part, self.steps, range(epoch, self.epochs), start)
            self._batches = loaded(self.reader, requests, self.workers, self.device, self.faults, self.decode)
            _active.add(self)
        for step in range(start, self.steps):
            with self.waiting.measured():
                batch = next(self._batches)
            self._next = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
            yield batch
        if epoch + 1 == self.epochs:
            self.close()

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None


def _requests(order: Order, batch: int, part: range, steps: int, epochs: range, start: int) -> Iterator[list[Request]]:
    """The requests of each batch, from step `start` of the first epoch on.

    Not a method: a stream in a reference cycle would be left to the garbage collector, which breaks the workers' queues
    before it ends the workers.
    """
    for epoch in epochs:
        numbers, seeds = order(epoch)
        for step in range(start if epoch == epochs.start else 0, steps):
            mine = numbers[step * batch :][part.start : part.stop]
            yield list(zip(mine.tolist(), seeds[mine].tolist(), strict=True))


def loaded(
    reader: Reader,
    requests: Iterable[list[Request]],
    workers: int,
    device: torch.device,
    faults: Faults,
    decode: Decode | None = None,
) -> Generator[DeviceBatch, None, None]:
    """Batches on the device. On a GPU a thread copies them while steps are computed."""
    loader: DataLoader[Any] = DataLoader(
        reader,  # type: ignore[arg-type]
        batch_sampler=requests,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=device.type == "cuda",
        worker_init_fn=defer_signals,
        generator=torch.Generator(),  # torch draws a seed at each start, not from the run's generator
    )
    stage = partial(to_device, device=device, faults=faults, decode=decode)
    return _in_thread(iter(loader), stage, device) if device.type == "cuda" else _in_sequence(iter(loader), stage)


def _unchanged(batch: Any) -> Any:
    return batch


def to_device(read: ReadImages, device: torch.device, faults: Faults, decode: Decode | None = None) -> DeviceBatch:
    """The last step of loading: copy to the device, decode there if the workers have not, and flip."""
    reasons, labels = read.faults, read.labels
    if decode is None:
        pixels = read.pixels.to(device, non_blocking=True)
    else:
        pixels, failed = decode(files_of(read), read.windows)
        if failed:
            reasons = {**reasons, **failed}
            places = torch.tensor(list(failed))
            labels = labels.index_fill(0, places, IGNORED)
            pixels[places.to(device)] = torch.tensor(FILL, dtype=torch.uint8, device=device)[:, None, None]
    faults.add({int(read.numbers[place]): reasons[place] for place in reasons}, bool((labels >= 0).any()))
    if read.flips.any():
        flips = read.flips.to(device, non_blocking=True)
        pixels = torch.where(flips[:, None, None, None], pixels.flip(3), pixels)
    return pixels, labels.to(device, non_blocking=True)


Stage = Callable[[ReadImages], DeviceBatch]


def _in_sequence(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    try:
        for read in loader:
            yield stage(read)
    finally:
        del loader  # ends its workers, even if an exception keeps this frame alive


def _in_thread(loader: Iterator[ReadImages], stage: Stage, device: torch.device) -> Generator[DeviceBatch, None, None]:
    stream = torch.cuda.Stream(device)

    def load() -> tuple[DeviceBatch, torch.cuda.Event] | None:
        with torch.cuda.stream(stream):  # and its device: a thread starts with the first one
            for read in loader:
                return stage(read), stream.record_event()
        return None

    pool = ThreadPoolExecutor(1, "batches to the device")
    try:
        prefetched = deque(pool.submit(load) for _ in range(DEVICE_PREFETCH))
        while (item := prefetched.popleft().result()) is not None:
            prefetched.append(pool.submit(load))
            batch, done = item
            current = torch.cuda.current_stream(stream.device)
            current.wait_event(done)
            for tensor in batch:
                tensor.record_stream(current)  # its memory was allocated on the other stream
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)
