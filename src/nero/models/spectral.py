"""Layers with spectral norm (a weight is divided by its largest singular value before use), with resampling fused in.

Not torch.nn.utils.parametrizations.spectral_norm, though these layers compute the same (a test compares them), for two
reasons. Under bf16 autocast torch's power iteration runs in bf16, whose eight bits are few for a number that every
output is divided by; here it is always float32. And torch copies a channels-last convolution; here products and sums
on the weight as stored fuse into a few kernels, which matters with 44 weights and two forward passes of each network a
step. On a GPU the power iterations of all layers of a network run together (`SpectralLayers`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.kernels import are_compiled

FIRST_ITERATIONS = 15  # of the power iteration when a layer is made; later one for each forward pass in training
EPS = 1e-12  # lower bound of lengths that something is divided by
BIAS_STD = 0.01  # of the normal distribution that biases start from


class SpectralNorm(nn.Module):
    """Divides a weight by its largest singular value, as a matrix with a row per output.

    u, v:  the singular vectors, as approximated by the power iteration
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        for name, size in zip("uv", _matrix(weight).shape, strict=True):
            self.register_buffer(name, F.normalize(torch.randn(size, dtype=weight.dtype), dim=0, eps=EPS))
        for _ in range(FIRST_ITERATIONS):
            self._iterate(_matrix(weight.detach()))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = _matrix(weight.detach())
        sigma = self._iterate(matrix) if self.training else (self.u * (matrix * self.v).sum(dim=1)).sum()
        # Copies: a second forward pass changes the vectors in place, and a backward pass of the first may follow.
        return _Divide.apply(weight, self.u.clone(), self.v.clone(), sigma)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor) -> Tensor:
        """One power iteration; returns the singular value u @ matrix @ v, which is the length of u @ matrix."""
        u = F.normalize((matrix * self.v).sum(dim=1), dim=0, eps=EPS)
        v = (matrix * u[:, None]).sum(dim=0)
        sigma = torch.linalg.vector_norm(v)
        self.v.copy_(v / sigma.clamp(min=EPS))
        self.u.copy_(u)
        return sigma


class _Divide(torch.autograd.Function):
    """A weight divided by sigma = u @ weight @ v, whose gradient is the outer product of the constants u and v."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, u: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
        ctx.save_for_backward(weight, u, v, sigma)
        return weight / sigma

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, u, v, sigma = ctx.saved_tensors
        share = (grad * weight).sum() / sigma.square()
        along = share * u[:, None] * v
        if weight.ndim == 4:
            outputs, channels, height, width = weight.shape
            along = along.view(outputs, height, width, channels).permute(0, 3, 1, 2)
        return grad / sigma - along, None, None, None


def _matrix(weight: Tensor) -> Tensor:
    """[outputs, all else], with a convolution's channels last: no copy of a channels-last weight."""
    return (weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight).flatten(1)


def _is_matrix(weight: Tensor) -> bool:
    """Whether `_matrix` is no copy."""
    return weight.is_contiguous(memory_format=torch.channels_last if weight.ndim == 4 else torch.contiguous_format)


Weights = Sequence[Tensor] | None
"""The normalised weights of a network's layers, as `SpectralLayers` computes them; None: each layer does it itself."""


class SpectralLayer(nn.Module):
    """Mixin of the layers with spectral norm: orthogonal weights, biases from a narrow normal distribution."""

    weight: Tensor
    place = -1  # among the spectral layers of its network

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.spectral_norm = SpectralNorm(self.weight)

    def reset_parameters(self) -> None:
        # By one thread: the matrices are small, and several take ten times as long when other processes use the cores.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            nn.init.orthogonal_(self.weight)
        finally:
            torch.set_num_threads(threads)
        if (bias := getattr(self, "bias", None)) is not None:
            nn.init.normal_(bias, std=BIAS_STD)

    def normalised(self, weights: Weights) -> Tensor:
        """The weight divided by its largest singular value."""
        return self.spectral_norm(self.weight) if weights is None else weights[self.place]


class Linear(SpectralLayer, nn.Linear):
    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        return F.linear(x, self.normalised(weights), self.bias)


class Embedding(SpectralLayer, nn.Embedding):
    """Takes one-hot rows [N, rows]. A product instead of a look-up, whose gradient on a GPU sums in no fixed order."""

    def forward(self, one_hot: Tensor, weights: Weights = None) -> Tensor:
        return one_hot @ self.normalised(weights)


class Convolution(SpectralLayer, nn.Conv2d):
    """Keeps the image's size, unless it is fused with resampling.

    resample:  "up": after `upsample`; "down": before averaging over 2 x 2 outputs; both for kernels of 3 x 3
    """

    def __init__(self, channels: int, filters: int, kernel: int = 3, resample: str | None = None) -> None:
        super().__init__(channels, filters, kernel, padding=kernel // 2)
        self.resample = resample

    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        weight = self.normalised(weights)
        if self.resample == "up":
            return upsample_and_convolve(x, weight, self.bias)
        if self.resample == "down":
            return convolve_and_average(x, weight, self.bias)
        return F.conv2d(x, weight, self.bias, padding=self.padding)


class SpectralLayers:
    """All spectral layers of a network. On a GPU their power iterations run together."""

    def __init__(self, network: nn.Module) -> None:
        self.layers = [module for module in network.modules() if isinstance(module, SpectralLayer)]
        for place, layer in enumerate(self.layers):
            layer.place = place
        self.has_kernels = are_compiled("nero.models.kernels.spectral")

    def normalised(self, passes: int = 1) -> list[Weights]:
        """The normalised weights for each of several forward passes, with a power iteration each in training."""
        if not (self.has_kernels and self._fits()):
            return [None] * passes
        from nero.models.kernels.spectral import iterate

        norms = [layer.spectral_norm for layer in self.layers]
        rows, columns = [len(norm.u) for norm in norms], [len(norm.v) for norm in norms]
        weights = [layer.weight.detach() for layer in self.layers]
        v = torch.cat([norm.v for norm in norms])
        found: list[Weights] = []
        for _ in range(passes):
            u, v, sigmas = iterate(weights, v, EPS)
            parts = zip(self.layers, u.split(rows), v.split(columns), sigmas.unbind(), strict=True)
            found.append([_Divide.apply(layer.weight, *part) for layer, *part in parts])
        with torch.no_grad():
            torch._foreach_copy_([norm.u for norm in norms], u.split(rows))
            torch._foreach_copy_([norm.v for norm in norms], v.split(columns))
        return found

    def _fits(self) -> bool:
        """Whether the kernels can take the weights: in training, on a GPU, as float32 matrices without a copy."""
        return all(
            layer.training and layer.weight.is_cuda and layer.weight.dtype == torch.float32 and _is_matrix(layer.weight)
            for layer in self.layers
        )


class _Upsample(torch.autograd.Function):
    """The gradient is a sum over 2 x 2 pixels; torch.compile would make atomic additions of torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="nearest")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return F.avg_pool2d(grad, 2, divisor_override=1)


def upsample(x: Tensor) -> Tensor:
    """interpolate(x, scale_factor=2, mode="nearest")"""
    return _Upsample.apply(x)


# A 3 x 3 convolution after nearest-neighbour upsampling, or before 2 x 2 averaging, is one strided convolution with a
# 4 x 4 kernel: the same numbers with 4 instead of 9 products per pixel of the larger image, which is never stored.
# Along one axis, each weight of the 4 x 4 kernel as a combination of the 3. Upsampled: an output sees two of its three
# pixels as one. Averaged: two outputs share a pixel with two of their weights.
UPSAMPLED = ((0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 0.0, 0.0))
AVERAGED = ((0.5, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 0.5, 0.5), (0.0, 0.0, 0.5))


def upsample_and_convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """conv2d(interpolate(x, scale_factor=2, mode="nearest"), weight, bias, padding=1)"""
    return F.conv_transpose2d(x, _combine(weight, UPSAMPLED).transpose(0, 1), bias, stride=2, padding=1)


def convolve_and_average(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """avg_pool2d(conv2d(x, weight, bias, padding=1), 2)"""
    return F.conv2d(x, _combine(weight, AVERAGED), bias, stride=2, padding=1)


def _combine(weight: Tensor, factors: Sequence[Sequence[float]]) -> Tensor:
    """Kernels of 3 x 3 as 4 x 4, by sums: as exact as the weight's dtype, whether autocast is enabled or not."""
    for axis in (3, 2):
        parts = weight.unbind(axis)
        rows = []
        for row in factors:
            used = [part if factor == 1 else part * factor for part, factor in zip(parts, row, strict=True) if factor]
            rows.append(sum(used[1:], start=used[0]))
        weight = torch.stack(rows, dim=axis)
    return weight
