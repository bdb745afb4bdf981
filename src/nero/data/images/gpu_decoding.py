"""Decodes JPEG files on a device, and crops and resizes them there to a batch.

A photograph is copied to the GPU as its file, and nvJPEG decodes a batch in one call. Launching a resize for each image
would take longer than the resizing itself, so one kernel processes all images through a table of pointers.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from nero.data.images.reading import resized_crop


def decode_and_crop(
    encoded: Sequence[Tensor], windows: Tensor, size: int, device: torch.device
) -> tuple[Tensor, dict[int, str]]:
    """uint8 [n, 3, size, size] in channels_last format on the device, and {place: reason} of the images that failed.

    encoded:  uint8 on the CPU: JPEG files [bytes], or decoded images [3, H, W]
    windows:  int64 [n, 4] on the CPU: top, left, height, width

    An image fails if it cannot be decoded or is smaller than its window expects; its pixels are zeros. On a GPU the
    host waits for earlier work of the current stream and for the decoding, but not for the crops.
    """
    files = [entry for entry in encoded if entry.dim() == 1]
    if device.type == "cuda":
        # nvJPEG writes on its own stream into memory that torch considers free once this stream's kernels are queued,
        # so these have to be finished.
        torch.cuda.current_stream(device).synchronize()
        decoded = iter(_decoded_on_gpu(files, device))
    else:
        decoded = map(_decoded_on_cpu, files)
    images: list[Tensor] = []
    failures: dict[int, str] = {}
    windows = windows.clone()
    for place, (entry, window) in enumerate(zip(encoded, windows.tolist(), strict=True)):
        image = next(decoded) if entry.dim() == 1 else entry
        failure = image if isinstance(image, str) else misfit(image, window)
        if isinstance(image, str) or failure:
            failures[place] = str(failure)
            # A black pixel takes its place, so that all are cropped alike.
            image, windows[place] = torch.zeros(3, 1, 1, dtype=torch.uint8), torch.tensor([0, 0, 1, 1])
        images.append(image.to(device))
    return crop_and_resize(images, windows, size, device), failures


def _decoded_on_gpu(files: list[Tensor], device: torch.device) -> list[Tensor | str]:
    """Each image, on the device or the CPU, or why it could not be decoded."""
    if not files:
        return []
    try:
        return list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
    except RuntimeError:
        # One bad file fails the whole call, which does not name it. What was started may still write to freed memory.
        torch.cuda.synchronize(device)
    if len(files) == 1:
        return [_decoded_on_cpu(files[0])]
    half = len(files) // 2
    return _decoded_on_gpu(files[:half], device) + _decoded_on_gpu(files[half:], device)


def _decoded_on_cpu(file: Tensor) -> Tensor | str:
    try:
        return decode_jpeg(file, mode=ImageReadMode.RGB)
    except RuntimeError as error:
        return (str(error).strip().splitlines() or ["unknown reason"])[0]


def misfit(image: Tensor, window: Sequence[int]) -> str | None:
    """Why the window (top, left, height, width) cannot be cropped from the image, or None."""
    if image.dtype != torch.uint8 or image.dim() != 3 or len(image) != 3:
        return f"{image.dtype} {list(image.shape)} is not uint8 [3, height, width]"
    top, left, height, width = window
    rows, columns = image.shape[1:]
    if min(top, left) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
        return f"{rows} x {columns} pixels do not contain a window of {height} x {width} at {top}, {left}"
    return None


def crop_and_resize(images: Sequence[Tensor], windows: Tensor, size: int, device: torch.device) -> Tensor:
    """uint8 [n, 3, size, size] in channels_last format: the window of each image, resized bilinearly with antialiasing.

    images:   uint8 [3, H, W] on the device, of any sizes and strides
    windows:  int64 [n, 4] on the CPU: top, left, height, width. It is not checked that they lie within the images

    Up to one level of rounding it is torchvision's resized_crop on a CPU. On a GPU everything is queued on the current
    stream, to which the result belongs: to use it, or images allocated, on another stream, synchronise as usual
    (`wait_stream`, `record_stream`).
    """
    if _has_kernels(device):
        from nero.data.images import crop_kernels

        memory = torch.tensor([(image.data_ptr(), *image.stride()) for image in images], dtype=torch.int64)
        pointer, channel, row, column = memory.reshape(-1, 4).unbind(1)
        top, left, height, width = windows.unbind(1)
        table = torch.stack([pointer + top * row + left * column, channel, row, column, height, width], 1)
        if device.type == "cuda":  # the allocator keeps the pinned copy until the stream has read it
            table = table.pin_memory().to(device, non_blocking=True)
        return crop_kernels.crop_and_resize(table, size)
    result = torch.empty(len(images), size, size, 3, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    for pixels, image, window in zip(result, images, windows.tolist(), strict=True):
        pixels.copy_(resized_crop(image, window, size))
    return result


@cache
def _has_kernels(device: torch.device) -> bool:
    try:
        from nero.data.images import crop_kernels
    except ImportError:
        return False
    # Triton's interpreter (TRITON_INTERPRET=1) runs them anywhere, slowly: for tests.
    if not crop_kernels.COMPILED:
        return True
    return device.type == "cuda" and bool(torch.version.cuda) and torch.cuda.get_device_capability(device) >= (7, 0)
