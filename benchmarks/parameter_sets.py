"""Parameter shapes of whole networks, to measure optimisers without data or forward passes."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from nero.models.language_model import LanguageModel
from nero.models.mlp import MLP, ReparameterisedMLP
from nero.models.resnet import ResNet18
from nero.models.translator import Translator
from nero.models.vgg import VGG11

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParameterSet:
    """`shapes()` has one shape per tensor, in the order of the network's parameters."""

    description: str
    shapes: Callable[[], list[Shape]]

    def parameters(self) -> int:
        """Total number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes())


def resnet50() -> list[Shape]:
    from torchvision.models import resnet50

    return _shapes_of(resnet50)


def billion() -> list[Shape]:
    vocabulary, positions, width, layers = 50_257, 1024, 2048, 22
    gain_and_bias: list[Shape] = [(width,), (width,)]
    attention = [*_linear(3 * width, width), *_linear(width, width)]
    feed_forward = [*_linear(4 * width, width), *_linear(width, 4 * width)]
    layer = [*gain_and_bias, *attention, *gain_and_bias, *feed_forward]
    return [(vocabulary, width), (positions, width), *layer * layers, *gain_and_bias]


def pong() -> list[Shape]:
    convolutions = [(32, 4, 8, 8), (32,), (64, 32, 4, 4), (64,), (32, 64, 3, 3), (32,)]
    return [*convolutions, *_linear(512, 32 * 7 * 7), *_linear(6, 512), *_linear(1, 512)]


def _shapes_of(network: Callable[[], nn.Module]) -> list[Shape]:
    with torch.device("meta"):
        return [tuple(param.shape) for param in network().parameters()]


def _network(description: str, network: Callable[[], nn.Module]) -> ParameterSet:
    return ParameterSet(description, partial(_shapes_of, network))


PARAMETER_SETS = {
    "mlp5": _network(
        "reparameterised MLP of 5 layers, MNIST (Figure 3)", partial(ReparameterisedMLP, 5, 784, 10, sigma=1.0)
    ),
    "mlp100": _network("MLP of 100 layers, MNIST (Figure 3)", partial(MLP, 100, 784, 10)),
    "vgg11": _network("VGG-11, CIFAR-10", VGG11),
    "resnet18": _network("ResNet-18, CIFAR-10", ResNet18),
    "wikitext2": _network("transformer of 2 layers, Wikitext-2", partial(LanguageModel, vocabulary=33_278)),
    # Multi30k's training text: 9,517 words of either language that occur at least three times, and four special tokens.
    "translation": _network(
        "encoder-decoder transformer of 6 + 6 layers, Multi30k", partial(Translator, vocabulary=9_521)
    ),
    "pong": ParameterSet("convolutional policy and value network, Pong", pong),
    "resnet50": ParameterSet("ResNet-50, ImageNet", resnet50),
    "billion": ParameterSet("decoder-only transformer of 22 layers, width 2048; not in the paper", billion),
}


def small(shapes: Iterable[Shape], largest: int = 16) -> list[Shape]:
    """The same tensors with no dimension above `largest`, for a quick trial."""
    return [tuple(min(length, largest) for length in shape) for shape in shapes]


def _linear(outputs: int, inputs: int) -> list[Shape]:
    return [(outputs, inputs), (outputs,)]
