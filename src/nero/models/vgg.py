"""VGG-11 for images of 32 x 32 pixels, as the paper trains it: no batch norm, no biases in its convolutions."""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.initialisation import kaiming_by_fan_out_

STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))
"""Filters of each 3 x 3 convolution, in multiples of the width; after each stage the image is halved."""


class VGG11(nn.Module):
    """Takes [N, 3, 32, 32], gives [N, classes].

    width:    filters of the first convolution; 64 is the paper's
    hidden:   width of the classifier's two hidden layers; 4096 is the paper's
    dropout:  after each of those
    """

    def __init__(self, classes: int = 10, width: int = 64, hidden: int = 4096, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(*_features(width))
        kaiming_by_fan_out_(self.features)
        self.classifier = nn.Sequential(
            nn.Linear(STAGES[-1][-1] * width, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class HalvingReLU(nn.Module):
    """The largest of each 2 x 2 pixels, then ReLU: the same as after ReLU, gradients too, on a quarter of the work."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(F.max_pool2d(x, 2))


def _features(width: int) -> Iterator[nn.Module]:
    channels = 3
    for stage in STAGES:
        for number, multiple in enumerate(stage, start=1):
            yield nn.Conv2d(channels, multiple * width, kernel_size=3, padding=1, bias=False)
            yield HalvingReLU() if number == len(stage) else nn.ReLU(inplace=True)
            channels = multiple * width
