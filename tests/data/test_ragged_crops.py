"""Tests of resized crops of images of different sizes in one batch, against torchvision's resized_crop on the CPU.

The kernel runs on a GPU if there is one, and otherwise in Triton's interpreter.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resized_crop

from nero.data.images import gpu_decoding as module
from nero.data.images.gpu_decoding import crop_and_resize
from support.fused_steps import DEVICE


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)


def laid_out(image: Tensor, layout: str) -> Tensor:
    """The same pixels in another memory layout."""
    if layout == "interleaved":  # as decoded on the CPU
        return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    if layout == "columns first":
        return image.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "part of a larger one":
        _, height, width = image.shape
        larger = torch.full((4, height + 3, 2 * width + 5), 255, dtype=torch.uint8, device=image.device)
        part = larger[1:, 2 : height + 2, 1 : 2 * width + 1 : 2]
        return part.copy_(image)
    return image


LAYOUTS = ["planar", "interleaved", "columns first", "part of a larger one"]
SIZES = [(20, 31), (40, 25), (3, 7), (30, 22)]
WINDOWS = torch.tensor([[0, 0, 20, 31], [3, 1, 20, 24], [1, 1, 1, 5], [20, 0, 10, 22]])


def torchvision_reference(images: list[Tensor], windows: Tensor, size: int) -> Tensor:
    options = {"interpolation": InterpolationMode.BILINEAR, "antialias": True}
    crops = zip(images, windows.tolist(), strict=True)
    return torch.stack([resized_crop(image.cpu(), *window, [size, size], **options) for image, window in crops])


def check(images: list[Tensor], windows: Tensor, size: int) -> None:
    result = crop_and_resize(images, windows, size, images[0].device)
    assert result.shape == (len(images), 3, size, size)
    assert result.dtype == torch.uint8
    assert result.device.type == images[0].device.type
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert levels_apart(result, images, windows) <= 1
    # For uint8 torchvision may round between the passes over rows and columns; in floating point it does not round.
    exact = torchvision_reference([image.float() for image in images], windows, size)
    assert (result.cpu() - exact).abs().max() < 0.51


def levels_apart(result: Tensor, images: list[Tensor], windows: Tensor) -> int:
    """The largest difference from torchvision's result, of 256 levels."""
    return int((result.cpu().int() - torchvision_reference(images, windows, result.shape[-1]).int()).abs().max())


@st.composite
def windows_in_images(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    height, width = draw(st.integers(1, 45)), draw(st.integers(1, 45))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    return height, width, [draw(st.integers(0, height - rows)), draw(st.integers(0, width - columns)), rows, columns]


@settings(max_examples=25)
@given(
    case=windows_in_images(),
    size=st.integers(8, 24),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 2**31),
)
def test_crop_and_resize_matches_torchvision(
    case: tuple[int, int, list[int]], size: int, layout: str, seed: int
) -> None:
    height, width, window = case
    check([laid_out(noise(height, width, seed).to(DEVICE), layout)], torch.tensor([window]), size)


def test_images_of_different_sizes_are_batched() -> None:
    images = [laid_out(noise(h, w).to(DEVICE), layout) for (h, w), layout in zip(SIZES, LAYOUTS, strict=True)]
    check(images, WINDOWS, 12)


@pytest.mark.parametrize("size", [1, 17, 33])
def test_sizes_not_divisible_by_tile(size: int) -> None:
    check([noise(size + 3, size + 5).to(DEVICE)], torch.tensor([[1, 2, size + 2, size + 3]]), size)


def test_window_of_output_size_is_copied() -> None:
    image = noise(30, 40).to(DEVICE)
    result = crop_and_resize([image], torch.tensor([[5, 9, 18, 18]]), 18, torch.device(DEVICE))
    assert torch.equal(result[0], image[:, 5:23, 9:27])


def test_pixels_outside_window_are_not_read() -> None:
    image = torch.full((3, 30, 30), 255, dtype=torch.uint8, device=DEVICE)
    image[:, 4:24, 6:19] = 0
    assert not crop_and_resize([image], torch.tensor([[4, 6, 20, 13]]), 9, torch.device(DEVICE)).any()


def test_uniform_white_image_stays_white() -> None:
    image = torch.full((3, 23, 29), 255, dtype=torch.uint8, device=DEVICE)
    assert (crop_and_resize([image], torch.tensor([[0, 0, 23, 29]]), 10, torch.device(DEVICE)) == 255).all()


def test_empty_list_gives_empty_batch() -> None:
    result = crop_and_resize([], torch.empty(0, 4, dtype=torch.int64), 8, torch.device(DEVICE))
    assert result.shape == (0, 3, 8, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_falls_back_to_torchvision_without_kernels(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(module, "_has_kernels", lambda device: False)
    images = [laid_out(noise(h, w), layout) for h, w in SIZES]
    result = crop_and_resize(images, WINDOWS, 12, images[0].device)
    assert torch.equal(result, torchvision_reference(images, WINDOWS, 12))
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [128, 176, 224])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_large_images_on_gpu_match_torchvision_on_cpu(size: int, layout: str) -> None:
    generator = torch.Generator().manual_seed(size)
    images, windows = [], []
    for height, width in [*torch.randint(90, 700, (60, 2), generator=generator).tolist(), [2000, 3000]]:
        rows, columns = (int(torch.randint(1, side + 1, (), generator=generator)) for side in (height, width))
        top, left = int(torch.randint(height - rows + 1, (), generator=generator)), width - columns
        images.append(laid_out(noise(height, width, height).cuda(), layout))
        windows.append([top, left, rows, columns])
    check(images, torch.tensor(windows), size)


@pytest.mark.gpu
def test_images_may_be_freed_once_kernel_is_queued_on_side_stream() -> None:
    """Their memory is reused at once, for a tensor that is written after the kernel has read them."""
    wanted = [noise(400, 500, seed) for seed in range(32)]
    windows = torch.tensor([[10, 20, 350, 400]] * 32)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            images = [image.cuda() for image in wanted]
            torch.cuda._sleep(50_000_000)
            result = crop_and_resize(images, windows, 176, images[0].device)
            del images
            torch.full((32 * 3 * 400 * 500,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.current_stream().wait_stream(stream)
    assert levels_apart(result, wanted, windows) <= 1
