"""The network that plays: what it would do, and what it expects to win, from the last few frames."""

import math

from torch import Tensor, nn

FRAMES, SIDE = 4, 84
"""What it sees: the last 4 frames, of 84 x 84 grey pixels."""

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (32, 3, 1))
"""Filters, kernel and stride of each."""


class Policy(nn.Module):
    """Takes [N, 4, 84, 84], gives logits of the actions [N, actions] and values [N].

    Orthogonal weights, with a policy head so small that at first every action is as likely as any other; biases zero.
    hidden:  width of the layer before both heads; 512 is the paper's
    """

    def __init__(self, actions: int, hidden: int = 512) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = FRAMES, SIDE
        for filters, kernel, stride in CONVOLUTIONS:
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
            channels, side = filters, (side - kernel) // stride + 1
        self.features = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.ReLU(inplace=True)
        )
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)
        _orthogonal_(self.features, math.sqrt(2))
        _orthogonal_(self.policy, 0.01)
        _orthogonal_(self.value, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return self.policy(features), self.value(features).squeeze(-1)


def _orthogonal_(network: nn.Module, gain: float) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(module.weight, gain)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
