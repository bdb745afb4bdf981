"""VGG-11 for images of 32 x 32 pixels, as in the paper: without batch norm and without biases in convolutions."""

import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.resnet import kaiming_by_fan_out_

STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # filters in multiples of the width; pooling ends a stage


class VGG11(nn.Module):
    """Images [N, 3, 32, 32] -> logits [N, classes].

    width:    filters of the first convolution; 64 in the paper
    hidden:   width of the classifier's two hidden layers; 4096 in the paper
    dropout:  after each of them
    """

    def __init__(self, classes: int = 10, width: int = 64, hidden: int = 4096, dropout: float = 0.5) -> None:
        super().__init__()
        features: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
            for number, multiple in enumerate(stage, start=1):
                features.append(nn.Conv2d(channels, multiple * width, kernel_size=3, padding=1, bias=False))
                features.append(MaxPoolReLU() if number == len(stage) else nn.ReLU(inplace=True))
                channels = multiple * width
        self.features = nn.Sequential(*features)
        kaiming_by_fan_out_(self.features)
        self.classifier = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class MaxPoolReLU(nn.Module):
    """Max-pooling of 2 x 2 pixels before ReLU: the same values and gradients as after it, for a quarter of the work."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(F.max_pool2d(x, 2))
