"""Parameters of whole networks by shape alone, to time and weigh optimisers on: no data, no forward pass, no memory."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
    """`shapes()`: one shape for each tensor, in the order of the network's parameters."""

    description: str
    shapes: Callable[[], list[Shape]]

    def parameters(self) -> int:
        """How many numbers the set has in all."""
        return sum(math.prod(shape) for shape in self.shapes())


def resnet50() -> list[Shape]:
    from torchvision.models import resnet50

    return _shapes_of(resnet50)


def resnet18() -> list[Shape]:
    return _shapes_of(ResNet18)


def mlp100() -> list[Shape]:
    return _shapes_of(lambda: MLP(depth=100, width=784, classes=10))


def mlp5() -> list[Shape]:
    return _shapes_of(lambda: ReparameterisedMLP(depth=5, width=784, classes=10, sigma=1.0))


def vgg11() -> list[Shape]:
    return _shapes_of(VGG11)


def wikitext2() -> list[Shape]:
    return _shapes_of(lambda: LanguageModel(vocabulary=33_278))


def translation() -> list[Shape]:
    # Multi30k's training text by the protocol: 9,517 words of either language seen three times or more, and four marks.
    return _shapes_of(lambda: Translator(vocabulary=9_521))


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


PARAMETER_SETS = {
    "mlp5": ParameterSet("reparameterised MLP of 5 layers, MNIST (Figure 3)", mlp5),
    "mlp100": ParameterSet("MLP of 100 layers, MNIST (Figure 3)", mlp100),
    "vgg11": ParameterSet("VGG-11, CIFAR-10", vgg11),
    "resnet18": ParameterSet("ResNet-18, CIFAR-10", resnet18),
    "wikitext2": ParameterSet("transformer of 2 layers, Wikitext-2", wikitext2),
    "translation": ParameterSet("encoder-decoder transformer of 6 + 6 layers, Multi30k", translation),
    "pong": ParameterSet("convolutional policy and value network, Pong", pong),
    "resnet50": ParameterSet("ResNet-50, ImageNet", resnet50),
    "billion": ParameterSet("decoder-only transformer of 22 layers, width 2048; not in the paper", billion),
}


def small(shapes: Iterable[Shape], largest: int = 16) -> list[Shape]:
    """As many tensors of as many dims, none of which is longer than `largest`: for a trial without the size."""
    return [tuple(min(length, largest) for length in shape) for shape in shapes]


def _linear(outputs: int, inputs: int) -> list[Shape]:
    return [(outputs, inputs), (outputs,)]


def _shapes_of(network: Callable[[], nn.Module]) -> list[Shape]:
    with torch.device("meta"):
        return [tuple(param.shape) for param in network().parameters()]
