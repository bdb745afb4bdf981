"""torchvision's ResNet-50 with ghost batch norm (Figure 9)."""

from collections.abc import Sequence
from functools import partial

from torchvision.models.resnet import Bottleneck, ResNet

from nero.models.ghost_batch_norm import GhostBatchNorm2d

LAYERS = (3, 4, 6, 3)  # bottleneck blocks of each stage


def resnet50(num_classes: int = 1000, norm_parts: int = 1, layers: Sequence[int] = LAYERS) -> ResNet:
    """Images [N, 3, 224, 224] -> logits [N, classes]; initialisation and parameter names are torchvision's.

    norm_parts:  ghost batches of the batch: see `GhostBatchNorm2d`
    layers:      bottleneck blocks of each stage; fewer make a smaller network of the same kind
    """
    if len(layers) != len(LAYERS):
        raise ValueError(f"layers must be {len(LAYERS)} numbers, one for each stage, not {list(layers)}")
    norm = partial(GhostBatchNorm2d, parts=norm_parts)
    return ResNet(Bottleneck, list(layers), num_classes=num_classes, norm_layer=norm)
