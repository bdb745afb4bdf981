"""Definitions 1 and 2: a neuron is balanced if its weights sum to zero and have Euclidean norm one.

As for Nero, a neuron is a slice along dim 0 of a tensor with two or more dims. Everything is computed in float64 from
the weights as stored.

Three kinds of neuron are not balanced under Nero: neurons of fan-in one and constant neurons, which are normalised but
not centred, since they would vanish; and neurons of zeros, such as an embedding's padding, which have no norm.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nero.optim.balance import fan_in, has_neurons, neuron_norm, slack

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
    ordered = np.sort(values.detach().cpu().to(torch.float64).numpy())  # NaN last
    if np.isnan(ordered[-1]):
        return dict.fromkeys(QUANTILES, math.nan)
    positions = [share * (len(ordered) - 1) for share in QUANTILES.values()]
    # Unlike numpy.quantile, interp keeps infinities.
    found = np.interp(positions, np.arange(len(ordered)), ordered)
    return dict(zip(QUANTILES, found.tolist(), strict=True))


@dataclass(frozen=True)
class LayerBalance:
    """How balanced the neurons of one tensor are; `quantiles` are over its neurons.

    Attributes:
        balanced: whether every neuron is (Definition 1)
        sum: of a neuron's weights; zero for a balanced one
        norm: Euclidean, of a neuron's weights; one for a balanced one
        lean: |sum| / (√fan_in · norm): the absolute cosine between a neuron and the vector of ones. 0 if excitation
            and inhibition are balanced, whatever the norm, or for a neuron of zeros; 1 if all weights are equal
    """

    name: str
    neurons: int
    fan_in: int
    balanced: bool
    sum: dict[str, float]
    norm: dict[str, float]
    lean: dict[str, float]


def balance_of_tensor(name: str, weight: Tensor, tolerance: float | None = None) -> LayerBalance:
    """Definition 1 for the neurons of one tensor.

    Args:
        tolerance: how far a norm may be from one, and a lean from zero. By default twice what a projection leaves in
            the dtype of the weights: 8e-6 in float32, 0.016 in bfloat16. Weights that were stored in a narrower dtype
            than they are in now need that dtype's
    """
    sums, norms, leans = _sums_norms_leans(name, weight)
    tolerance = _tolerance(weight) if tolerance is None else tolerance
    balanced = ((norms - 1).abs() <= tolerance) & (leans <= tolerance)  # False for NaN
    figures = map(quantiles, (sums, norms, leans))
    return LayerBalance(name, weight.shape[0], fan_in(weight), bool(balanced.all()), *figures)


def balance(network: nn.Module, tolerance: float | None = None) -> list[LayerBalance]:
    """Definition 1 for each parameter with neurons, in the order of the network's parameters; tied ones once."""
    return [
        balance_of_tensor(name, parameter, tolerance)
        for name, parameter in network.named_parameters()
        if has_neurons(parameter) and parameter.shape[0] > 0
    ]


def is_balanced(network: nn.Module, tolerance: float | None = None) -> bool:
    """Definition 2: whether all neurons of a network are balanced; ValueError for a network without neurons."""
    layers = balance(network, tolerance)
    if not layers:
        raise ValueError(f"{type(network).__name__} has no neurons: none of its parameters has two or more dims")
    return all(layer.balanced for layer in layers)


def centred(weight: Tensor) -> bool:
    """Whether every neuron's weights sum to zero, relative to its norm.

    Neurons that stay so turn on a sphere of one dim less: that in the hyperplane orthogonal to the vector of ones.
    """
    _, _, leans = _sums_norms_leans("the tensor", weight)
    return bool((leans <= _tolerance(weight)).all())


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


def _tolerance(weight: Tensor) -> float:
    return _SLACKS * slack(weight.dtype)
