"""The actor-critic network of PPO (Figure 8), and the downscaling of game screens to the frames that it sees."""

import math

import torch
from torch import Tensor, nn

FRAMES, SIDE = 4, 84  # the network sees the last 4 frames, of 84 x 84 grey pixels
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (32, 3, 1))  # filters, kernel and stride of each


class Policy(nn.Module):
    """Frames [N, 4, 84, 84] -> logits of the actions [N, actions] and values [N].

    Weights start orthogonal, in the policy head so small that all actions are about equally likely; biases at zero.
    hidden:  width of the layer before both heads; 512 in the paper
    """

    def __init__(self, actions: int, hidden: int = 512) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = FRAMES, SIDE
        for filters, kernel, stride in CONVOLUTIONS:
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
            channels, side = filters, (side - kernel) // stride + 1
        layers += [nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)
        for network, gain in ((self.features, math.sqrt(2)), (self.policy, 0.01), (self.value, 1.0)):
            for module in network.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(module.weight, gain)
                    nn.init.zeros_(module.get_parameter("bias"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return self.policy(features), self.value(features).squeeze(-1)


class AreaResize:
    """Downscales uint8 images [..., rows, columns] to [..., side, side] by area, as OpenCV's INTER_AREA does.

    In float64: a GPU may compute float32 products in fewer bits and round a pixel between two greys to the wrong one.
    """

    def __init__(self, screen: tuple[int, int], side: int, device: torch.device) -> None:
        rows, columns = screen
        if min(screen) < side:
            raise ValueError(f"cannot downscale an image of {rows} x {columns} to {side} x {side}")
        self.unchanged = screen == (side, side)
        self.rows = area_weights(rows, side).to(device)
        self.columns = area_weights(columns, side).T.contiguous().to(device)

    def __call__(self, images: Tensor) -> Tensor:
        if self.unchanged:
            return images
        return (self.rows @ (images.to(torch.float64) @ self.columns)).round().to(torch.uint8)


def area_weights(size: int, target: int) -> Tensor:
    """[target, size]: the weight of each of `size` pixels of a row in each of `target` pixels."""
    edges = torch.arange(target + 1, dtype=torch.float64) * size / target
    pixels = torch.arange(size, dtype=torch.float64)
    begin, end = edges[:-1, None], edges[1:, None]
    covered = torch.minimum(end, pixels + 1) - torch.maximum(begin, pixels)
    return covered.clamp(min=0) * target / size
