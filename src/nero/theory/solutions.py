"""A classifier, the training examples that it fits, and rotations of its neurons (Definition 6, Section 8).

A rotated neuron, a row of weights, keeps its norm. A balanced one keeps its mean of zero as well, and so turns on a
sphere of one dim less: `centred`. Rows are [neurons, fan_in]; angles are in radians, one for all rows or one for each.
A row of zeros, or one whose sphere is a pair of points (a centred pair of weights), does not turn.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nero.theory.balance import centred
from nero.theory.steps import turning_angles

Weights = dict[str, Tensor]
# Examples that are searched for an error first: the weakest, which are the likeliest to have one.
FIRST, WEAK = 250, 5000


@dataclass(frozen=True)
class TurningLayer:
    """A tensor of neurons, each of which turns on a sphere of `dim` dims."""

    name: str
    neurons: int
    fan_in: int
    centred: bool

    @property
    def dim(self) -> int:
        return sphere_dim(self.fan_in, self.centred)


class Solution:
    """A network in evaluation mode, and the training examples that it fits, weakest margin first.

    Neurons are the slices along dim 0 of all parameters with two or more dims; everything else is fixed. An example is
    fitted if its label's logit is the largest, without a tie.

    Args:
        network: returns logits [N, classes] for prepared inputs.
        inputs: training examples [n, ...], on the network's device.
        labels: [n].
        prepare: from a batch of inputs to the network's argument.
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        prepare: Callable[[Tensor], Tensor] = lambda inputs: inputs,
        batch_size: int = 2500,
    ) -> None:
        if len(inputs) != len(labels) or len(labels) == 0:
            raise ValueError(f"a solution needs as many labels as inputs, and some: not {len(labels)}, {len(inputs)}")
        self.network, self.prepare, self.batch_size = network.eval(), prepare, batch_size
        self.weights: Weights = {name: p.detach().clone() for name, p in network.named_parameters() if p.ndim >= 2}
        if not self.weights:
            raise ValueError("a network without neurons has nothing to turn")
        self.layers = tuple(
            TurningLayer(name, len(weight), weight[0].numel(), centred(weight)) for name, weight in self.weights.items()
        )
        self.inputs, self.labels, self.examples = inputs, labels, len(labels)
        self.classes = self.logits({}, inputs[:1]).shape[1]
        margins = self.margins()
        order = margins.argsort()
        self.order = order = order[margins[order] > 0]  # indices of the fitted examples among all of them
        self.inputs, self.labels, self.fitted_margins = inputs[order], labels[order], margins[order]

    @property
    def errors(self) -> int:
        """Training examples that are not fitted; Definition 6 assumes none."""
        return self.examples - len(self.order)

    def logits(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(self.network, dict(weights), (self.prepare(inputs),))

    @torch.no_grad()
    def margins(self, weights: Mapping[str, Tensor] | None = None, every: int = 1) -> Tensor:
        """Margins of every `every`-th example."""
        inputs, labels = self.inputs[::every].split(self.batch_size), self.labels[::every].split(self.batch_size)
        return torch.cat([margin(self.logits(weights or {}, x), y) for x, y in zip(inputs, labels, strict=True)])

    def made_wrong(self, weights: Mapping[str, Tensor], at_most: int | None = None) -> float:
        """Share of the fitted examples that these weights misclassify, from an even subset of `at_most` examples."""
        every = max(-(-len(self.labels) // at_most), 1) if at_most else 1
        return float((~(self.margins(weights, every) > 0)).double().mean())

    @torch.no_grad()
    def has_error(self, weights: Mapping[str, Tensor], first: int = 0, last: int | None = None) -> bool:
        """Whether any fitted example in [first, last) is misclassified; stops at the first batch that has one."""
        inputs, labels = self.inputs[first:last], self.labels[first:last]
        start, size = 0, FIRST
        while start < len(labels):
            batch = slice(start, start + size)
            if (~(margin(self.logits(weights, inputs[batch]), labels[batch]) > 0)).any():
                return True
            start, size = start + size, self.batch_size
        return False

    def turned(self, change: Callable[[TurningLayer, Tensor], Tensor]) -> Weights:
        """The weights after `change` of every layer's rows [neurons, fan_in]."""
        return {
            layer.name: change(layer, self.weights[layer.name].flatten(1)).view_as(self.weights[layer.name])
            for layer in self.layers
        }

    def turned_at_random(self, angle: float, seed: int, number: int) -> Weights:
        """All neurons at once, each drawn uniformly from its cap of this angle; seed and number identify the draw."""
        sequence = np.random.SeedSequence((seed, number))
        angles = np.random.default_rng(sequence)
        directions = torch.Generator(self.labels.device)
        directions.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
        return self.turned(lambda layer, rows: turn_at_random(rows, angle, layer.centred, angles, directions))

    def angles_to(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        """For each layer, the angle of each neuron to these weights, in float64."""
        return [turning_angles(self.weights[layer.name], weights[layer.name]) for layer in self.layers]


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """[N, classes] -> [N]: the label's logit less the largest other one; NaN where a logit is."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return own - others


def sphere_dim(fan_in: int, centred: bool) -> int:
    """Dimension of the sphere of a neuron of this fan-in; S^(d-2) for a balanced one (Section 8)."""
    return max(fan_in - (2 if centred else 1), 0)


def tangent(rows: Tensor, vectors: Tensor, centred: bool) -> Tensor:
    """The component of each vector that changes neither its row's norm nor, if centred, its mean."""
    if centred:
        vectors = vectors - vectors.mean(-1, keepdim=True)
    square = rows.square().sum(-1, keepdim=True)
    along = (vectors * rows).sum(-1, keepdim=True) / torch.where(square == 0, 1, square)
    return vectors - along * rows


def turn(rows: Tensor, directions: Tensor, angle: Tensor | float) -> Tensor:
    """Each row turned by an angle towards its direction, a tangent vector of any length."""
    angle = torch.as_tensor(angle, dtype=rows.dtype, device=rows.device)
    angle = angle.reshape(-1, 1) if angle.ndim else angle
    length = directions.norm(dim=-1, keepdim=True)
    size = rows.norm(dim=-1, keepdim=True)
    moves = (length > 0) & (size > 0)
    turned = angle.cos() * rows + angle.sin() * size * (directions / torch.where(moves, length, 1))
    return torch.where(moves, turned, rows)


def clip_to_cap(rows: Tensor, centres: Tensor, angle: float, centred: bool) -> Tensor:
    """The nearest rows within an angle of their centres, which have the same norms."""
    # By the chord, which keeps all digits however short it is: the rows are close to their centres.
    chord = rows - centres
    within = chord.norm(dim=-1, keepdim=True) <= 2 * math.sin(angle / 2) * centres.norm(dim=-1, keepdim=True)
    return torch.where(within, rows, turn(centres, tangent(centres, chord, centred), angle))


def turn_at_random(
    rows: Tensor, angle: float, centred: bool, angles: np.random.Generator, directions: torch.Generator
) -> Tensor:
    """Each row drawn uniformly from the cap of that angle around it."""
    dim = sphere_dim(rows.shape[1], centred)
    if dim == 0 or angle == 0:
        return rows
    drawn = torch.randn(rows.shape, dtype=rows.dtype, device=rows.device, generator=directions)
    by = torch.from_numpy(draw_angles(angle, dim, len(rows), angles)).to(rows)
    return turn(rows, tangent(rows, drawn, centred), by)


def draw_angles(angle: float, dim: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Angles to the centre of points that are uniform on a cap of S^dim: density sin^(dim-1) on [0, angle].

    By rejection, which is exact in any dim: in high ones nearly all points lie near the border of the cap.
    """
    if not 0 < angle <= math.pi or dim < 1:
        raise ValueError(f"a cap has an angle in (0, pi] and a sphere of dim 1 or more, not {angle} and {dim}")
    drawn = np.empty(0)
    while len(drawn) < count:
        more = 2 * (count - len(drawn)) + 16
        if angle < math.pi / 2 and math.cos(angle) * math.sqrt(dim) > 1:
            # The sine has density s^(dim-1) / sqrt(1 - s^2): draw from the first factor, accept by the second.
            sine = math.sin(angle) * generator.random(more) ** (1 / dim)
            accepted = generator.random(more) * np.sqrt(1 - sine**2) <= math.cos(angle)
            angles = np.arcsin(sine)
        else:
            # A cap that is no small part of the sphere: draw from the whole sphere, accept what lies within.
            angles = np.arctan2(np.sqrt(generator.chisquare(dim, more)), generator.standard_normal(more))
            accepted = angles <= angle
        drawn = np.concatenate([drawn, angles[accepted]])
    return drawn[:count]
