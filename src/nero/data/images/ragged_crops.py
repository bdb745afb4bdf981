"""A window of each image of a batch, resized to one size, for images of any sizes: torchvision's resized_crop at once.

Resizing photographs one after the other takes a GPU longer to be told than to do. Here one kernel finds all of them by
a table of addresses.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def crop_and_resize(images: Sequence[Tensor], windows: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, size, size] in channels_last format: of each image what its window shows, antialiased bilinear.

    images:   uint8 [3, H, W] each, of any sizes and strides, all on one device
    windows:  int64 [n, 4] on the CPU, in pixels: top, left, height, width; ValueError for one beyond its image

    Up to one level of rounding it is torchvision.transforms.v2.functional.resized_crop on a CPU: crop first, so that
    nothing outside of the window has a part in it.

    On a GPU all is queued on the current stream, where the images must be ready; nothing waits for it. The result
    belongs to that stream: to use it on another one is the caller's business (wait for this stream, `record_stream`),
    and so it is to keep images alive that were allocated on another. Those allocated on this stream may go at once.
    """
    check(images, windows, size)
    device = images[0].device if images else torch.device("cpu")
    if not _has_kernels(device):
        return _one_by_one(images, windows, size)
    from nero.data.images import crop_kernels

    return crop_kernels.crop_and_resize(_on_device(_table(images, windows), device), size)


def check(images: Sequence[Tensor], windows: Tensor, size: int) -> None:
    """ValueError in one line unless `crop_and_resize` can take these."""
    if size < 1:
        raise ValueError(f"a side of {size} pixels is none")
    if windows.shape != (len(images), 4) or windows.dtype != torch.int64 or windows.is_cuda:
        raise ValueError(
            f"{len(images)} images need windows int64 [{len(images)}, 4] on the CPU,"
            f" not {windows.dtype} {list(windows.shape)} on {windows.device}"
        )
    for place, (image, window) in enumerate(zip(images, windows.tolist(), strict=True)):
        if problem := misfit(image, window):
            raise ValueError(f"image {place}: {problem}")
        if image.device != images[0].device:
            raise ValueError(f"image {place} is on {image.device}, the first one on {images[0].device}")


def misfit(image: Tensor, window: Sequence[int]) -> str | None:
    """Why this window (top, left, height, width) cannot be cut out of the image, in one line; None if it can."""
    if image.dtype != torch.uint8 or image.dim() != 3 or len(image) != 3:
        return f"{image.dtype} {list(image.shape)} is not uint8 [3, height, width]"
    top, left, height, width = window
    rows, columns = image.shape[1:]
    if min(top, left) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
        return f"{rows} x {columns} pixels do not hold a window of {height} x {width} at {top}, {left}"
    return None


def _table(images: Sequence[Tensor], windows: Tensor) -> Tensor:
    """What `crop_kernels.crop_and_resize` reads, on the CPU."""
    memory = torch.tensor([(image.data_ptr(), *image.stride()) for image in images], dtype=torch.int64)
    address, channel, row, column = memory.reshape(-1, 4).unbind(1)
    top, left, height, width = windows.unbind(1)
    return torch.stack([address + top * row + left * column, channel, row, column, height, width], 1)


def _on_device(table: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return table
    # The pinned copy is not used for anything else before the stream has read it: torch's allocator sees to that.
    return table.pin_memory().to(device, non_blocking=True)


def _one_by_one(images: Sequence[Tensor], windows: Tensor, size: int) -> Tensor:
    from nero.data.images.decoding import show_window

    device = images[0].device if images else torch.device("cpu")
    result = torch.empty(len(images), size, size, 3, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    for pixels, image, window in zip(result, images, windows.tolist(), strict=True):
        pixels.copy_(show_window(image, window, size))
    return result


@cache
def _has_kernels(device: torch.device) -> bool:
    """Whether `crop_kernels` run on a device."""
    try:
        from nero.data.images import crop_kernels
    except ImportError:
        return False
    # Triton's interpreter (TRITON_INTERPRET=1) runs them anywhere, slowly: for tests.
    if not crop_kernels.COMPILED:
        return True
    return device.type == "cuda" and bool(torch.version.cuda) and torch.cuda.get_device_capability(device) >= (7, 0)
