"""The perceptrons of Figure 3: L - 1 square layers and an output layer, with a scaled ReLU between them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def scaled_relu(x: Tensor) -> Tensor:
    """sqrt(2) * max(0, x): keeps the second moment of a symmetric input (appendix A)."""
    # ELU with alpha = 0, whose scale F.elu does not offer: one kernel each way instead of two, of which a network of
    # 100 small layers feels every one.
    return torch.ops.aten.elu(x, 0.0, math.sqrt(2.0))


def normalise(raw: Tensor) -> Tensor:
    """Equation 4: each row less its mean, divided by its norm."""
    centred = raw - raw.mean(dim=1, keepdim=True)
    return centred / centred.norm(dim=1, keepdim=True)


class MLP(nn.Module):
    """`depth` linear layers with biases, torch's default initialisation."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width if i < depth - 1 else classes) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = scaled_relu(layer(x))
        return self.layers[-1](x)


class ReparameterisedMLP(nn.Module):
    """`depth` layers without biases whose weights are `normalise(raw)`, raw drawn from N(0, sigma^2)."""

    def __init__(self, depth: int, width: int, classes: int, sigma: float) -> None:
        super().__init__()
        rows = [width] * (depth - 1) + [classes]
        self.raw = nn.ParameterList(nn.Parameter(sigma * torch.randn(fan_out, width)) for fan_out in rows)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.raw
        for raw in hidden:
            x = scaled_relu(F.linear(x, normalise(raw)))
        return F.linear(x, normalise(last))
