"""A network of a few hundred weights, for tests of training on several ranks."""

import torch
from torch import Tensor, nn

from nero.models.ghost_batch_norm import GhostBatchNorm2d


class Tiny(nn.Module):
    """Maps [N, 3, side, side] to logits; accepts the arguments that the ImageNet task passes to its network."""

    def __init__(self, num_classes: int, norm_parts: int = 4, width: int = 8) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(self._stage(ins, width, norm_parts) for ins in (3, width)))
        self.head = nn.Linear(width, num_classes)

    @staticmethod
    def _stage(ins: int, outs: int, parts: int) -> nn.Module:
        # A smooth nonlinearity, since rounding would decide on which side of a ReLU's kink an input is.
        return nn.Sequential(nn.Conv2d(ins, outs, 3, stride=2, bias=False), GhostBatchNorm2d(outs, parts), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.mean(self.stages(x), dim=(2, 3)))


class LocalNorm(Tiny):
    """`Tiny` with torch's batch norm, whose statistics only cover the images of one process."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        for stage in self.stages:
            stage[1] = nn.BatchNorm2d(stage[1].num_features)
