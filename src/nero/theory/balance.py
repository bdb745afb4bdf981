"""Definitions 1 and 2: a neuron is balanced if its weights sum to zero and have Euclidean norm one.

A neuron is what it is to Nero (`nero.optim.balance`): a slice along dim 0 of a tensor with two or more dims. All is
reckoned in float64 from the weights as they are stored.

Three kinds of neuron are not balanced, however long Nero has trained them: one of fan-in one and one whose weights are
all alike, which Nero keeps at norm one without centring them, since they would vanish; and one of zeros, such as an
embedding's padding, which has no norm to be set to one.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nero.optim.balance import neuron_norm, slack
from nero.optim.param_groups import fan_in
from nero.theory.quantiles import quantiles

# `slack` is how well a projection meets the constraints. A step reckoned elsewhere, in another order, may differ by
# that from what is read here.
_ROOM = 2


@dataclass(frozen=True)
class LayerBalance:
    """How balanced the neurons of one tensor are; quantiles are over its neurons (see `quantiles`).

    sums:      of a neuron's weights; zero for a balanced one
    norms:     Euclidean, of a neuron's weights; one for a balanced one
    leans:     |sum| / (√fan_in · norm): the cosine, from 0 to 1, between a neuron and the nearer of the vector of ones
               and its opposite. 0 says that excitation and inhibition are balanced, whatever the norm; 1 that all
               weights are alike. 0 for a neuron of zeros
    balanced:  whether every one of them is (Definition 1)
    """

    name: str
    neurons: int
    fan_in: int
    sums: dict[str, float]
    norms: dict[str, float]
    leans: dict[str, float]
    balanced: bool

    def record(self) -> dict[str, Any]:
        """As it is kept in a record."""
        return {
            "name": self.name,
            "neurons": self.neurons,
            "fan_in": self.fan_in,
            "balanced": self.balanced,
            "sum": self.sums,
            "norm": self.norms,
            "lean": self.leans,
        }


def balance_of_tensor(name: str, weight: Tensor, tolerance: float | None = None) -> LayerBalance:
    """Definition 1 for the neurons of one tensor.

    tolerance: how far a norm may be from one, and a lean from zero, to count as met. By default what a projection
               leaves in the dtype of the weights, with some room: 8e-6 in float32, 0.016 in bfloat16. Weights that were
               stored in a narrower dtype than they are in now need that one's
    """
    sums, norms, leans = _sums_norms_leans(name, weight)
    tolerance = _tolerance(weight, tolerance)
    # A NaN is not within any tolerance.
    balanced = ((norms - 1).abs() <= tolerance) & (leans <= tolerance)
    return LayerBalance(
        name=name,
        neurons=weight.shape[0],
        fan_in=fan_in(weight),
        sums=quantiles(sums),
        norms=quantiles(norms),
        leans=quantiles(leans),
        balanced=bool(balanced.all()),
    )


def balance(network: nn.Module, tolerance: float | None = None) -> list[LayerBalance]:
    """One for each parameter that has neurons, in the order of the network's parameters; of tied ones, the first."""
    return [
        balance_of_tensor(name, parameter, tolerance)
        for name, parameter in network.named_parameters()
        if parameter.ndim >= 2 and parameter.shape[0] > 0
    ]


def is_balanced(network: nn.Module, tolerance: float | None = None) -> bool:
    """Definition 2: whether all neurons of a network are balanced; ValueError for a network that has none."""
    layers = balance(network, tolerance)
    if not layers:
        raise ValueError(f"{type(network).__name__} has no neurons: none of its parameters has two or more dims")
    return all(layer.balanced for layer in layers)


def centred(weight: Tensor, tolerance: float | None = None) -> bool:
    """Whether every neuron's weights sum to zero, relative to its norm and whatever that is.

    Neurons that are kept so turn on a sphere of one dim less: that in the hyperplane across the vector of ones.
    """
    _, _, leans = _sums_norms_leans("the tensor", weight)
    return bool((leans <= _tolerance(weight, tolerance)).all())


def _sums_norms_leans(name: str, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each neuron, in float64."""
    if weight.ndim < 2 or weight.shape[0] == 0:
        raise ValueError(
            f"{name} of shape {tuple(weight.shape)} has no neurons: slices along the first of several dims"
        )
    rows = weight.detach().to(torch.float64)
    sums, norms = rows.flatten(1).sum(-1), neuron_norm(rows)
    sizes = math.sqrt(fan_in(weight)) * norms
    leans = sums.abs() / torch.where(sizes == 0, 1.0, sizes)
    # Rounding may bring a constant neuron beyond one.
    return sums, norms, leans.clamp(max=1)


def _tolerance(weight: Tensor, tolerance: float | None) -> float:
    return _ROOM * slack(weight.dtype) if tolerance is None else tolerance
