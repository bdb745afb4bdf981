"""Images from folders to the device, ahead of the steps that need them."""

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
from nero.data.images.reading import IGNORED, Centred, ReadImages, Varied, Wanted, files_of, heed_no_terminal

DeviceBatch = tuple[Tensor, Tensor]
"""Images, uint8 [N, 3, size, size], and labels, int64 [N], on the device."""

Decode = Callable[[list[Tensor], Tensor], tuple[Tensor, dict[int, str]]]
"""From files (or pixels) and windows to images on the device, and what could not be read, by place in the batch."""

Order = Callable[[int], tuple[Tensor, Tensor]]
"""From an epoch to the numbers of the images in their order and, for each image, what its variation is drawn from."""

AHEAD = 2
"""Batches that wait on a device for their step."""

FEW = 10
"""Images of which it may be chance that none can be read; of more, something is wrong with where they come from."""


class Faults:
    """Files that could not be read: each is named once, and counted by whoever looks at labels."""

    def __init__(self, images: ListedImages, say: Callable[[str], None] | None = None) -> None:
        self.images = images
        self.say = say or _to_standard_error
        self.reasons: dict[str, str] = {}

    def note(self, number: int, reason: str) -> None:
        name = self.name(number)
        if name not in self.reasons:
            self.reasons[name] = reason
            self.say(f"skipped: {name}: {reason}")

    def name(self, number: int) -> str:
        """Of an image, from its split's folder on."""
        return f"{self.images.root.name}/{self.images.name(number)}"


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Waiting:
    """For how long the device had nothing to do because the next batch was not there."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.seconds = 0.0
        self._gaps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._begun: Any = None

    def begin(self) -> None:
        """All work has been asked for, and the next batch not yet taken."""
        self._begun = self._now()

    def end(self) -> None:
        """The next batch is there."""
        if self.on_gpu:
            self._gaps.append((self._begun, self._now()))
            while self._gaps and self._gaps[0][1].query():
                self._count()
        else:
            self.seconds += self._now() - self._begun

    def read(self) -> float:
        """Seconds in all; waits for the device."""
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
        # The device's own clock: between two marks in its queue nothing but waiting lies.
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


_going_on: "weakref.WeakSet[ImageStream]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before Python waits for its child processes at exit: workers end when they are told to, not by a signal."""
    for stream in list(_going_on):
        stream.close()


class ImageStream:
    """Batches of training images, from any place in the training to its end.

    part:    which of a batch's places this process has
    decode:  how the device decodes; None where workers do
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
        self.reader = Varied(images, size, on_device=decode is not None)
        self.order, self.batch, self.part = order, batch, part
        self.steps, self.epochs, self.workers = steps, epochs, workers
        self.stage = Stage(device, Faults(images), decode)
        self.waiting = Waiting(device)
        self._going: Generator[DeviceBatch, None, None] | None = None
        self._next = (-1, -1)

    def batches(self, epoch: int, start: int = 0) -> Iterator[DeviceBatch]:
        """The epoch's batches from number `start` on. Workers go on to the next epoch by themselves."""
        if self._going is None or self._next != (epoch, start):
            self.close()
            wanted = _wanted(self.order, self.batch, self.part, self.steps, range(epoch, self.epochs), start)
            self._going = staged(_loader(self.reader, wanted, self.workers, self.stage.device), self.stage)
            _going_on.add(self)
        for step in range(start, self.steps):
            self.waiting.begin()
            batch = next(self._going)
            self.waiting.end()
            self._next = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
            yield batch
        if epoch + 1 == self.epochs:
            self.close()

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._going is not None:
            self._going.close()
            self._going = None


def _wanted(order: Order, batch: int, part: range, steps: int, epochs: range, start: int) -> Iterator[list[Wanted]]:
    """What each batch is made of, from number `start` of the first of the epochs on.

    No method: a stream that is part of a circle would be left to the garbage collector, which breaks what workers are
    told by before it ends them.
    """
    for epoch in epochs:
        numbers, variations = order(epoch)
        for step in range(start if epoch == epochs.start else 0, steps):
            begin = step * batch
            mine = numbers[begin + part.start : begin + part.stop]
            yield list(zip(mine.tolist(), variations[mine].tolist(), strict=True))


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
    """These images once, in their order; -1 stands for an image that only fills a batch."""
    wanted = ([(number, 0) for number in chunk.tolist()] for chunk in numbers.split(batch))
    return staged(_loader(Centred(images, size, resize), wanted, workers, device), Stage(device, faults))


def _loader(
    reader: Varied | Centred, wanted: Iterable[list[Wanted]], workers: int, device: torch.device
) -> "Iterator[ReadImages]":
    # torch asks for the numbers of a batch as a list; a generator is one that is asked once.
    loader: DataLoader[Any] = DataLoader(
        reader,  # type: ignore[arg-type]
        batch_sampler=wanted,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        worker_init_fn=heed_no_terminal,
        generator=torch.Generator(),  # torch draws a number for each start, and should not do so from the run's own
    )
    return iter(loader)


def _as_it_is(batch: Any) -> Any:
    return batch


class Stage:
    """The last step of loading: to the device, decoded there if not before, and flipped."""

    def __init__(self, device: torch.device, faults: Faults, decode: Decode | None = None) -> None:
        self.device, self.faults, self.decode = device, faults, decode
        self.unread = 0  # images since the last batch of which something could be read

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
        self._note({**dict(read.faults), **failed}, read.numbers, bool((labels >= 0).any()))
        flips = read.flips.to(self.device, non_blocking=True)
        if read.flips.any():
            pixels = torch.where(flips[:, None, None, None], pixels.flip(3), pixels)
        return pixels, labels.to(self.device, non_blocking=True)

    def _note(self, reasons: dict[int, str], numbers: Tensor, has_others: bool) -> None:
        """Name what could not be read of a batch, by place; RuntimeError in one line if that was all for too long."""
        for place, reason in reasons.items():
            self.faults.note(int(numbers[place]), reason)
        self.unread = 0 if has_others else self.unread + len(reasons)
        if reasons and self.unread > FEW:
            place, reason = next(iter(reasons.items()))
            name = self.faults.name(int(numbers[place]))
            raise RuntimeError(f"none of {self.unread} images in a row could be read; of {name}: {reason}")


def staged(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    """Batches on the device. On a GPU they are brought there by a thread of their own, while steps are computed."""
    return _by_thread(loader, stage) if stage.device.type == "cuda" else _in_turn(loader, stage)


def _in_turn(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    try:
        for read in loader:
            yield stage(read)
    finally:
        del loader  # and with it its workers, also where an exception keeps hold of this frame


def _by_thread(loader: Iterator[ReadImages], stage: Stage) -> Generator[DeviceBatch, None, None]:
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    stop = threading.Event()
    device = torch.cuda.current_device() if stage.device.index is None else stage.device.index

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def bring() -> None:
        try:
            torch.cuda.set_device(device)  # of this thread, which begins with the first
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

    thread = threading.Thread(target=bring, name="batches to the device", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            batch, done = item
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            for tensor in batch:
                tensor.record_stream(current)  # its memory belongs to the other stream
            yield batch
    finally:
        stop.set()
        thread.join()
