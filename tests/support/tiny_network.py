"""A network of a few hundred weights with all that several ranks have to get right, for tests of such."""

import torch
from torch import Tensor, nn

from nero.models.ghost_batch_norm import GhostBatchNorm2d


class Tiny(nn.Module):
    """Takes [N, 3, side, side]; called as the ImageNet task calls its network."""

    def __init__(self, num_classes: int, norm_parts: int = 4, width: int = 8) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(self._stage(ins, width, norm_parts) for ins in (3, width)))
        self.head = nn.Linear(width, num_classes)

    @staticmethod
    def _stage(ins: int, outs: int, parts: int) -> nn.Module:
        # A smooth nonlinearity: where a ReLU has its kink, rounding decides.
        return nn.Sequential(nn.Conv2d(ins, outs, 3, stride=2, bias=False), GhostBatchNorm2d(outs, parts), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.mean(self.stages(x), dim=(2, 3)))


class LocalNorm(Tiny):
    """With torch's batch norm, whose statistics are of whatever images a process has."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        for stage in self.stages:
            stage[1] = nn.BatchNorm2d(stage[1].num_features)
