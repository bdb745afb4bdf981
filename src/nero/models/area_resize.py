"""Shrinking images on the device by area: each new pixel is the mean of the part of the image that it covers."""

import torch
from torch import Tensor


class AreaResize:
    """Takes uint8 images [..., rows, columns] of one size and gives them as [..., side, side], as OpenCV's INTER_AREA.

    In float64: products of float32 may run in fewer bits on a GPU, and a pixel on the edge between two greys would fall
    to the wrong one.
    """

    def __init__(self, screen: tuple[int, int], side: int, device: torch.device) -> None:
        rows, columns = screen
        if min(screen) < side:
            raise ValueError(f"an image of {rows} x {columns} cannot be shrunk to {side} x {side}")
        self.unchanged = screen == (side, side)
        self.rows = area_weights(rows, side).to(device)
        self.columns = area_weights(columns, side).T.contiguous().to(device)

    def __call__(self, images: Tensor) -> Tensor:
        if self.unchanged:
            return images
        return (self.rows @ (images.to(torch.float64) @ self.columns)).round().to(torch.uint8)


def area_weights(size: int, target: int) -> Tensor:
    """[target, size]: how much each of `size` pixels in a row counts in each of `target`."""
    edges = torch.arange(target + 1, dtype=torch.float64) * size / target
    pixels = torch.arange(size, dtype=torch.float64)
    begin, end = edges[:-1, None], edges[1:, None]
    covered = torch.minimum(end, pixels + 1) - torch.maximum(begin, pixels)
    return covered.clamp(min=0) * target / size
