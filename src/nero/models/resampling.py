"""A 3 x 3 convolution and a change of the image's size as one convolution with a 4 x 4 kernel.

Nearest-neighbour enlargement shows the convolution each pixel four times, and averaging over 2 x 2 pixels throws most
of its outputs together: either way the same numbers come out of fewer products (4 instead of 9 per pixel of the larger
image), and the larger image need not be written and read once more.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Along one axis, what each of the 4 weights is made of: enlarged, an output sees two of its three pixels as one;
# averaged, two outputs share a pixel with two of their weights.
ENLARGED = ((0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 0.0, 0.0))
AVERAGED = ((0.5, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 0.5, 0.5), (0.0, 0.0, 0.5))


def enlarged(x: Tensor) -> Tensor:
    """interpolate(x, scale_factor=2, mode="nearest")"""
    result: Tensor = _Enlarged.apply(x)
    return result


class _Enlarged(torch.autograd.Function):
    """With a gradient that is a sum over 2 x 2 pixels: torch.compile makes additions to each pixel of the usual one."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return F.avg_pool2d(grad, 2, divisor_override=1)


def enlarge_and_convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """conv2d(interpolate(x, scale_factor=2, mode="nearest"), weight, bias, padding=1)."""
    return F.conv_transpose2d(x, _spread(weight, ENLARGED).transpose(0, 1), bias, stride=2, padding=1)


def convolve_and_average(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """avg_pool2d(conv2d(x, weight, bias, padding=1), 2)."""
    return F.conv2d(x, _spread(weight, AVERAGED), bias, stride=2, padding=1)


def _spread(weight: Tensor, along: tuple[tuple[float, ...], ...]) -> Tensor:
    """Kernels of 3 x 3 as 4 x 4, by sums: as exact as the weight's type, whatever autocast is on."""
    columns = _along(weight, 3, along)
    return _along(columns, 2, along)


def _along(weight: Tensor, axis: int, mix: tuple[tuple[float, ...], ...]) -> Tensor:
    parts = weight.unbind(axis)
    return torch.stack([_sum(parts, factors) for factors in mix], dim=axis)


def _sum(parts: tuple[Tensor, ...], factors: tuple[float, ...]) -> Tensor:
    used = [part * factor if factor != 1 else part for part, factor in zip(parts, factors, strict=True) if factor]
    return sum(used[1:], start=used[0])
