"""torchvision's ResNet-50, with batch norm over parts of a batch (Figure 9)."""

from collections.abc import Sequence
from functools import partial

from torchvision.models.resnet import Bottleneck, ResNet

from nero.models.ghost_batch_norm import PartedBatchNorm2d

LAYERS = (3, 4, 6, 3)
"""Bottleneck blocks of each stage."""


def resnet50(num_classes: int = 1000, norm_parts: int = 1, layers: Sequence[int] = LAYERS) -> ResNet:
    """Takes [N, 3, 224, 224], gives [N, classes]; from torchvision's start, its parameters under torchvision's names.

    norm_parts:  parts of the batch that batch norm takes its statistics of: see `PartedBatchNorm2d`
    layers:      bottleneck blocks of each stage; fewer make a smaller network of the same kind
    """
    if len(layers) != len(LAYERS):
        raise ValueError(f"layers must be {len(LAYERS)} numbers, one for each stage, not {list(layers)}")
    return ResNet(
        Bottleneck, list(layers), num_classes=num_classes, norm_layer=partial(PartedBatchNorm2d, parts=norm_parts)
    )
