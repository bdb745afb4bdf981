"""JPEG files to a batch of equally large images on a device: decoded, cropped and resized there.

A photograph crosses to the GPU as the file that it is, and nvJPEG decodes a batch of them in one call.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from nero.data.images.ragged_crops import crop_and_resize, misfit


def decode_and_crop(
    encoded: Sequence[Tensor], windows: Tensor, size: int, device: torch.device
) -> tuple[Tensor, dict[int, str]]:
    """uint8 [n, 3, size, size] in channels_last format on the device, and why some failed: {place: reason in one line}.

    encoded:  uint8 on the CPU each: a JPEG file [bytes], or an image [3, H, W] that is decoded already
    windows:  int64 [n, 4] on the CPU, in pixels: top, left, height, width; see `ragged_crops.crop_and_resize`

    An image fails if no decoder takes it, or if it is not as large as its window wants. Its pixels are zeros.

    On a GPU the host waits for what the current stream was given before, and for the decoding, but not for the crops.
    As there, the result belongs to the current stream.
    """
    images: list[Tensor] = []
    failures: dict[int, str] = {}
    windows = windows.clone()
    for place, (image, window) in enumerate(zip(_decoded(encoded, device), windows.tolist(), strict=True)):
        problem = image if isinstance(image, str) else misfit(image, window)
        if isinstance(image, str) or problem:
            failures[place] = str(problem)
            # A black pixel stands in, so that all are cropped alike.
            images.append(torch.zeros(3, 1, 1, dtype=torch.uint8, device=device))
            windows[place] = torch.tensor([0, 0, 1, 1])
        else:
            images.append(image.to(device))
    return crop_and_resize(images, windows, size).to(device), failures


def _decoded(encoded: Sequence[Tensor], device: torch.device) -> list[Tensor | str]:
    """Each image, on the device or the CPU, or why there is none."""
    outcomes: list[Tensor | str] = list(encoded)
    places = [place for place, entry in enumerate(encoded) if entry.dim() == 1]
    files = [encoded[place] for place in places]
    if device.type == "cuda":
        # nvJPEG writes on a stream of its own, into memory that torch takes to be free once this stream's kernels are
        # queued. They have to be done.
        torch.cuda.current_stream(device).synchronize()
        decoded = _decoded_on_gpu(files, device)
    else:
        decoded = [_decoded_on_cpu(file) for file in files]
    for place, outcome in zip(places, decoded, strict=True):
        outcomes[place] = outcome
    return outcomes


def _decoded_on_gpu(files: list[Tensor], device: torch.device) -> list[Tensor | str]:
    if not files:
        return []
    try:
        return list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
    except RuntimeError:
        # One spoils all, without saying which. What was under way may still be writing to memory that is free again.
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
