"""The Fréchet Inception distance (FID): how far generated images are from real ones.

The features of each set of images (Inception's last pooled layer, 2048 numbers an image) are summed up by a Gaussian;
FID is the squared Fréchet distance of the two Gaussians. Inception is torch-fidelity's, and images are resized with
antialiasing. Which images the paper's numbers are of is said in `fid_of_images.Released`.

    real = Reference(Statistics.of(inception(weights), real_batches))
    fid = real.distance(Statistics.of(inception(weights), generated_batches))

Batches are uint8 [N, 3, H, W] on the device of the network.
"""

import hashlib
import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate
from torch.nn.utils.fusion import fuse_conv_bn_eval

from nero.atomic import write_atomic

INSTALL = "FID needs the packages torchmetrics and torch-fidelity: pip install -e '.[fid]'"


class NoInception(ImportError):
    """The packages that Inception comes from are not installed; the message is one line."""


def inception(weights: Mapping[str, Tensor]) -> nn.Module:
    """Inception for FID, from the weights of `nero.data.download.inception`: uint8 [N, 3, H, W] -> float32 [N, 2048].

    Raises NoInception without torchmetrics or torch-fidelity.
    """
    return FastInception(plain_inception(weights))


def plain_inception(weights: Mapping[str, Tensor]) -> nn.Module:
    """The same as torchmetrics has it, in float32 throughout."""
    # torch-fidelity unpickles the file that it is given, so it is given only bytes that were written here.
    file = io.BytesIO()
    torch.save(dict(weights), file)
    file.seek(0)
    try:
        from torchmetrics.image.fid import NoTrainInceptionV3

        # The start that the weights replace is drawn from the global generator: a run's randomness is left alone.
        with torch.random.fork_rng(devices=[]):
            return NoTrainInceptionV3(
                name="inception-v3-compat",
                features_list=["2048"],
                feature_extractor_weights_path=file,  # type: ignore[arg-type]  # torch.load takes a file as well
                antialias=True,
            )
    except ImportError as error:
        raise NoInception(INSTALL) from error


class FastInception(nn.Module):
    """torch-fidelity's network with each layer one kernel on an NVIDIA GPU, and the same features but for rounding.

    Batch norms become part of the convolutions before them, and images are resized by two products. The images, and the
    weights of the first layers and of the last three blocks, are split into two TF32 numbers each, so that rounding
    costs them next to nothing; results/tables/bench_fid.md has what FIDs still differ by.
    """

    SPLIT_WEIGHTS = ("Conv2d", "Mixed_7")
    SPLIT_INPUTS = "Conv2d_1a"

    PARTS = (
        *(
            "Conv2d_1a_3x3",
            "Conv2d_2a_3x3",
            "Conv2d_2b_3x3",
            "MaxPool_1",
            "Conv2d_3b_1x1",
            "Conv2d_4a_3x3",
            "MaxPool_2",
        ),
        *(f"Mixed_{name}" for name in ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")),
    )

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        layers = [(name, layer) for name, layer in network.named_modules() if {"conv", "bn"} <= set(layer._modules)]
        for name, layer in layers:
            parent, _, own = name.rpartition(".")
            fused = fuse_conv_bn_eval(layer.get_submodule("conv"), layer.get_submodule("bn"))
            split = name.startswith(self.SPLIT_WEIGHTS), name.startswith(self.SPLIT_INPUTS)
            setattr(network.get_submodule(parent), own, ConvolutionReLU(fused, *split))
        self.parts = nn.ModuleList(network.get_submodule(name) for name in self.PARTS)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which mypy does not know

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        x = (_enlarged(images) - 128) / 128
        for part in self.parts:
            x = part(x)
        return x.mean(dim=(2, 3))


SIDE = 299
"""Of the images that Inception sees, in pixels."""


def _enlarged(images: Tensor) -> Tensor:
    """float32 [N, 3, 299, 299] as torch's antialiased bilinear resizing gives it, which is linear along either side.

    The products are in float64, whose bits no GPU cuts off.
    """
    rows, columns = (_resizing(size).to(images.device) for size in images.shape[2:])
    return (rows @ (images.double() @ columns.T)).to(torch.float32, memory_format=torch.channels_last)


@cache
def _resizing(size: int) -> Tensor:
    """[299, size]: how much each of `size` pixels in a row counts in each of 299."""
    return interpolate(
        torch.eye(size, dtype=torch.float64)[None, None], (SIDE, size), mode="bilinear", antialias=True
    ).reshape(SIDE, size)


class ConvolutionReLU(nn.Module):
    """A convolution with biases and a ReLU as one kernel of cuDNN; on a CPU as two.

    split_weights, split_inputs:  whether these keep full precision in TF32, as the sum of a high and a low part
    """

    rest: Tensor | None

    def __init__(self, layer: nn.Conv2d, split_weights: bool = False, split_inputs: bool = False) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.padding = [int(side) for side in layer.padding]
        self.split_inputs = split_inputs
        # Tensor cores are fed some channels at a time; the first layer, which has three, is left to torch.
        self.is_fusible = layer.in_channels % 8 == 0
        self.register_buffer("rest", None)
        if split_weights:
            layer.weight.data, self.rest = tf32_parts(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        corrections: list[Tensor] = []  # products with low parts
        if self.split_inputs:
            x, rest = tf32_parts(x)
            corrections.append(self._product(rest, layer.weight))
        if self.rest is not None:
            corrections.append(self._product(x, self.rest))
        if not (x.is_cuda and self.is_fusible):
            return sum(corrections, self._product(x, layer.weight, layer.bias)).relu_()
        settings = layer.bias, layer.stride, self.padding, layer.dilation, layer.groups
        if not corrections:
            return torch.cudnn_convolution_relu(x, layer.weight, *settings)
        return torch.cudnn_convolution_add_relu(x, layer.weight, sum(corrections[1:], corrections[0]), 1.0, *settings)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return conv2d(x, weight, bias, self.layer.stride, self.padding)


def tf32_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors that add up to a float32 one: its nearest in TF32, which has 13 bits fewer, and the rest."""
    bits = tensor.detach().view(torch.int32)
    near = ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
    return near, tensor.detach() - near


class StandIn(nn.Module):
    """A small random network in Inception's place where images are embedded ones: its distances are not FIDs.

    uint8 [N, 3, H, W] -> float32 [N, 64]. The weights are always the same ones, and the global generator is left alone.
    """

    num_features = 64
    first: Tensor
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("first", _filters(32, 3, generator))
        self.register_buffer("second", _filters(self.num_features, 32, generator))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        values = (images.to(torch.float32) - 128) / 128
        values = conv2d(values, self.first, stride=2, padding=1).relu()
        return conv2d(values, self.second, stride=2, padding=1).relu().mean((2, 3))


def _filters(outputs: int, inputs: int, generator: torch.Generator) -> Tensor:
    """3 x 3 filters that keep the size of what goes through them and a ReLU."""
    return torch.randn(outputs, inputs, 3, 3, generator=generator) * math.sqrt(2 / (9 * inputs))


@dataclass(frozen=True)
class Statistics:
    """The Gaussian that stands for a set of images.

    count:       images
    mean:        of their features, float64 [d]
    covariance:  of their features, float64 [d, d], divided by count - 1
    """

    count: int
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features_of: Callable[[Tensor], Tensor], images: Iterable[Tensor]) -> "Statistics":
        """The statistics of batches of images; they stay on the device of the features, which nothing waits for.

        The network's own arithmetic counts, whatever autocast is on.
        """
        count = 0
        shift = total = products = torch.empty(0)
        for batch in images:
            with torch.no_grad(), torch.autocast(batch.device.type, enabled=False):
                features = features_of(batch).to(torch.float64)
                if features.ndim != 2 or len(features) != len(batch):
                    raise ValueError(f"{len(batch)} images need as many rows of features, not {list(features.shape)}")
                if not len(batch):
                    continue
                if not count:
                    # Sums of values near zero: the covariance is no small difference of large numbers.
                    shift = features.mean(0)
                    total, products = torch.zeros_like(shift), shift.new_zeros(len(shift), len(shift))
                features = features - shift
                total += features.sum(0)
                products.addmm_(features.T, features)
                count += len(batch)
        if count < 2:
            raise ValueError(f"statistics need at least 2 images, not {count}")
        mean = total / count
        covariance = (products - count * torch.outer(mean, mean)) / (count - 1)
        return cls(count, shift + mean, covariance)

    def to(self, device: torch.device | str) -> "Statistics":
        """The same on another device."""
        return Statistics(self.count, self.mean.to(device), self.covariance.to(device))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "covariance": self.covariance}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Statistics":
        """What `state_dict` gave; KeyError or ValueError if it cannot be."""
        count, mean, covariance = state["count"], state["mean"], state["covariance"]
        tensors = isinstance(count, int) and isinstance(mean, Tensor) and isinstance(covariance, Tensor)
        if not tensors or mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise ValueError("these are no statistics of images")
        if not mean.dtype == covariance.dtype == torch.float64:
            raise ValueError("statistics of images are kept in float64")
        return cls(count, mean, covariance)


class Reference:
    """What sets of images are compared with, the real ones as a rule."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        values, vectors = torch.linalg.eigh(statistics.covariance)
        self._root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T

    def distance(self, other: Statistics) -> float:
        """FID: |μ₁ - μ₂|² + tr Σ₁ + tr Σ₂ - 2 tr (Σ₁ Σ₂)^½; NaN where the other statistics are not finite.

        With R = Σ₁^½ the last trace is that of (R Σ₂ R)^½, a symmetric matrix. torchmetrics takes the eigenvalues of
        the product Σ₁ Σ₂, which is not symmetric: the same number, and several times slower to get.
        """
        own = self.statistics
        if other.mean.shape != own.mean.shape:
            raise ValueError(f"{len(other.mean)} features cannot be compared with {len(own.mean)}")
        other = other.to(own.mean.device)
        if not (other.mean.isfinite().all() and other.covariance.isfinite().all()):
            return math.nan
        shared = torch.linalg.eigvalsh(self._root @ other.covariance @ self._root).clamp(min=0).sqrt().sum()
        apart = (own.mean - other.mean).square().sum()
        spread = own.covariance.trace() + other.covariance.trace()
        # Rounding can take a distance of zero below it.
        return float((apart + spread - 2 * shared).clamp(min=0))


def cached_statistics(path: Path, key: str, compute: Callable[[], Statistics]) -> Statistics:
    """The statistics that `path` keeps for this key, on the CPU; worked out anew, and kept, where it has none.

    The key says all that they depend on: the images, the network, the arithmetic. A file that is damaged or has another
    key is replaced.
    """
    kept = _read(path, key)
    if kept is not None:
        return kept
    computed = compute().to("cpu")
    file = io.BytesIO()
    torch.save({"key": key, **computed.state_dict()}, file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _first_line(file.getvalue()) + file.getvalue())
    except OSError as error:
        warnings.warn(f"the statistics of the images could not be kept for the next run: {error}", stacklevel=2)
    return computed


def _read(path: Path, key: str) -> Statistics | None:
    """The statistics in a file that is whole and has this key, or None."""
    try:
        first, newline, rest = path.read_bytes().partition(b"\n")
        if first + newline != _first_line(rest):
            return None
        kept = torch.load(io.BytesIO(rest), map_location="cpu", weights_only=True)
        return Statistics.from_state(kept) if kept["key"] == key else None
    except Exception:  # whatever is wrong with the file, its content can be worked out again
        return None


def _first_line(rest: bytes) -> bytes:
    """How the file begins: the checksum of all that follows, since torch.load does not notice damage in a tensor."""
    return hashlib.sha256(rest).hexdigest().encode() + b"\n"
