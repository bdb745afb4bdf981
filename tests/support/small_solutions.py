"""Classifiers small enough that what is true of them is known."""

import math

import torch
from torch import Tensor, nn

from nero.models.mlp import MLP, scaled_relu
from nero.optim import project_
from nero.theory.robustness import Perceptron
from nero.theory.solutions import Solution


def linear(seed: int, fan_in: int = 4, classes: int = 3, examples: int = 40, balanced: bool = False) -> Solution:
    """A linear classifier, some of whose labels are those that it gives."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Linear(fan_in, classes, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.randn(classes, fan_in, generator=generator, dtype=torch.float64))
    if balanced:
        project_(network.weight)
    inputs = torch.randn(examples, fan_in, generator=generator, dtype=torch.float64)
    return fitted(network, inputs)


def perceptron(seed: int, depth: int = 3, width: int = 6, examples: int = 30, balanced: bool = False) -> Solution:
    generator = torch.Generator().manual_seed(seed)
    network = MLP(depth, width, 4).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / math.sqrt(width))
            if balanced and parameter.ndim == 2:
                project_(parameter)
    return fitted(network, torch.randn(examples, width, generator=generator, dtype=torch.float64))


def fitted(network: nn.Module, inputs: Tensor) -> Solution:
    """The network with the labels that it gives itself: no error."""
    with torch.no_grad():
        return Solution(network, inputs, network(inputs).argmax(1))


def chain(solution: Solution) -> Perceptron:
    """The layers of either of the above."""
    if isinstance(solution.network, nn.Linear):
        return Perceptron(["weight"], [None], scaled_relu, math.sqrt(2))
    layers = solution.network.layers
    return Perceptron(list(solution.weights), [layer.bias.detach() for layer in layers], scaled_relu, math.sqrt(2))


def true_angle_of_linear(solution: Solution) -> float:
    """Definition 6 in closed form: for each example, its label's neuron turns away and another towards it.

    A neuron w at the angle t to x gives |w| |x| cos t, which turns by a make |w| |x| cos(t + a) at the least and
    |w| |x| cos(t - a), but no more than at t = a, at the most.
    """
    [weight] = solution.weights.values()
    inputs = solution.inputs
    if solution.layers[0].centred:  # such neurons see nothing else, and turn across the vector of ones
        inputs = inputs - inputs.mean(1, keepdim=True)
    norms, sizes = weight.norm(dim=1), inputs.norm(dim=1)
    angles = (inputs @ weight.T / (sizes[:, None] * norms)).clamp(-1, 1).arccos()
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        a = (low + high) / 2
        own = (norms * (angles + a).clamp(max=math.pi).cos()).gather(1, solution.labels[:, None])
        others = (norms * (angles - a).clamp(min=0).cos()).scatter(1, solution.labels[:, None], -torch.inf)
        low, high = (a, high) if bool((own > others).all()) else (low, a)
    return low
