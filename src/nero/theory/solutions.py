"""A classifier and the training examples that it gets right: what Definition 6 is about."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nero.theory.balance import centred
from nero.theory.rotations import sphere_dim, turn_at_random
from nero.theory.steps import turning_angles

Weights = dict[str, Tensor]
FIRST, WEAK = 250, 5000
"""Examples that are looked at first for an error: the weakest, which are the likeliest to have one."""


@dataclass(frozen=True)
class TurningLayer:
    """A tensor of neurons, and the spheres on which they turn: of `dim` dims each."""

    name: str
    neurons: int
    fan_in: int
    centred: bool

    @property
    def dim(self) -> int:
        return sphere_dim(self.fan_in, self.centred)

    def record(self) -> dict[str, int | str]:
        return {"name": self.name, "neurons": self.neurons, "fan_in": self.fan_in, "dim": self.dim}


class Solution:
    """A network in evaluation mode over examples; those that it has fitted, the weakest first.

    network:   gives logits [N, classes] for what `prepare` makes of inputs
    inputs:    training examples [n, ...] as they are kept, with `labels` [n], on the network's device
    prepare:   from a batch of inputs to what the network takes

    Neurons are the slices along dim 0 of all parameters with two or more dims; everything else stays as it is. An
    example counts as fitted if its label's logit is the largest, alone.
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
        self.inputs, self.labels = inputs, labels
        margins = self.margins()
        self.examples = len(labels)
        self.classes = self.logits({}, inputs[:1]).shape[1]
        order = margins.argsort()
        order = order[margins[order] > 0]
        self.order = order
        """Where the fitted examples stand among all of them."""
        self.inputs, self.labels, self.fitted_margins = inputs[order], labels[order], margins[order]

    @property
    def errors(self) -> int:
        """Training examples that are wrong to begin with; Definition 6 is about solutions with none."""
        return self.examples - len(self.order)

    def logits(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(self.network, dict(weights), (self.prepare(inputs),))

    @torch.no_grad()
    def margins(self, weights: Mapping[str, Tensor] | None = None, every: int = 1) -> Tensor:
        """By how much the label's logit exceeds all others, for `every` so-manieth example that is kept."""
        inputs, labels = self.inputs[::every].split(self.batch_size), self.labels[::every].split(self.batch_size)
        return torch.cat([margin(self.logits(weights or {}, x), y) for x, y in zip(inputs, labels, strict=True)])

    def made_wrong(self, weights: Mapping[str, Tensor], at_most: int | None = None) -> float:
        """Share of the fitted examples that these weights get wrong; of `at_most` as many, weak and strong alike."""
        every = max(-(-len(self.labels) // at_most), 1) if at_most else 1
        return float((~(self.margins(weights, every) > 0)).double().mean())

    @torch.no_grad()
    def has_error(self, weights: Mapping[str, Tensor], first: int = 0, last: int | None = None) -> bool:
        """Whether any fitted example from `first` to before `last` is wrong; ends with the first batch that has one."""
        inputs, labels = self.inputs[first:last], self.labels[first:last]
        lengths = [min(FIRST, len(labels))]
        while sum(lengths) < len(labels):
            lengths.append(min(self.batch_size, len(labels) - sum(lengths)))
        return any(
            bool((~(margin(self.logits(weights, some), theirs) > 0)).any())
            for some, theirs in zip(inputs.split(lengths), labels.split(lengths), strict=True)
            if len(theirs)
        )

    def turned(self, change: Callable[[TurningLayer, Tensor], Tensor]) -> Weights:
        """The weights with every layer's rows [neurons, fan_in] changed."""
        return {
            layer.name: change(layer, self.weights[layer.name].flatten(1)).view_as(self.weights[layer.name])
            for layer in self.layers
        }

    def angles_to(self, weights: Mapping[str, Tensor]) -> list[Tensor]:
        """How far each neuron of each layer stands from where it was, in float64."""
        return [turning_angles(self.weights[layer.name], weights[layer.name]) for layer in self.layers]

    def turned_at_random(self, angle: float, draw: "Draw") -> Weights:
        """All neurons at once, each drawn uniformly from its cap of this angle."""
        return self.turned(lambda layer, rows: turn_at_random(rows, angle, layer.centred, draw.angles, draw.directions))


@dataclass(frozen=True)
class Draw:
    """The random numbers of one rotation of all neurons."""

    angles: np.random.Generator
    directions: torch.Generator

    @classmethod
    def seeded(cls, seed: int, number: int, device: torch.device) -> "Draw":
        sequence = np.random.SeedSequence((seed, number))
        directions = torch.Generator(device).manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
        return cls(np.random.default_rng(sequence), directions)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """[N, classes] -> [N]: the label's logit less the largest other one; NaN where a logit is."""
    own = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return own - others
