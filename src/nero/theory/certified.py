"""How much turning cannot make an error: a lower bound on the alpha of Definition 6, for perceptrons.

A neuron that turns by up to alpha moves by up to r = 2 sin(alpha / 2) times its norm. So if the inputs h of a layer W
are off by up to e, its outputs are off by up to |W|_2 e + r |W|_F (|h| + e), and the activation passes on no more than
its slope times that. For centred neurons, whose moves are centred as well, only the part of h without its mean counts.
Propagated through all layers, this leaves a margin to be compared with. True of every rotation, and loose: the gap to
`adversarial` grows with depth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nero.theory.solutions import Solution

SMALLEST = 1e-30


@dataclass(frozen=True)
class Perceptron:
    """Linear layers by the names of their weights in a solution, with an activation of this slope at most between them.

    activation:  applied to each layer's outputs but the last's
    """

    weights: Sequence[str]
    biases: Sequence[Tensor | None]
    activation: Callable[[Tensor], Tensor]
    slope: float


@torch.no_grad()
def certified_angle(solution: Solution, perceptron: Perceptron) -> float:
    """The largest angle, up to the precision of a bisection, by which no rotation makes a fitted example wrong.

    ValueError where the layers are not the network's: what they give is compared with its logits.
    """
    reach = _Reach(solution, perceptron)
    if not reach.holds(SMALLEST):
        return 0.0
    low, high = SMALLEST, math.pi
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reach.holds(middle) else (low, middle)
    return low


class _Reach:
    """What it takes, in float64, to bound how far turned neurons can move a network's outputs on its examples."""

    def __init__(self, solution: Solution, perceptron: Perceptron) -> None:
        by_name = {layer.name: layer for layer in solution.layers}
        if set(perceptron.weights) != set(by_name):
            raise ValueError(f"the perceptron's layers are {list(perceptron.weights)}, the network's {list(by_name)}")
        matrices = [solution.weights[name].double() for name in perceptron.weights]
        self.centred = [by_name[name].centred for name in perceptron.weights]
        self.slope = perceptron.slope
        self.spectral = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in matrices]
        self.frobenius = [float(matrix.norm()) for matrix in matrices]
        sizes: list[list[Tensor]] = [[] for _ in matrices]
        logits = []
        for inputs in solution.inputs.split(solution.batch_size):
            h = solution.prepare(inputs).flatten(1).double()
            for number, (matrix, bias) in enumerate(zip(matrices, perceptron.biases, strict=True)):
                turning = h - h.mean(1, keepdim=True) if self.centred[number] else h
                sizes[number].append(turning.norm(dim=1))
                h = h @ matrix.T + (0 if bias is None else bias.double())
                if number < len(matrices) - 1:
                    h = perceptron.activation(h)
            _check_same(h, solution.logits({}, inputs))
            logits.append(h)
        self.sizes = [torch.cat(parts) for parts in sizes]
        output, labels = torch.cat(logits), solution.labels
        own = output.gather(1, labels[:, None])
        self.gaps = (own - output).scatter(1, labels[:, None], torch.inf)  # to each other class
        last = matrices[-1]
        self.between = torch.cdist(last, last)[labels]  # how far apart the label's neuron and each other one are
        norms = last.norm(dim=1)
        self.both = (norms[:, None] + norms[None, :])[labels]

    def holds(self, angle: float) -> bool:
        """Whether no rotation by up to the angle can make an error."""
        r = 2 * math.sin(angle / 2)
        off = torch.zeros_like(self.sizes[0])
        for number in range(len(self.sizes) - 1):
            moved = r * self.frobenius[number] * (self.sizes[number] + off)
            off = self.slope * (self.spectral[number] * off + moved)
        lost = self.between * off[:, None] + r * self.both * (self.sizes[-1] + off)[:, None]
        return bool((self.gaps > lost).all())


def _check_same(ours: Tensor, theirs: Tensor) -> None:
    scale = float(theirs.abs().max()) + 1e-30
    if not torch.allclose(ours, theirs.double(), rtol=1e-2, atol=1e-2 * scale):
        raise ValueError("these layers give other logits than the network")
