"""Inception for FID, from torch-fidelity's weights, and a small stand-in for embedded images."""

import io
import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate
from torch.nn.utils.fusion import fuse_conv_bn_eval

SIDE = 299  # of Inception's input, in pixels
INSTALL = "FID needs the packages torchmetrics and torch-fidelity: pip install -e '.[suite]'"


class NoInception(ImportError):
    """The packages of Inception are not installed; the message is one line."""


def inception(weights: Mapping[str, Tensor]) -> nn.Module:
    """Inception for FID from its weights: uint8 [N, 3, H, W] -> float32 [N, 2048]. Raises NoInception."""
    return FastInception(plain_inception(weights))


def plain_inception(weights: Mapping[str, Tensor]) -> nn.Module:
    """torchmetrics' network, in float32 throughout."""
    # torch-fidelity unpickles its file, so it gets only bytes that were written here.
    file = io.BytesIO()
    torch.save(dict(weights), file)
    file.seek(0)
    try:
        from torchmetrics.image.fid import NoTrainInceptionV3

        # Its initial weights, which are replaced, come from the global generator: keep a run's randomness unchanged.
        with torch.random.fork_rng(devices=[]):
            return NoTrainInceptionV3(
                name="inception-v3-compat",
                features_list=["2048"],
                feature_extractor_weights_path=file,  # type: ignore[arg-type]  # torch.load takes files, too
                antialias=True,
            )
    except ImportError as error:
        raise NoInception(INSTALL) from error


class FastInception(nn.Module):
    """torch-fidelity's network with one kernel per layer on an NVIDIA GPU; features are equal up to rounding.

    Batch norms are folded into convolutions, and images are resized by two products. The images, and the weights of the
    first layers and the last three blocks, are split into two TF32 numbers each, so that they are hardly rounded;
    results/tables/bench_fid.md lists the remaining differences of FIDs.
    """

    SPLIT_WEIGHTS = ("Conv2d", "Mixed_7")
    SPLIT_INPUTS = "Conv2d_1a"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        layers = [(name, layer) for name, layer in network.named_modules() if {"conv", "bn"} <= set(layer._modules)]
        for name, layer in layers:
            parent, _, own = name.rpartition(".")
            fused = fuse_conv_bn_eval(layer.get_submodule("conv"), layer.get_submodule("bn"))
            split = name.startswith(self.SPLIT_WEIGHTS), name.startswith(self.SPLIT_INPUTS)
            setattr(network.get_submodule(parent), own, ConvolutionReLU(fused, *split))
        # Its children are in order; behind those of these names come the mean and the classifier.
        kinds = ("Conv2d", "MaxPool", "Mixed")
        self.parts = nn.ModuleList(part for name, part in network.named_children() if name.startswith(kinds))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # unknown to mypy

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        # In float64, whose products GPUs never round to TF32.
        rows, columns = (_resizing(size).to(images.device) for size in images.shape[2:])
        x = (rows @ (images.double() @ columns.T)).to(torch.float32, memory_format=torch.channels_last)
        x = (x - 128) / 128
        for part in self.parts:
            x = part(x)
        return x.mean(dim=(2, 3))


@cache
def _resizing(size: int) -> Tensor:
    """[SIDE, size]: torch's antialiased bilinear resizing of a row of `size` pixels, which is linear."""
    identity = torch.eye(size, dtype=torch.float64)[None, None]
    return interpolate(identity, (SIDE, size), mode="bilinear", antialias=True).reshape(SIDE, size)


class ConvolutionReLU(nn.Module):
    """A convolution with biases and a ReLU, by one cuDNN kernel on a GPU.

    split_weights, split_inputs:  whether these keep full precision in TF32, as the sum of a high and a low part
    """

    rest: Tensor | None

    def __init__(self, layer: nn.Conv2d, split_weights: bool = False, split_inputs: bool = False) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.padding = [int(side) for side in layer.padding]
        self.split_inputs = split_inputs
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
        # Tensor cores take several channels at a time; torch computes the first layer, which has three.
        if not (x.is_cuda and layer.in_channels % 8 == 0):
            return sum(corrections, self._product(x, layer.weight, layer.bias)).relu_()
        settings = layer.bias, layer.stride, self.padding, layer.dilation, layer.groups
        if not corrections:
            return torch.cudnn_convolution_relu(x, layer.weight, *settings)
        return torch.cudnn_convolution_add_relu(x, layer.weight, sum(corrections[1:], corrections[0]), 1.0, *settings)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return conv2d(x, weight, bias, self.layer.stride, self.padding)


def tf32_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as the sum of its nearest TF32 numbers, which have 13 bits fewer, and the rest."""
    bits = tensor.detach().view(torch.int32)
    near = ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
    return near, tensor.detach() - near


class StandIn(nn.Module):
    """A small random network in place of Inception, for embedded images; its distances are not FIDs.

    uint8 [N, 3, H, W] -> float32 [N, 64]. The weights are fixed and drawn without the global generator.
    """

    num_features = 64
    first: Tensor
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, outputs, inputs in (("first", 32, 3), ("second", self.num_features, 32)):
            # Followed by a ReLU, such filters preserve the scale of their input.
            filters = torch.randn(outputs, inputs, 3, 3, generator=generator) * math.sqrt(2 / (9 * inputs))
            self.register_buffer(name, filters)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        values = (images.to(torch.float32) - 128) / 128
        values = conv2d(values, self.first, stride=2, padding=1).relu()
        return conv2d(values, self.second, stride=2, padding=1).relu().mean((2, 3))
