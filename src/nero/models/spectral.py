"""Layers with spectral norm: a weight is divided by its largest singular value before it is used.

Not by torch.nn.utils.parametrizations.spectral_norm, though these layers compute what it does (a test holds one against
the other), for two reasons. Under bf16 autocast torch's power iteration runs in bf16, whose eight bits are few for a
number that every output is divided by; here it is float32 whatever is around it. And torch's works on a copy of a
convolution whose channels lie last, where products and sums on the weight as it lies in memory let a compiler make a
few kernels of it, which counts with 44 weights and two forward passes of each network a step. On a GPU a network has
the power iterations of all its layers done at once (`SpectralLayers`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.initialisation import orthogonal_
from nero.models.kernels.compiled import are_compiled
from nero.models.resampling import convolve_and_average, enlarge_and_convolve

FIRST_ITERATIONS = 15
"""Of the power iteration when a layer is made; then one for each forward pass of training."""

EPS = 1e-12
"""What lengths are at least, before something is divided by them."""

BIAS_STD = 0.01
"""Of the normal distribution that biases start from."""


class SpectralNorm(nn.Module):
    """Gives a weight divided by its largest singular value, as a matrix with a row per output.

    u, v:  the singular vectors, as far as the power iteration has found them
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rows, columns = _matrix(weight).shape
        self.register_buffer("u", F.normalize(torch.randn(rows, dtype=weight.dtype), dim=0, eps=EPS))
        self.register_buffer("v", F.normalize(torch.randn(columns, dtype=weight.dtype), dim=0, eps=EPS))
        with torch.no_grad():
            for _ in range(FIRST_ITERATIONS):
                self._iterate(_matrix(weight.detach()))

    def forward(self, weight: Tensor) -> Tensor:
        matrix = _matrix(weight.detach())
        sigma = self._iterate(matrix) if self.training else (self.u * (matrix * self.v).sum(dim=1)).sum()
        # Copies: a second forward pass changes the vectors in place, and a backward pass of the first may follow.
        return _Divided.apply(weight, self.u.clone(), self.v.clone(), sigma)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor) -> Tensor:
        """One power iteration; returns the singular value that belongs to its vectors, u @ matrix @ v.

        That is the length of u @ matrix, which v is divided by.
        """
        u = F.normalize((matrix * self.v).sum(dim=1), dim=0, eps=EPS)
        v = (matrix * u[:, None]).sum(dim=0)
        sigma = torch.linalg.vector_norm(v)
        self.v.copy_(v / sigma.clamp(min=EPS))
        self.u.copy_(u)
        return sigma


class _Divided(torch.autograd.Function):
    """A weight divided by its singular value u @ weight @ v, with u and v taken for constants, as torch takes them.

    Given the value, which a power iteration has anyway, so that it need not be computed again for its gradient: that
    is the outer product of u and v.
    """

    @staticmethod
    def forward(weight: Tensor, u: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
        return weight / sigma

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

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
    """[outputs, all else], with the channels of a convolution last: no copy of one that lies so in memory."""
    return (weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight).flatten(1)


Weights = Sequence[Tensor] | None
"""Of a network's layers, by their place among them, as `SpectralLayers` divides them; None: each does so by itself."""


class SpectralLayer(nn.Module):
    """A layer with spectral norm.

    place:  among the layers of its network
    """

    weight: Tensor
    spectral_norm: SpectralNorm
    place = -1

    def divided(self, weights: Weights) -> Tensor:
        """The weight divided by its singular value."""
        return self.spectral_norm(self.weight) if weights is None else weights[self.place]


class SpectralLayers:
    """All layers with spectral norm of a network: where there are kernels for it, they are iterated at once."""

    def __init__(self, network: nn.Module) -> None:
        self.layers = [module for module in network.modules() if isinstance(module, SpectralLayer)]
        for place, layer in enumerate(self.layers):
            layer.place = place
        self.has_kernels = are_compiled("nero.models.kernels.spectral")

    def divided(self, passes: int = 1) -> list[Weights]:
        """The divided weights for each of so many forward passes, each with a power iteration in training."""
        if not (self.has_kernels and self._fits()):
            return [None] * passes
        norms = [layer.spectral_norm for layer in self.layers]
        rows, columns = [len(norm.u) for norm in norms], [len(norm.v) for norm in norms]
        weights = [layer.weight.detach() for layer in self.layers]
        v = torch.cat([norm.v for norm in norms])
        found: list[Weights] = []
        for _ in range(passes):
            u, v, sigmas = iterate_all(weights, v)
            parts = zip(self.layers, u.split(rows), v.split(columns), sigmas.unbind(), strict=True)
            found.append([_Divided.apply(layer.weight, *part) for layer, *part in parts])
        with torch.no_grad():
            torch._foreach_copy_([norm.u for norm in norms], u.split(rows))
            torch._foreach_copy_([norm.v for norm in norms], v.split(columns))
        return found

    def _fits(self) -> bool:
        """Whether kernels can take the weights: in training, on a GPU, as matrices that need no copy."""
        return all(
            layer.training and layer.weight.is_cuda and layer.weight.dtype == torch.float32 and _is_matrix(layer.weight)
            for layer in self.layers
        )


@torch.library.custom_op("nero::iterate_all", mutates_args=())
def iterate_all(weights: list[Tensor], v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A power iteration of each weight, from their v one after the other: their u, their v and their singular values.

    An operation of its own, of which a compiler sees no more than that.
    """
    from nero.models.kernels.spectral import iterate

    return iterate(weights, v, EPS)


@iterate_all.register_fake
def _(weights: list[Tensor], v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return v.new_empty(sum(len(weight) for weight in weights)), torch.empty_like(v), v.new_empty(len(weights))


def _is_matrix(weight: Tensor) -> bool:
    """Whether `_matrix` is no copy."""
    return weight.is_contiguous(memory_format=torch.channels_last if weight.ndim == 4 else torch.contiguous_format)


class Linear(nn.Linear, SpectralLayer):
    """A linear layer with spectral norm; orthogonal weights, biases from a narrow normal distribution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.spectral_norm = SpectralNorm(self.weight)

    def reset_parameters(self) -> None:
        _draw_(self)

    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        return F.linear(x, self.divided(weights), self.bias)


class Convolution(nn.Conv2d, SpectralLayer):
    """A convolution with spectral norm that keeps the image's size, likewise."""

    def __init__(self, channels: int, filters: int, kernel: int) -> None:
        super().__init__(channels, filters, kernel, padding=kernel // 2)
        self.spectral_norm = SpectralNorm(self.weight)

    def reset_parameters(self) -> None:
        _draw_(self)

    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        return F.conv2d(x, self.divided(weights), self.bias, padding=self.padding)


class EnlargingConvolution(Convolution):
    """Likewise, of 3 x 3 pixels, on the image enlarged to twice its side by nearest neighbours."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(channels, filters, kernel=3)

    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        return enlarge_and_convolve(x, self.divided(weights), self.bias)


class AveragingConvolution(Convolution):
    """Likewise, of 3 x 3 pixels, averaged over each 2 x 2 of its outputs to half the side."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(channels, filters, kernel=3)

    def forward(self, x: Tensor, weights: Weights = None) -> Tensor:
        return convolve_and_average(x, self.divided(weights), self.bias)


class Embedding(nn.Embedding, SpectralLayer):
    """A table with spectral norm and orthogonal rows. Takes one-hot rows [N, rows], gives [N, width].

    A product instead of a look-up: on a GPU the gradient of a look-up adds up in no fixed order.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        self.spectral_norm = SpectralNorm(self.weight)

    def reset_parameters(self) -> None:
        orthogonal_(self.weight)

    def forward(self, one_hot: Tensor, weights: Weights = None) -> Tensor:
        return one_hot @ self.divided(weights)


def _draw_(layer: nn.Linear | nn.Conv2d) -> None:
    assert layer.bias is not None
    orthogonal_(layer.weight)
    nn.init.normal_(layer.bias, std=BIAS_STD)
