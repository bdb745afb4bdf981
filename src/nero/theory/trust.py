"""Stable descent steps (Definition 3) and deep relative trust (Definition 4), measured on actual steps.

A layer is a tensor with two or more dims. For a step from W to W + ΔW:

    gradient change  ‖∇ₗ(W + ΔW) - ∇ₗ(W)‖ / ‖∇ₗ(W)‖    left side of both definitions, of layer l
    cosine           of the angle between ΔWₗ and -∇ₗ(W)
    trust            Πₖ (1 + ‖ΔWₖ‖/‖Wₖ‖) - 1              right side of Definition 4, the same for all layers

The step is stable if every layer's gradient change is below its cosine, and within trust if every layer's is at most
the trust. Everything is computed in float64, from gradients in the network's dtype.

Two limits. A stable step lowers the loss if it is stable all along; this sees only its end, and a gradient may change
and change back. And deep relative trust is a model of perceptrons: it ignores the loss's own curvature, ill-conditioned
layers and biases that move.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nero.theory.steps import layer_step, relative_size


def trust_bound(weights: Sequence[Tensor], perturbations: Sequence[Tensor]) -> float:
    """Π (1 + ‖ΔW‖/‖W‖) - 1 over the layers; infinite where a layer of zeros moves."""
    ratios = [relative_size(change, weight) for weight, change in zip(weights, perturbations, strict=True)]
    # Not the product minus one, which would lose small steps to rounding.
    return torch.tensor(ratios, dtype=torch.float64).log1p().sum().expm1().item()


def descent_cosine(change: Tensor, gradient: Tensor) -> float:
    """Cosine of the angle between ΔW and -∇; zero where either is zero and there is no angle."""
    one, other = change.detach().double(), -gradient.detach().double()
    if not one.any() or not other.any():
        return 0.0
    # Each divided by its own norm first: a product of squares would overflow sooner.
    units = [tensor / torch.linalg.vector_norm(tensor) for tensor in (one, other)]
    return float((units[0] * units[1]).sum().clamp(-1, 1))


@dataclass(frozen=True)
class LayerTrust:
    """One layer of a step, in the terms of the module docstring; `relative_step` is ‖ΔW‖/‖W‖."""

    name: str
    gradient_change: float
    cosine: float
    relative_step: float

    @property
    def stable(self) -> bool:
        """Definition 3 for this layer. A layer that did not move is stable; one with a gradient of zero is not."""
        return self.relative_step == 0 or self.gradient_change < self.cosine


@dataclass(frozen=True)
class StepTrust:
    """A step, with the loss before and after it."""

    layers: tuple[LayerTrust, ...]
    trust: float
    loss: float
    loss_after: float

    @property
    def stable(self) -> bool:
        """Definition 3: every layer is stable, and at least one moved."""
        return all(layer.stable for layer in self.layers) and any(layer.relative_step != 0 for layer in self.layers)

    @property
    def within_trust(self) -> bool:
        """Definition 4 for this step: no layer's gradient changed by more than the trust."""
        return all(layer.gradient_change <= self.trust for layer in self.layers)


def measure_step(loss: Callable[[], Tensor], weights: Mapping[str, Tensor], take: Callable[[], object]) -> StepTrust:
    """Take a step, and compare gradients before and after it.

    Layers that require no gradient count in the trust, if they move, but are not among the step's layers.

    Args:
        loss: computes the loss of the current weights, before and after the step. It must be the same function both
            times: one batch, no dropout. `.grad` is not changed.
        weights: named parameters; those with fewer than two dims may move, but are no layers.
        take: changes the weights in place: an optimiser's step, a perturbation.
    """
    matrices = {name: weight for name, weight in weights.items() if weight.ndim >= 2}
    trained = {name: weight for name, weight in matrices.items() if weight.requires_grad}

    def loss_and_gradients() -> tuple[float, tuple[Tensor, ...]]:
        with torch.enable_grad():
            value = loss()
            gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True, materialize_grads=True)
        return value.item(), gradients

    value, gradients = loss_and_gradients()
    before = {name: weight.detach().clone() for name, weight in matrices.items()}
    take()
    value_after, gradients_after = loss_and_gradients()
    changes = {name: weight.detach().double() - before[name].double() for name, weight in matrices.items()}
    layers = tuple(
        LayerTrust(
            name, layer_step(old, new), descent_cosine(changes[name], old), relative_size(changes[name], before[name])
        )
        for name, old, new in zip(trained, gradients, gradients_after, strict=True)
    )
    return StepTrust(layers, trust_bound(list(before.values()), list(changes.values())), value, value_after)
