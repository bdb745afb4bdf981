"""Stable descent steps (Definition 3) and deep relative trust (Definition 4), of steps as they were taken.

A layer is a tensor with two or more dims. For a step from W to W + ΔW:

    gradient change  ‖∇ₗ(W + ΔW) - ∇ₗ(W)‖ / ‖∇ₗ(W)‖    left side of both definitions, of layer l
    cosine           of the angle between ΔWₗ and -∇ₗ(W)
    trust            Πₖ (1 + ‖ΔWₖ‖/‖Wₖ‖) - 1              right side of Definition 4, the same for all layers

The step is stable where every layer's gradient change is below its cosine, and keeps within trust where every layer's
is at most the trust. All of it in float64, from gradients in whatever dtype the network has.

Two things that the definitions leave open. A stable step lowers the loss if it is stable all the way: this sees the end
of a step, and a gradient may change on the way and change back. And deep relative trust is a model of perceptrons: it
takes no account of the loss's own curvature, of ill-conditioned layers or of biases that move.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nero.theory.steps import layer_step, relative_size


def gradient_changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[float]:
    """‖g' - g‖/‖g‖ of each layer; where g was zero, zero if it still is and else infinite."""
    return [layer_step(old, new) for old, new in zip(before, after, strict=True)]


def trust_bound(weights: Sequence[Tensor], perturbations: Sequence[Tensor]) -> float:
    """Π (1 + ‖ΔW‖/‖W‖) - 1 over the layers; infinite where a layer of zeros moves."""
    ratios = [relative_size(change, weight) for weight, change in zip(weights, perturbations, strict=True)]
    # Not the product less one, which would round small steps away.
    return torch.tensor(ratios, dtype=torch.float64).log1p().sum().expm1().item()


def cosines(perturbations: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[float]:
    """Cosine of the angle between each ΔW and its -∇; zero where either is zero and there is no angle."""
    return [_cosine(change, -gradient) for change, gradient in zip(perturbations, gradients, strict=True)]


@dataclass(frozen=True)
class LayerTrust:
    """One layer's part in a step; the terms are the module's, `relative_step` is ‖ΔW‖/‖W‖."""

    name: str
    gradient_change: float
    cosine: float
    relative_step: float

    @property
    def stable(self) -> bool:
        """Definition 3 for this layer.

        A layer that did not move has no cosine and no part in what the loss does: it is stable whatever its gradient
        does. One that moved against a gradient of zero is not.
        """
        return self.relative_step == 0 or self.gradient_change < self.cosine


@dataclass(frozen=True)
class StepTrust:
    """A step, and the loss before and after it."""

    layers: tuple[LayerTrust, ...]
    trust: float
    loss: float
    loss_after: float

    @property
    def stable(self) -> bool:
        """Definition 3: every layer is stable, and one of them moved at all."""
        return all(layer.stable for layer in self.layers) and any(layer.relative_step != 0 for layer in self.layers)

    @property
    def within_trust(self) -> bool:
        """Definition 4 for this step: no layer's gradient changed by more than the trust."""
        return all(self.holds(layer.name) for layer in self.layers)

    def holds(self, name: str) -> bool:
        """Definition 4 for this step and one layer; KeyError for a name that none has."""
        changes = {layer.name: layer.gradient_change for layer in self.layers}
        return changes[name] <= self.trust


def look_at_step(loss: Callable[[], Tensor], weights: Mapping[str, Tensor], take: Callable[[], object]) -> StepTrust:
    """Take a step, and compare gradients before and after it.

    loss:    computes the loss with the weights as they are. It is called before and after the step and has to be the
             same function both times: one batch, and no dropout. Its gradients leave `.grad` alone
    weights: named parameters; those with fewer than two dims may move, and are no layers
    take:    changes the weights in place, in any way: an optimiser's step, a perturbation

    Layers that require no gradient count in the trust, if they move, and are not among the step's layers.
    """
    matrices = {name: weight for name, weight in weights.items() if weight.ndim >= 2}
    learnt = {name: weight for name, weight in matrices.items() if weight.requires_grad}
    value, gradients = _loss_and_gradients(loss, learnt)
    before = {name: weight.detach().clone() for name, weight in matrices.items()}
    take()
    value_after, gradients_after = _loss_and_gradients(loss, learnt)

    changes = {name: weight.detach().double() - before[name].double() for name, weight in matrices.items()}
    measured = zip(
        learnt,
        gradient_changes(gradients, gradients_after),
        cosines([changes[name] for name in learnt], gradients),
        strict=True,
    )
    return StepTrust(
        layers=tuple(
            LayerTrust(name, change, cosine, relative_size(changes[name], before[name]))
            for name, change, cosine in measured
        ),
        trust=trust_bound(list(before.values()), list(changes.values())),
        loss=value,
        loss_after=value_after,
    )


def _loss_and_gradients(loss: Callable[[], Tensor], weights: Mapping[str, Tensor]) -> tuple[float, list[Tensor]]:
    with torch.enable_grad():
        value = loss()
        # A weight that the loss does not depend on has the gradient zero.
        gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True, materialize_grads=True)
    return value.item(), list(gradients)


def _cosine(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    if not one.any() or not other.any():
        return 0.0
    # Each by its own norm first: a product of squares leaves the range sooner.
    units = [tensor / torch.linalg.vector_norm(tensor) for tensor in (one, other)]
    return float((units[0] * units[1]).sum().clamp(-1, 1))
