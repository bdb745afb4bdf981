"""Definitions 1 and 2: a neuron is balanced if its weights sum to zero and have Euclidean norm one.

As for Nero, a neuron is a slice along dim 0 of a tensor with two or more dims. Everything is computed in float64 from
the weights as stored.

Three kinds of neuron are not balanced under Nero: neurons of fan-in one and constant neurons, which are normalised but
not centred, since they would vanish; and neurons of zeros, such as an embedding's padding, which have no norm.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nero.optim.balance import fan_in, neuron_norm, slack

# `slack` is how well a projection meets the constraints. A step computed elsewhere, in another order, may differ from
# what is read here by as much.
_SLACKS = 2

QUANTILES = {"min": 0.0, "low": 0.05, "median": 0.5, "high": 0.95, "max": 1.0}


def quantiles(values: Tensor) -> dict[str, float]:
    """The QUANTILES of a vector in float64, interpolated linearly as by numpy.quantile; all NaN where an entry is.

    Takes any number of entries, unlike torch.quantile, which takes at most 16 million.
    """
    if values.ndim != 1 or values.numel() == 0:
        raise ValueError(f"quantiles are of a vector that is not empty, not of the shape {tuple(values.shape)}")
    values = values.detach()
    if values.isnan().any():
        return dict.fromkeys(QUANTILES, math.nan)
    positions = [share * (values.numel() - 1) for share in QUANTILES.values()]
    ranks = torch.tensor([[math.floor(p) for p in positions], [math.ceil(p) for p in positions]], device=values.device)
    # Widened after the selection, as Python's floats: not every device has float64.
    pairs = zip(*values.sort().values[ranks].tolist(), strict=True)
    return {
        name: low if low == high or (share := position % 1) == 0 else low * (1 - share) + high * share
        for name, position, (low, high) in zip(QUANTILES, positions, pairs, strict=True)
    }


@dataclass(frozen=True)
class LayerBalance:
    """How balanced the neurons of one tensor are; `quantiles` are over its neurons.

    sums:      of a neuron's weights; zero for a balanced one
    norms:     Euclidean, of a neuron's weights; one for a balanced one
    leans:     |sum| / (√fan_in · norm): the absolute cosine between a neuron and the vector of ones. 0 if excitation
               and inhibition are balanced, whatever the norm, or for a neuron of zeros; 1 if all weights are equal
    balanced:  whether every neuron is (Definition 1)
    """

    name: str
    neurons: int
    fan_in: int
    sums: dict[str, float]
    norms: dict[str, float]
    leans: dict[str, float]
    balanced: bool

    def record(self) -> dict[str, Any]:
        counts = {"name": self.name, "neurons": self.neurons, "fan_in": self.fan_in, "balanced": self.balanced}
        return {**counts, "sum": self.sums, "norm": self.norms, "lean": self.leans}


def balance_of_tensor(name: str, weight: Tensor, tolerance: float | None = None) -> LayerBalance:
    """Definition 1 for the neurons of one tensor.

    tolerance: how far a norm may be from one, and a lean from zero. By default twice what a projection leaves in the
               dtype of the weights: 8e-6 in float32, 0.016 in bfloat16. Weights that were stored in a narrower dtype
               than they are in now need that dtype's
    """
    sums, norms, leans = _sums_norms_leans(name, weight)
    tolerance = _tolerance(weight, tolerance)
    balanced = ((norms - 1).abs() <= tolerance) & (leans <= tolerance)  # False for NaN
    figures = (quantiles(sums), quantiles(norms), quantiles(leans))
    return LayerBalance(name, weight.shape[0], fan_in(weight), *figures, balanced=bool(balanced.all()))


def balance(network: nn.Module, tolerance: float | None = None) -> list[LayerBalance]:
    """Definition 1 for each parameter with neurons, in the order of the network's parameters; tied ones once."""
    return [
        balance_of_tensor(name, parameter, tolerance)
        for name, parameter in network.named_parameters()
        if parameter.ndim >= 2 and parameter.shape[0] > 0
    ]


def is_balanced(network: nn.Module, tolerance: float | None = None) -> bool:
    """Definition 2: whether all neurons of a network are balanced; ValueError for a network without neurons."""
    layers = balance(network, tolerance)
    if not layers:
        raise ValueError(f"{type(network).__name__} has no neurons: none of its parameters has two or more dims")
    return all(layer.balanced for layer in layers)


def centred(weight: Tensor, tolerance: float | None = None) -> bool:
    """Whether every neuron's weights sum to zero, relative to its norm.

    Neurons that stay so turn on a sphere of one dim less: that in the hyperplane orthogonal to the vector of ones.
    """
    _, _, leans = _sums_norms_leans("the tensor", weight)
    return bool((leans <= _tolerance(weight, tolerance)).all())


def _sums_norms_leans(name: str, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each neuron, in float64."""
    if weight.ndim < 2 or weight.shape[0] == 0:
        shape = tuple(weight.shape)
        raise ValueError(f"{name} of shape {shape} has no neurons: slices along the first of several dims")
    rows = weight.detach().to(torch.float64)
    sums, norms = rows.flatten(1).sum(-1), neuron_norm(rows)
    sizes = math.sqrt(fan_in(weight)) * norms
    leans = sums.abs() / torch.where(sizes == 0, 1.0, sizes)
    return sums, norms, leans.clamp(max=1)  # rounding may bring a constant neuron beyond one


def _tolerance(weight: Tensor, tolerance: float | None) -> float:
    return _SLACKS * slack(weight.dtype) if tolerance is None else tolerance
