"""Loads images from folders to the device while earlier batches are trained on."""

import atexit
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nero.data.images.decoding import FILL
from nero.data.images.folders import ListedImages
from nero.data.images.reading import IGNORED, CentreCrops, RandomCrops, ReadImages, Request, defer_signals, files_of

DeviceBatch = tuple[Tensor, Tensor]
"""Images, uint8 [N, 3, size, size], and labels, int64 [N], on the device."""

Decode = Callable[[list[Tensor], Tensor], tuple[Tensor, dict[int, str]]]
"""From files (or pixels) and windows to images on the device, and the errors by place in the batch."""

Order = Callable[[int], tuple[Tensor, Tensor]]
"""From an epoch to the order of the images, and the seed of each image's random crop."""

DEVICE_PREFETCH = 2
"""Batches that wait on a device for their step."""

FEW = 10
"""If more images than this in a row cannot be read, something is wrong with the storage."""


class Faults:
    """Files that could not be read; each is logged once."""

    def __init__(self, images: ListedImages, log: Callable[[str], None] | None = None) -> None:
        self.images = images
        self.log = log or (lambda line: print(line, file=sys.stderr, flush=True))
        self.reasons: dict[str, str] = {}

    def add(self, number: int, reason: str) -> None:
        name = self.name(number)
        if name not in self.reasons:
            self.reasons[name] = reason
            self.log(f"skipped: {name}: {reason}")

    def name(self, number: int) -> str:
        """The image's path, beginning with its split."""
        return f"{self.images.root.name}/{self.images.name(number)}"


class Waiting:
    """Measures how long the device was idle because the next batch was not ready."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds = 0.0
        self._gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._begun: Any = None

    def begin(self) -> None:
        self._begun = self._now()

    def end(self) -> None:
        if self.on_gpu:
            self._gaps.append((self._begun, self._now()))
            while self._gaps and self._gaps[0][1].query():
                self._count()
        else:
            self.seconds += self._now() - self._begun

    def read(self) -> float:
        """Total seconds; waits for the device."""
        while self._gaps:
            self._gaps[0][1].synchronize()
            self._count()
        return self.seconds

    def _count(self) -> None:
        begin, end = self._gaps.pop(0)
        self.seconds += begin.elapsed_time(end) / 1000

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


class ImageStream:
    """Batches of training images, from any step of the training to its end.

    part:    which places of a batch this process has
    decode:  how the device decodes; None if workers do
    """

    def __init__(
        self,
        images: ListedImages,
        size: int,
        order: Order,
        batch: int,
        part: range,
        steps: int,
        epochs: int,
        device: torch.device,
        workers: int,
        decode: Decode | None = None,
    ) -> None:
        self.reader = RandomCrops(images, size, on_device=decode is not None)
        self.order, self.batch, self.part = order, batch, part
        self.steps, self.epochs, self.workers = steps, epochs, workers
        self.stage = Stage(device, Faults(images), decode)
        self.waiting = Waiting(device)
        self._batches: Generator[DeviceBatch, None, None] | None = None
        self._next = (-1, -1)

    def batches(self, epoch: int, start: int = 0) -> Iterator[DeviceBatch]:
        """The epoch's batches from step `start` on. Workers continue with the next epoch by themselves."""
        if self._batches is None or self._next != (epoch, start):
            self.close()
            requests = _requests(self.order, self.batch, self.part, self.steps, range(epoch, self.epochs), start)
            self._batches = staged(_loader(self.reader, requests, self.workers, self.stage.device), self.stage)
            _active.add(self)
        for step in range(start, self.steps):
            self.waiting.begin()
            batch = next(self._batches)
            self.waiting.end()
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
            begin = step * batch
            mine = numbers[begin + part.start : begin + part.stop]
            yield list(zip(mine.tolist(), seeds[mine].tolist(), strict=True))


def centred_batches(
    images: ListedImages,
    numbers: Tensor,
    size: int,
    resize: int,
    batch: int,
    device: torch.device,
    workers: int,
    faults: Faults,
) -> Iterator[DeviceBatch]:
    """Centre crops of these images once, in order; -1 stands for padding."""
    requests = ([(number, 0) for number in chunk.tolist()] for chunk in numbers.split(batch))
    return staged(_loader(CentreCrops(images, size, resize), requests, workers, device), Stage(device, faults))


def _loader(
    reader: RandomCrops | CentreCrops, requests: Iterable[list[Request]], workers: int, device: torch.device
) -> "Iterator[ReadImages]":
    loader: DataLoader[Any] = DataLoader(
        reader,  # type: ignore[arg-type]
        batch_sampler=requests,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=device.type == "cuda",
        worker_init_fn=defer_signals,
        generator=torch.Generator(),  # torch draws a seed at each start, not from the run's generator
    )
    return iter(loader)


def _unchanged(batch: Any) -> Any:
    return batch


class Stage:
    """The last step of loading: copy to the device, decode there if the workers have not, and flip."""

    def __init__(self, device: torch.device, faults: Faults, decode: Decode | None = None) -> None:
        self.device, self.faults, self.decode = device, faults, decode
        self.unread = 0  # images since the last batch with a readable one

    def __call__(self, read: ReadImages) -> DeviceBatch:
        if self.decode is None:
            failed: dict[int, str] = {}
            pixels = read.pixels.to(self.device, non_blocking=True)
        else:
            pixels, failed = self.decode(files_of(read), read.windows)
        labels = read.labels
        if failed:
            places = torch.tensor(list(failed))
            labels = labels.index_fill(0, places, IGNORED)
            pixels[places.to(self.device)] = torch.tensor(FILL, dtype=torch.uint8, device=self.device)[:, None, None]
        self._add_faults({**dict(read.faults), **failed}, read.numbers, bool((labels >= 0).any()))
        flips = read.flips.to(self.device, non_blocking=True)
        if read.flips.any():
            pixels = torch.where(flips[:, None, None, None], pixels.flip(3), pixels)
        return pixels, labels.to(self.device, non_blocking=True)

    def _add_faults(self, reasons: dict[int, str], numbers: Tensor, has_others: bool) -> None:
        """Log what could not be read, by place in the batch; RuntimeError if nothing could be for too long."""
        for place, reason in reasons.items():
            self.faults.add(int(numbers[place]), reason)
        self.unread = 0 if has_others else self.unread + len(reasons)
        if reasons and self.unread > FEW:
            place, reason = next(iter(reasons.items()))
            name = self.faults.name(int(numbers[place]))
            raise RuntimeError(f"none of {self.unread} images in a row could be read; of {name}: {reason}")


def staged(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    """Batches on the device. On a GPU a thread copies them while steps are computed."""
    return _in_thread(loader, stage) if stage.device.type == "cuda" else _in_sequence(loader, stage)


def _in_sequence(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    try:
        for read in loader:
            yield stage(read)
    finally:
        del loader  # ends its workers, even if an exception keeps this frame alive


def _in_thread(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    ready: queue.Queue[Any] = queue.Queue(DEVICE_PREFETCH)
    stop = threading.Event()
    device = torch.cuda.current_device() if stage.device.index is None else stage.device.index

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def copy() -> None:
        try:
            torch.cuda.set_device(device)  # of this thread: each starts with the first device
            stream = torch.cuda.Stream(device)
            with torch.cuda.stream(stream):
                for read in loader:
                    batch = stage(read)
                    done = torch.cuda.Event()
                    done.record()
                    put((batch, done))
                    if stop.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=copy, name="batches to the device", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            batch, done = item
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            for tensor in batch:
                tensor.record_stream(current)  # its memory was allocated on the other stream
            yield batch
    finally:
        stop.set()
        thread.join()
