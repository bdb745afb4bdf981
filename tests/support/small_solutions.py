"""Small classifiers whose properties are known."""

import math

import torch
from torch import Tensor, nn

from nero.models.mlp import MLP, scaled_relu
from nero.optim import project_
from nero.theory.robustness import Perceptron
from nero.theory.solutions import Solution


def linear(seed: int, fan_in: int = 4, classes: int = 3, examples: int = 40, balanced: bool = False) -> Solution:
    """A random linear classifier, with its own predictions as labels."""
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
    """The network with its own predictions as labels, so that it makes no errors."""
    with torch.no_grad():
        return Solution(network, inputs, network(inputs).argmax(1))


def chain(solution: Solution) -> Perceptron:
    """The layers of a solution made by `linear` or `perceptron`."""
    if isinstance(solution.network, nn.Linear):
        return Perceptron(["weight"], [None], scaled_relu, math.sqrt(2))
    layers = solution.network.layers
    return Perceptron(list(solution.weights), [layer.bias.detach() for layer in layers], scaled_relu, math.sqrt(2))


def true_angle_of_linear(solution: Solution) -> float:
    """Definition 6 by bisection: for each example, the label's neuron rotates away from it and another one towards it.

    A neuron w at angle t to an input x has the output |w| |x| cos t. Rotations of w by at most a change it to at least
    |w| |x| cos(min(t + a, pi)) and at most |w| |x| cos(max(t - a, 0)).
    """
    [weight] = solution.weights.values()
    inputs = solution.inputs
    if solution.layers[0].centred:  # such neurons ignore the mean and stay orthogonal to ones
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
