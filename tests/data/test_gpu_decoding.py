"""Tests of decoding and cropping JPEG files on a device, against torchvision on the CPU, and of damaged files."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2.functional import resized_crop

from nero.data.images import gpu_decoding as module
from nero.data.images.gpu_decoding import decode_and_crop

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def disable_triton_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has its own tests, and Triton's interpreter would slow these down."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(module, "_has_kernels", lambda device: False)


def jpeg(height: int, width: int, mode: str = "RGB", **options: object) -> Tensor:
    """A JPEG file of a smooth image, since decoders only agree on those."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    pixels = np.stack([x, y, 0.5 + 0.5 * np.sin(9 * x * y)], -1) * 255
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, "JPEG", quality=95, **options)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def wanted(file: Tensor, window: list[int], size: int) -> Tensor:
    return resized_crop(decode_jpeg(file, mode=ImageReadMode.RGB), *window, [size, size])


def garbage(length: int) -> Tensor:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def levels_apart(found: Tensor, expected: Tensor) -> int:
    return int((found.cpu().int() - expected.int()).abs().max())


FILES = [jpeg(20, 30), jpeg(33, 21, "L"), jpeg(25, 25, progressive=True), jpeg(16, 24, "CMYK")]
WINDOWS = torch.tensor([[2, 3, 15, 20], [0, 0, 33, 21], [5, 5, 8, 9], [0, 4, 16, 16]])


def test_decode_and_crop_handles_every_jpeg_variant() -> None:
    result, failures = decode_and_crop(FILES, WINDOWS, 10, CPU)
    assert failures == {}
    assert result.dtype == torch.uint8
    assert result.is_contiguous(memory_format=torch.channels_last)
    expected = torch.stack([wanted(*each, 10) for each in zip(FILES, WINDOWS.tolist(), strict=True)])
    assert levels_apart(result, expected) <= 1


def test_already_decoded_image_is_only_cropped() -> None:
    image = decode_jpeg(FILES[0], mode=ImageReadMode.RGB)
    mixed, failures = decode_and_crop([image, FILES[1]], WINDOWS[:2], 10, CPU)
    assert failures == {}
    assert torch.equal(mixed, decode_and_crop(FILES[:2], WINDOWS[:2], 10, CPU)[0])


DAMAGED = {
    "cut off": (FILES[0][: len(FILES[0]) // 2], "truncated"),
    "only a beginning": (FILES[0][:20], "truncated"),
    "garbage": (garbage(500), "Not a JPEG"),
    "empty": (FILES[0][:0], "non-empty"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_reported_and_black_without_affecting_others(kind: str) -> None:
    bad, words = DAMAGED[kind]
    before = WINDOWS.clone()
    result, failures = decode_and_crop([FILES[0], bad, *FILES[1:3]], WINDOWS[[0, 0, 1, 2]], 10, CPU)
    assert list(failures) == [1]
    assert words in failures[1]
    assert "\n" not in failures[1]
    assert not result[1].any()
    assert torch.equal(result[[0, 2, 3]], decode_and_crop(FILES[:3], WINDOWS[:3], 10, CPU)[0])
    assert torch.equal(WINDOWS, before)


@pytest.mark.parametrize(
    "window", [[0, 0, 21, 30], [0, 15, 20, 16], [-1, 0, 5, 5], [0, -1, 5, 5], [16, 0, 5, 5], [0, 0, 0, 5], [0, 0, 5, 0]]
)
@pytest.mark.parametrize("decoded", [False, True])
def test_window_outside_image_is_reported_as_failure(window: list[int], decoded: bool) -> None:
    first = decode_jpeg(FILES[0], mode=ImageReadMode.RGB) if decoded else FILES[0]
    result, failures = decode_and_crop([first, FILES[1]], torch.tensor([window, WINDOWS[1].tolist()]), 10, CPU)
    assert failures == {
        0: f"20 x 30 pixels do not contain a window of {window[2]} x {window[3]} at {window[0]}, {window[1]}"
    }
    assert not result[0].any()
    assert result[1].any()


@pytest.mark.parametrize("entry", [torch.zeros(1, 9, 9, dtype=torch.uint8), torch.zeros(3, 9, 9), FILES[0][None, None]])
def test_tensor_that_is_not_an_rgb_image_is_reported_as_failure(entry: Tensor) -> None:
    result, failures = decode_and_crop([entry], torch.tensor([[0, 0, 5, 5]]), 8, CPU)
    assert list(failures) == [0]
    assert "is not uint8 [3, height, width]" in failures[0]
    assert not result.any()


def test_decode_and_crop_handles_all_failures_and_empty_input() -> None:
    result, failures = decode_and_crop([garbage(50), garbage(60)], WINDOWS[:2], 8, CPU)
    assert sorted(failures) == [0, 1]
    assert result.shape == (2, 3, 8, 8)
    assert not result.any()
    result, failures = decode_and_crop([], WINDOWS[:0], 8, CPU)
    assert result.shape == (0, 3, 8, 8)
    assert failures == {}


def test_mismatched_number_of_windows_and_files_raises() -> None:
    for windows in (WINDOWS[:1], WINDOWS[:3]):
        with pytest.raises(ValueError, match="argument"):
            decode_and_crop(FILES[:2], windows, 8, CPU)


class Gpu:
    """A stand-in for nvJPEG, which decodes all files of a list or none; records the number of files of each call."""

    def __init__(self, *refused: Tensor) -> None:
        self.refused = [file.data_ptr() for file in refused]
        self.calls: list[int] = []
        self.waits = 0

    def decode(self, files: list[Tensor] | Tensor, mode: ImageReadMode, device: torch.device = CPU) -> object:
        if device == CPU:
            return decode_jpeg(files, mode=mode)
        assert isinstance(files, list)
        self.calls.append(len(files))
        if any(file.data_ptr() in self.refused for file in files):
            raise RuntimeError("Error while decoding JPEG images: one of them")
        return decode_jpeg(files, mode=mode)

    def synchronize(self, device: torch.device) -> None:
        self.waits += 1


@pytest.mark.parametrize("refused", [[], [0], [3], [1, 2], [0, 1, 2, 3]])
def test_files_rejected_by_gpu_decoder_are_decoded_on_cpu(monkeypatch: pytest.MonkeyPatch, refused: list[int]) -> None:
    """The device must be synchronised after a failure, since the decoder may still be writing."""
    gpu = Gpu(*(FILES[place] for place in refused))
    monkeypatch.setattr(module, "decode_jpeg", gpu.decode)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    found = module._decoded_on_gpu(FILES, torch.device("cuda"))
    for image, file in zip(found, FILES, strict=True):
        assert isinstance(image, Tensor)
        assert torch.equal(image, decode_jpeg(file, mode=ImageReadMode.RGB))
    assert gpu.calls[0] == 4
    assert gpu.calls.count(1) <= 2 * len(refused)
    assert (gpu.waits > 0) == bool(refused)


def test_file_rejected_by_both_decoders_does_not_fail_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = garbage(100)
    gpu = Gpu(bad)
    monkeypatch.setattr(module, "decode_jpeg", gpu.decode)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    found = module._decoded_on_gpu([*FILES[:2], bad, *FILES[2:]], torch.device("cuda"))
    assert [isinstance(outcome, str) for outcome in found] == [False, False, True, False, False]
    assert module._decoded_on_gpu([], torch.device("cuda")) == []


# GPU


@pytest.mark.gpu
def test_gpu_decoding_is_close_to_cpu_decoding() -> None:
    """Decoders may round and upsample the colour channels differently."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(200, 600, (48, 2), generator=generator).tolist()
    kinds = [{}, {"subsampling": 0}, {"progressive": True}] * 16
    files = [jpeg(*size, **options) for size, options in zip(sizes, kinds, strict=True)]
    files[5] = jpeg(*sizes[5], "L")
    images: list[Tensor] = list(files)
    images[7] = decode_jpeg(files[7], mode=ImageReadMode.RGB)
    windows = torch.tensor([[h // 8, w // 5, h // 2 + 1, w // 2 + 1] for h, w in sizes])
    stream = torch.cuda.Stream()
    for _ in range(3):  # each batch can reuse the memory of the previous one
        with torch.cuda.stream(stream):
            result, failures = decode_and_crop(images, windows, 176, torch.device("cuda"))
    torch.cuda.current_stream().wait_stream(stream)
    assert failures == {}
    assert result.is_cuda
    assert result.is_contiguous(memory_format=torch.channels_last)
    expected = torch.stack([wanted(*each, 176) for each in zip(files, windows.tolist(), strict=True)])
    difference = (result.cpu().int() - expected.int()).abs().float()
    assert difference.mean() < 1
    assert difference.max() <= 24
    assert difference[7].max() <= 1


@pytest.mark.gpu
def test_damaged_files_do_not_affect_others_on_gpu() -> None:
    good = [jpeg(200, 300), jpeg(150, 400, "L"), jpeg(300, 200, progressive=True), jpeg(99, 120, "CMYK")]
    windows = torch.tensor([[0, 0, 150, 200], [0, 0, 150, 400], [10, 10, 200, 180], [0, 0, 99, 120], [0, 0, 10, 10]])
    device = torch.device("cuda")
    alone, failures = decode_and_crop(good, windows[:4], 128, device)
    assert failures == {}
    for bad in (garbage(5000), good[0][:30], good[0][:0]):
        for _ in range(2):
            result, failures = decode_and_crop([*good, bad], windows, 128, device)
            assert list(failures) == [4]
            assert not result[4].any()
            assert torch.equal(result[:4], alone)


@pytest.mark.gpu
def test_truncated_file_does_not_affect_others_on_gpu() -> None:
    """nvJPEG may accept half a file; the other images must be correct in any case."""
    file, device = jpeg(300, 400), torch.device("cuda")
    windows = torch.tensor([[0, 0, 300, 400]] * 2)
    alone, _ = decode_and_crop([file], windows[:1], 128, device)
    for part in (2, 3, 10):
        result, failures = decode_and_crop([file, file[: len(file) // part]], windows, 128, device)
        assert set(failures) <= {1}
        assert torch.equal(result[0], alone[0])
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_gpu_decoder_does_not_overwrite_memory_in_use_on_stream() -> None:
    """Memory that is freed while a kernel that reads it is still queued is the first to be reused by the decoder."""
    file = jpeg(375, 500)
    windows = torch.tensor([[0, 0, 375, 500]] * 16)
    with torch.cuda.stream(torch.cuda.Stream()):
        for round_ in range(3):
            blocks = [torch.full((3, 375, 500), round_ + 1, dtype=torch.uint8, device="cuda") for _ in range(16)]
            torch.cuda._sleep(100_000_000)
            sums = [block.sum() for block in blocks]
            del blocks
            decode_and_crop([file] * 16, windows, 64, torch.device("cuda"))
            assert [int(total) for total in sums] == [3 * 375 * 500 * (round_ + 1)] * 16
