"""Tests of batches from image folders: equal for any number of workers and any start, also with damaged images."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.io import decode_image
from torchvision.transforms import v2

from nero.data.images import gpu_decoding
from nero.data.images import loading as image_loading
from nero.data.images import reading as image_reading
from nero.data.images.folders import ListedImages, list_images
from nero.data.images.gpu_decoding import decode_and_crop
from nero.data.images.loading import FEW, DeviceBatch, Faults, ImageStream, Waiting, loaded, to_device
from nero.data.images.reading import FILL, IGNORED, Reader, Request, decode, files_of, read, resized_crop
from support.image_files import DAMAGED, class_folders, encoded, garbage, picture

CPU = torch.device("cpu")
SIZE, BATCH, STEPS, EPOCHS = 12, 5, 4, 3
IMAGES = BATCH * STEPS + 2  # the last two of an epoch are dropped
BLANK = torch.tensor(FILL, dtype=torch.uint8).reshape(3, 1, 1).expand(3, SIZE, SIZE)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ListedImages:
    return class_folders(tmp_path_factory.mktemp("images") / "train", 2, IMAGES // 2)


@pytest.fixture(autouse=True)
def assert_no_child_processes_left() -> Iterator[None]:
    yield
    assert children() == []


def children() -> list[int]:
    return sorted(process.pid or 0 for process in multiprocessing.active_children())


def order(epoch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(epoch)
    return torch.randperm(IMAGES, generator=generator), torch.randint(2**62, (IMAGES,), generator=generator)


def make_stream(images: ListedImages, workers: int = 0, part: range = range(BATCH), **more: Any) -> ImageStream:
    stream = ImageStream(images, SIZE, order, BATCH, part, STEPS, EPOCHS, CPU, workers, **more)
    stream.faults.log = (said := []).append
    stream.said = said  # type: ignore[attr-defined]
    return stream


def by_torchvision(images: ListedImages, number: int, variation: int) -> Tensor:
    """An image decoded and transformed by torchvision, with the random numbers of a variation."""
    # Pillow is not used here, since it bundles its own libjpeg, which may round differently.
    pixels = decode_image(str(images.path(number)), mode="RGB")
    torch.manual_seed(variation)
    flip = torch.rand(()) < 0.5
    shown = v2.RandomResizedCrop(SIZE, antialias=True)(pixels)
    return v2.functional.horizontal_flip(shown) if flip else shown


def centred_batches(reader: Reader, numbers: Tensor, batch: int, workers: int, faults: Faults) -> Iterator[DeviceBatch]:
    """Batches of centre crops, loaded as for validation."""
    return loaded(reader, ([(n, 0) for n in part.tolist()] for part in numbers.split(batch)), workers, CPU, faults)


def assert_same(ours: list[DeviceBatch], theirs: list[DeviceBatch]) -> None:
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


# the reader in a worker


def test_random_crop_does_not_depend_on_rest_of_batch(images: ListedImages) -> None:
    reader = Reader(images, SIZE)
    wanted: list[Request] = [(3, 7), (0, 2**62 - 1), (3, 8), (3, 7), (20, 0)]
    whole = reader.__getitems__(wanted)
    for place, each in enumerate(wanted):
        alone = reader.__getitems__([each])
        assert torch.equal(alone.pixels[0], whole.pixels[place])
        assert alone.flips[0] == whole.flips[place]
    assert not torch.equal(whole.pixels[0], whole.pixels[2]), "another number is another variation"
    assert whole.numbers.tolist() == [3, 0, 3, 3, 20]
    assert whole.labels.tolist() == [0, 0, 0, 0, 1]
    assert whole.faults == {}


@pytest.mark.parametrize("on_device", [False, True])
def test_loading_does_not_change_global_rng_state(images: ListedImages, on_device: bool) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Reader(images, SIZE, on_device=on_device).__getitems__([(0, 1), (1, 2)])
    Reader(images, SIZE, SIZE + 2).__getitems__([(0, 0)])
    assert torch.equal(torch.get_rng_state(), before)
    stream = make_stream(images)
    next(stream.batches(0))
    stream.close()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("on_device", [False, True])
def test_crops_do_not_depend_on_other_threads_that_draw(
    images: ListedImages, monkeypatch: pytest.MonkeyPatch, on_device: bool
) -> None:
    """On a GPU, one thread reads training images while another reads validation images."""
    reader, requests = Reader(images, SIZE, on_device=on_device), [(number, 10 + number) for number in range(BATCH)]
    expected = reader.__getitems__(requests)

    def disturbed(path: Path) -> Tensor:
        torch.manual_seed(0)  # what the other thread may do between two draws
        return read(path)

    monkeypatch.setattr(image_reading, "read", disturbed)
    found = reader.__getitems__(requests)
    assert len(set(map(tuple, expected.windows.tolist()))) == BATCH
    for name in ("pixels", "windows", "flips"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.fixture
def mixed(tmp_path: Path) -> ListedImages:
    """A JPEG, a CMYK JPEG, a PNG with the suffix .JPEG and a file that is not an image."""
    folder = tmp_path / "train" / "class"
    folder.mkdir(parents=True)
    (folder / "0.jpg").write_bytes(encoded(picture(30, 40)))
    (folder / "1.jpg").write_bytes(encoded(picture(31, 41).convert("CMYK")))
    (folder / "2.JPEG").write_bytes(encoded(picture(32, 42), "PNG"))
    (folder / "3.jpg").write_bytes(garbage())
    return list_images(tmp_path / "train")


def test_device_decoding_gets_file_bytes_and_same_windows_as_cpu(
    mixed: ListedImages,
) -> None:
    wanted: list[Request] = [(2, 5), (0, 6), (3, 7), (1, 8), (0, 9)]
    ours, theirs = (Reader(mixed, SIZE, on_device=on_device).__getitems__(wanted) for on_device in (True, False))
    for name in ("flips", "labels", "numbers"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert ours.faults == theirs.faults == {2: "no image"}
    assert ours.labels.tolist() == [0, 0, IGNORED, 0, 0]
    assert ours.pixels.numel() == theirs.files.numel() == 0
    files = files_of(ours)
    for place, (number, _) in enumerate(wanted):
        if number == 0:
            assert torch.equal(files[place], read(mixed.path(0))), "as it lies on disk"
        else:
            assert files[place].ndim == 3, "pixels of what nvJPEG does not take"
        pixels = decode(files[place]) if files[place].ndim == 1 else files[place]
        shown = resized_crop(pixels, tuple(ours.windows[place].tolist()), SIZE)
        assert torch.equal(shown, theirs.pixels[place])
    assert torch.equal(theirs.pixels[2], BLANK)


def test_worker_batches_are_channels_last(images: ListedImages) -> None:
    for reader in (Reader(images, SIZE), Reader(images, SIZE, SIZE)):
        batch = reader.__getitems__([(0, 0), (1, 0)])
        assert batch.pixels.dtype == torch.uint8
        assert batch.pixels.shape == (2, 3, SIZE, SIZE)
        assert batch.pixels.is_contiguous(memory_format=torch.channels_last)


# training batches


def test_training_batches_match_torchvision_transforms(images: ListedImages) -> None:
    batches = list(make_stream(images).batches(1))
    assert len(batches) == STEPS
    numbers, variations = order(1)
    for step, (pixels, labels) in enumerate(batches):
        mine = numbers[step * BATCH : (step + 1) * BATCH]
        assert labels.tolist() == images.labels[mine.numpy()].tolist()
        expected = [by_torchvision(images, int(number), int(variations[number])) for number in mine]
        assert torch.equal(pixels, torch.stack(expected))
        assert pixels.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_same_batches_and_persist_across_epochs(images: ListedImages, workers: int) -> None:
    expected = [list(make_stream(images).batches(epoch)) for epoch in range(EPOCHS)]
    stream = make_stream(images, workers)
    seen = set()
    for epoch in range(EPOCHS):
        batches = stream.batches(epoch)
        first = next(batches)
        seen.add(tuple(children()))
        assert_same([first, *batches], expected[epoch])
        expected_workers = workers if epoch + 1 < EPOCHS else 0
        assert len(children()) == expected_workers
    assert len(seen) == 1, "the same workers all the time"


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_can_resume_mid_epoch(images: ListedImages, workers: int) -> None:
    whole, after = (list(make_stream(images).batches(epoch)) for epoch in (1, 2))
    stream = make_stream(images, workers)
    assert_same(list(stream.batches(1, start=3)), whole[3:])
    assert_same(list(stream.batches(2)), after)
    stream.close()


def test_stream_restarts_workers_when_position_is_not_the_next(images: ListedImages) -> None:
    expected = [list(make_stream(images).batches(epoch)) for epoch in range(EPOCHS)]
    stream = make_stream(images, workers=1)
    begun = stream.batches(0)
    assert_same([next(begun), next(begun)], expected[0][:2])
    first = children()
    assert_same(list(stream.batches(0, start=2)), expected[0][2:])
    assert children() == first, "where the one before stopped, the same workers go on"
    assert_same(list(stream.batches(2)), expected[2])
    assert children() != first
    assert_same(list(stream.batches(0)), expected[0])
    assert_same(list(stream.batches(0)), expected[0])
    stream.close()


def test_batch_parts_concatenate_to_whole_batch(images: ListedImages) -> None:
    whole = list(make_stream(images).batches(0))
    parts = [list(make_stream(images, part=part).batches(0)) for part in (range(2), range(2, 3), range(3, BATCH))]
    joined = [tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True)) for pieces in zip(*parts, strict=True)]
    assert_same(joined, whole)


def test_device_decoding_gives_same_batches_and_reports_failures(mixed: ListedImages) -> None:
    """An image that the device decoder rejects is blank, has no label and is reported like other damaged images."""
    numbers = torch.tensor([0, 1, 2, 3, 0, 2])
    refused = []

    def on_device(files: list[Tensor], windows: Tensor) -> tuple[Tensor, dict[int, str]]:
        refused.append(next(place for place, file in enumerate(files) if file.ndim == 1))
        pixels = [decode(file) if file.ndim == 1 else file for file in files]
        shown = [resized_crop(each, tuple(window), SIZE) for each, window in zip(pixels, windows.tolist(), strict=True)]
        return torch.stack(shown), {refused[-1]: "not by me"}

    def stream(**more: Any) -> ImageStream:
        made = ImageStream(mixed, SIZE, lambda _: (numbers, torch.arange(4)), 6, range(6), 1, 2, CPU, 0, **more)
        made.faults.log = said.append
        return made

    said: list[str] = []
    ((pixels, labels),) = stream().batches(0)
    assert labels.tolist() == [0, 0, 0, IGNORED, 0, 0]
    assert said == ["skipped: train/class/3.jpg: no image"]
    said.clear()
    ((ours, own),) = stream(decode=on_device).batches(0)
    assert refused == [0]
    assert own.tolist() == [IGNORED, 0, 0, IGNORED, 0, 0]
    assert torch.equal(ours[1:], pixels[1:])
    assert torch.equal(ours[0], BLANK)
    assert sorted(said) == ["skipped: train/class/0.jpg: not by me", "skipped: train/class/3.jpg: no image"]


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> ListedImages:
    """Six images: number 1 has a damaged header, and number 4 fails only when it is decoded."""
    images = class_folders(tmp_path_factory.mktemp("torn") / "train", 2, 3, damaged=(1,))
    images.path(4).write_bytes(DAMAGED["truncated"][0])
    return images


def darker(files: list[Tensor], windows: Tensor) -> tuple[Tensor, dict[int, str]]:
    """A device decoder whose output can be recognised by its halved pixel values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_decoding, "_has_kernels", lambda device: False)  # Triton's interpreter is slow
        pixels, failed = decode_and_crop(files, windows, SIZE, CPU)
    return pixels // 2, failed


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**62 - 1)), min_size=1, max_size=FEW))
@example([(number, 7) for number in range(6)])
@example([(1, 7), (4, 8), (0, 9), (4, 10), (1, 11)])
@example([(1, 7), (4, 8)])
@settings(max_examples=60)
def test_damaged_images_are_handled_alike_by_worker_and_device_decoding(
    torn: ListedImages, wanted: list[Request]
) -> None:
    numbers = [number for number, _ in wanted]
    for on_device in (False, True):
        said: list[str] = []
        read = Reader(torn, SIZE, on_device=on_device).__getitems__(wanted)
        assert len(read.pixels) + len(read.lengths) == len(read.labels) == len(wanted)
        pixels, labels = to_device(read, CPU, Faults(torn, said.append), darker if on_device else None)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == [IGNORED if number in (1, 4) else number // 3 for number in numbers]
        expected = [f"skipped: train/{torn.name(number)}" for number in (1, 4) if number in numbers]
        assert sorted(line.rsplit(":", 1)[0] for line in said) == expected
        for place, number in enumerate(numbers):
            assert torch.equal(pixels[place], BLANK) or number != 4


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_uses_device_decoder(images: ListedImages, workers: int) -> None:
    theirs = list(make_stream(images).batches(0))
    stream = make_stream(images, workers, decode=darker)
    for (pixels, labels), (plain, expected) in zip(stream.batches(0), theirs, strict=True):
        assert torch.equal(labels, expected)
        assert torch.equal(pixels, plain // 2)
        assert pixels.is_contiguous(memory_format=torch.channels_last)
    stream.close()


@pytest.mark.parametrize("flips", [[True, False, True], [False] * 3])
def test_stage_flips_only_images_drawn_for_flipping(images: ListedImages, flips: list[bool]) -> None:
    batch = Reader(images, SIZE).__getitems__([(0, 1), (1, 1), (2, 1)])._replace(flips=torch.tensor(flips))
    pixels, _ = to_device(batch, CPU, Faults(images))
    for place, flip in enumerate(flips):
        mirrored = v2.functional.horizontal_flip(batch.pixels[place])
        assert not torch.equal(mirrored, batch.pixels[place])
        assert torch.equal(pixels[place], mirrored if flip else batch.pixels[place])
    assert pixels.is_contiguous(memory_format=torch.channels_last)


def test_about_half_of_the_images_are_flipped(images: ListedImages) -> None:
    flips = Reader(images, SIZE).__getitems__([(0, variation) for variation in range(400)]).flips
    assert 150 < int(flips.sum()) < 250


# damaged images


def test_damaged_images_are_reported_once_and_ignored_in_training(tmp_path: Path) -> None:
    bad = (1, 4, 15)
    images = class_folders(tmp_path / "train", 2, IMAGES // 2, damaged=bad)
    for workers in (0, 2):
        stream = make_stream(images, workers)
        for epoch in range(2):
            numbers, _ = order(epoch)
            for step, (pixels, labels) in enumerate(stream.batches(epoch)):
                for place, number in enumerate(numbers[step * BATCH : (step + 1) * BATCH].tolist()):
                    assert (labels[place] == IGNORED) == (number in bad)
                    assert torch.equal(pixels[place], BLANK) == (number in bad)
        stream.close()
        in_epochs = {number for epoch in range(2) for number in order(epoch)[0][: BATCH * STEPS].tolist()}
        assert in_epochs > set(bad)
        assert sorted(stream.said) == [f"skipped: train/{images.name(number)}: no image" for number in bad]


def test_damaged_images_are_reported_on_stderr_without_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = class_folders(tmp_path / "val", 1, 3, damaged=(1,))
    list(centred_batches(Reader(images, SIZE, SIZE), torch.arange(3), 2, 0, Faults(images)))
    assert capsys.readouterr().err == "skipped: val/class0/001-bad.jpg: no image\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_in_a_row_raise_one_line_error(tmp_path: Path, workers: int) -> None:
    """A failed disk must end the run instead of training on blank images."""
    images = class_folders(tmp_path / "train", 2, IMAGES // 2)
    for number in range(IMAGES):
        images.path(number).unlink()
    stream = make_stream(images, workers)
    assert FEW == 2 * BATCH
    with pytest.raises(RuntimeError) as error:
        list(stream.batches(0))
    number = int(order(0)[0][2 * BATCH])  # the first image of the batch that exceeded the limit
    reason = "No such file or directory"
    assert str(error.value) == f"none of 15 images in a row could be read; of train/{images.name(number)}: {reason}"
    stream.close()


def test_small_last_batch_may_be_entirely_unreadable(tmp_path: Path) -> None:
    """Otherwise a single damaged image would end a run if it were alone in the last batch."""
    count = 2 * BATCH + 1
    images = class_folders(tmp_path / "val", 1, count, damaged=(count - 1,))
    faults = Faults(images, lambda line: None)
    batches = list(centred_batches(Reader(images, SIZE, SIZE), torch.arange(count), BATCH, 0, faults))
    assert batches[-1][1].tolist() == [IGNORED]
    assert len(faults.reasons) == 1


def test_readable_image_resets_count_of_unreadable_images(tmp_path: Path) -> None:
    bad = tuple(range(FEW)) + tuple(range(FEW + 1, 2 * FEW + 2))
    images = class_folders(tmp_path / "val", 1, 2 * FEW + 2, damaged=bad)
    one_by_one = centred_batches(
        Reader(images, SIZE, SIZE), torch.arange(len(images)), 1, 0, Faults(images, lambda line: None)
    )
    for _ in range(2 * FEW + 1):
        next(one_by_one)
    with pytest.raises(RuntimeError, match=rf"^none of {FEW + 1} images in a row could be read"):
        next(one_by_one)


# validation batches


@pytest.mark.parametrize("workers", [0, 2])
def test_validation_batches_keep_order_and_fill_padding_indices(images: ListedImages, workers: int) -> None:
    numbers = torch.tensor([3, 0, 20, 7, 1, -1, -1])
    faults = Faults(images)
    batches = list(centred_batches(Reader(images, SIZE, SIZE + 3), numbers, 3, workers, faults))
    assert [len(labels) for _, labels in batches] == [3, 3, 1]
    pixels, labels = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    assert labels.tolist() == [*images.labels[numbers[:5].numpy()].tolist(), IGNORED, IGNORED]
    transform = v2.Compose([v2.Resize(SIZE + 3, antialias=True), v2.CenterCrop(SIZE)])
    for place, number in enumerate(numbers[:5].tolist()):
        assert torch.equal(pixels[place], transform(decode_image(str(images.path(number)), mode="RGB")))
    assert torch.equal(pixels[5], BLANK)
    assert torch.equal(pixels[6], BLANK)
    assert faults.reasons == {}, "nothing is wrong with what is not there"


# waiting time


def test_waiting_measures_time_blocked_on_next_batch(images: ListedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(image_loading, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(Reader):
        def __getitems__(self, wanted: Any) -> Any:
            now[0] += 3
            return super().__getitems__(wanted)

    stream = make_stream(images)
    stream.reader = Slow(images, SIZE)
    for _ in stream.batches(0):
        now[0] += 10
    assert stream.waiting.read() == 3 * STEPS
    assert stream.waiting.read() == 3 * STEPS, "reading changes nothing"


class Mark:
    """A stand-in for a CUDA event that is completed when it is synchronised."""

    made: ClassVar[list["Mark"]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.is_past = False
        Mark.made.append(self)

    def record(self) -> None:
        self.moment = 5.0 * len(Mark.made) ** 2  # 5, 20, 45, 80 milliseconds

    def synchronize(self) -> None:
        self.is_past = True

    def elapsed_time(self, end: "Mark") -> float:
        assert self.moment < end.moment
        assert end.is_past
        return end.moment - self.moment


def test_gpu_waiting_uses_cuda_events_without_synchronising(monkeypatch: pytest.MonkeyPatch) -> None:
    Mark.made = []
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    waiting = Waiting(torch.device("cuda"))
    for _ in range(2):
        with waiting.measured():
            pass
    assert waiting.seconds == 0
    assert not any(mark.is_past for mark in Mark.made)
    assert waiting.read() == pytest.approx(0.015 + 0.035)
    assert waiting.read() == pytest.approx(0.015 + 0.035)


# worker processes


def process_exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("way", ["closed", "forgotten", "at the end"])
def test_workers_exit_promptly_with_their_stream(images: ListedImages, way: str) -> None:
    stream = make_stream(images, workers=2)
    batches = stream.batches(EPOCHS - 1)
    next(batches)
    processes = children()
    assert len(processes) == 2
    begun = time.monotonic()
    if way == "closed":
        stream.close()
        stream.close()  # closing twice is allowed
    elif way == "at the end":
        list(batches)
    del stream, batches
    assert not any(process_exists(process) for process in processes)
    assert time.monotonic() - begun < 4, "torch gives each worker 5 seconds to end by itself"


LEFT_OPEN = """
import sys
from pathlib import Path
import torch
from nero.data.images.folders import list_images
from nero.data.images.loading import ImageStream

count = torch.arange(8)
order = lambda epoch: (count, count)
stream = ImageStream(list_images(Path(sys.argv[1])), 8, order, 2, range(2), 4, 9, torch.device("cpu"), workers=1)
batches = stream.batches(0)
next(batches)
sys.exit("bye")
"""


@pytest.mark.slow
def test_process_exiting_mid_epoch_does_not_wait_for_workers(images: ListedImages) -> None:
    command = [sys.executable, "-c", LEFT_OPEN, str(images.root)]
    # Workers continue for TERM_GRACE seconds after the SIGTERM that Python sends them at exit.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=image_reading.TERM_GRACE - 5)
    assert ended.stderr.splitlines()[-1] == "bye"


def test_validation_workers_exit_after_last_batch(images: ListedImages) -> None:
    batches = centred_batches(Reader(images, SIZE, SIZE), torch.arange(8), 4, 2, Faults(images))
    next(batches)
    processes = children()
    assert len(processes) == 2
    list(batches)
    assert not any(process_exists(process) for process in processes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_survive_sigint_and_sigterm(images: ListedImages, number: signal.Signals) -> None:
    """Terminals and schedulers signal all processes of a run, which needs batches until it has saved a checkpoint."""
    expected = list(make_stream(images).batches(0))
    stream = make_stream(images, workers=2)
    batches = stream.batches(0)
    begun = [next(batches), next(batches)]  # so that both workers have started
    processes = children()
    for process in processes:
        os.kill(process, number)
    time.sleep(0.05)
    assert_same([*begun, *batches], expected)
    assert_same(list(stream.batches(1)), list(make_stream(images).batches(1)))
    assert children() == processes
    stream.close()


@pytest.mark.parametrize("again", [True, False])
def test_stuck_worker_ends_on_second_sigterm_or_after_grace_period(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """`multiprocessing` terminates remaining workers at exit, which must work even if they are stuck."""
    monkeypatch.setattr(image_reading, "TERM_GRACE", 60 if again else 1)
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=_stay, args=(begun,), daemon=True)
    process.start()
    assert begun.wait(10)
    process.terminate()
    process.join(0.2)
    assert process.is_alive()
    if again:
        process.terminate()
    process.join(5)
    assert process.exitcode == -(signal.SIGTERM if again else signal.SIGALRM)


def _stay(begun: Any) -> None:
    image_reading.defer_signals(0)
    begun.set()
    while True:
        time.sleep(10)


class Garbage:
    """Reports the process that collects it; only the garbage collector can free it, since it refers to itself."""

    def __init__(self, told: Any) -> None:
        self.itself, self.told = self, told

    def __del__(self) -> None:
        self.told.put(os.getpid())


def test_worker_does_not_garbage_collect_inherited_objects() -> None:
    """Collecting an inherited CUDA event would abort a forked worker."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    gc.disable()
    try:
        Garbage(told)
        process = context.Process(target=_collect, args=(told,))
        process.start()
        process.join(30)
    finally:
        gc.enable()
        gc.collect()
    collected = [told.get() for _ in range(2)]
    assert collected == [0, os.getpid()], "the worker's own mark, and then here"


def _collect(told: Any) -> None:
    image_reading.defer_signals(0)
    gc.collect()
    told.put(0)


class Queue:
    """A stand-in for a CUDA stream and for an event in it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.waited = device, 0

    def record_event(self) -> "Queue":
        return self

    def wait_event(self, event: object) -> None:
        self.waited += 1


@pytest.mark.parametrize("end", ["no more", "an error", "closed"])
def test_device_thread_keeps_order_and_prefetch_limit(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    current = Queue(CPU)
    monkeypatch.setattr(torch.cuda, "Stream", Queue)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    threads, read = set(), []

    def loader() -> Iterator[int]:
        for number in range(10):
            threads.add(threading.get_ident())
            read.append(number)
            yield number
        if end == "an error":
            raise OSError("the disk is gone")

    batches = image_loading._in_thread(loader(), lambda number: (torch.tensor([number]),), CPU)  # type: ignore
    assert int(next(batches)[0]) == 0
    if end == "closed":
        for _ in range(500):
            if len(read) > image_loading.DEVICE_PREFETCH:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(read) == 1 + image_loading.DEVICE_PREFETCH
        batches.close()
    else:
        assert [int(batch[0]) for batch in itertools.islice(batches, 9)] == list(range(1, 10))
        assert current.waited == 10
        with pytest.raises(OSError if end == "an error" else StopIteration):
            next(batches)
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert not any(thread.name.startswith("batches to the device") for thread in threading.enumerate())


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_gpu_stream_gives_same_batches_as_cpu_stream(images: ListedImages, workers: int) -> None:
    expected = [list(make_stream(images).batches(epoch)) for epoch in range(EPOCHS)]
    device = torch.device("cuda")
    stream = ImageStream(images, SIZE, order, BATCH, range(BATCH), STEPS, EPOCHS, device, workers)
    for epoch in range(EPOCHS):
        assert_same([(pixels.cpu(), labels.cpu()) for pixels, labels in stream.batches(epoch)], expected[epoch])
    assert stream.waiting.read() > 0
    stream.close()
    next(stream.batches(1, start=2))
    stream.close()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_gpu_stream_ignores_damaged_images_with_either_decoder(torn: ListedImages, workers: int) -> None:
    device, order = torch.device("cuda"), (torch.arange(6), torch.arange(6))
    for by_device in (None, partial(decode_and_crop, size=SIZE, device=device)):
        stream = ImageStream(torn, SIZE, lambda epoch: order, 6, range(6), 1, 3, device, workers, by_device)
        stream.faults.log = lambda line: None
        for pixels, labels in (batch for epoch in range(3) for batch in stream.batches(epoch)):
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            # nvJPEG may decode a truncated file, such as number 4.
            found = labels.tolist()
            assert found == [0, IGNORED, 0, 1, IGNORED, 1] or (by_device and found == [0, IGNORED, 0, 1, 1, 1])


@pytest.mark.gpu
def test_gpu_staging_thread_error_is_raised_to_consumer(images: ListedImages) -> None:
    device = torch.device("cuda")

    def requests() -> Iterator[list[Request]]:
        yield [(0, 0)]
        raise OSError("the disk is gone")

    batches = loaded(Reader(images, SIZE), requests(), 0, device, Faults(images))
    next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
