"""How far a step moves and turns each neuron (Definition 5, Equation 3).

A neuron is a slice along dim 0 of a tensor with two or more dims; other tensors have none. Everything is computed in
float64 from the weights as stored: rounding to float32 moves a neuron by some 3e-8 of its norm beyond what the
optimiser computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from nero.optim.balance import neuron_norm, stored_view
from nero.theory.balance import quantiles


def relative_steps(before: Tensor, after: Tensor) -> Tensor:
    """‖Δw‖/‖w‖ of each neuron; infinite for a neuron of zeros that moved, zero for one that did not."""
    return _ratio(neuron_norm(_difference(before, after)), neuron_norm(before.detach().double()))


def turning_angles(before: Tensor, after: Tensor) -> Tensor:
    """The angle by which each neuron was turned, in radians from 0 to π; zero where either vector is zero.

    Exact to some 1e-16 radians at any angle (Kahan): the cosine of a small one would lose half of its digits.
    """
    _check_shapes(before, after)
    old, new = _directions(before, like=before), _directions(after, like=before)
    angles = 2 * torch.atan2(neuron_norm(new - old), neuron_norm(new + old))
    no_direction = (old == 0).all(-1) | (new == 0).all(-1)
    return torch.where(no_direction, 0.0, angles)


def relative_size(change: Tensor, base: Tensor) -> float:
    """‖change‖/‖base‖ of two tensors of any shape (Frobenius); 0/0 is 0, all else over 0 is infinite."""
    # As one neuron that holds all entries.
    sizes = [neuron_norm(tensor.detach().double().unsqueeze(0)) for tensor in (change.reshape(-1), base.reshape(-1))]
    return _ratio(*sizes).item()


def layer_step(before: Tensor, after: Tensor) -> float:
    """‖ΔW‖/‖W‖ of a whole tensor (Frobenius): at most the largest of its neurons' relative steps (Equation 3)."""
    return relative_size(_difference(before, after), before)


@dataclass(frozen=True)
class LayerStep:
    """One step of a tensor with neurons; the last two fields are `quantiles` over its neurons, angles in radians."""

    name: str
    relative_step: float
    neuron_steps: dict[str, float]
    angles: dict[str, float]


class StepMeter:
    """Measures an optimiser's steps on named parameters, which need not all be the optimiser's.

        with StepMeter(optimizer, dict(network.named_parameters())) as meter:
            ...
            meter.arm()
            optimizer.step()
            meter.layers

    Only the step after `arm` is measured, which copies the parameters and waits for the device. Other steps cost
    nothing. Hooks registered earlier, such as the projection of `constrained`, count as part of the step. A step
    replayed from a CUDA graph runs no hooks and cannot be measured.

    Attributes:
        layers: of the last measured step, one for every tensor with neurons
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> None:
        self.layers: list[LayerStep] = []
        self._optimizer = optimizer
        self._parameters = {name: each for name, each in parameters.items() if each.ndim >= 2 and each.numel() > 0}
        self._hooks: list[Any] = []
        self._armed = False
        self._before: dict[str, Tensor] | None = None

    def arm(self) -> None:
        """Measure the next step."""
        if not self._hooks:
            raise RuntimeError("a StepMeter measures within its with block only")
        self._armed = True

    def __enter__(self) -> Self:
        self._hooks += [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._armed, self._before = False, None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # Also drops the copy of a step that raised.
        copies = {name: tensor.detach().clone() for name, tensor in self._parameters.items()} if self._armed else None
        self._armed, self._before = False, copies

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._before is None:
            return
        self.layers = []
        for name, before in self._before.items():
            after = self._parameters[name]
            steps, angles = relative_steps(before, after), turning_angles(before, after)
            self.layers.append(LayerStep(name, layer_step(before, after), quantiles(steps), quantiles(angles)))
        self._before = None


def _check_shapes(before: Tensor, after: Tensor) -> None:
    if before.shape != after.shape:
        raise ValueError(f"a step changes no shape: {tuple(before.shape)} before it, {tuple(after.shape)} after it")


def _difference(before: Tensor, after: Tensor) -> Tensor:
    _check_shapes(before, after)
    return after.detach().double() - before.detach().double()


def _ratio(change: Tensor, size: Tensor) -> Tensor:
    """change / size, with 0/0 = 0."""
    return torch.where(change == 0, 0.0, change / size)


def _directions(weight: Tensor, like: Tensor) -> Tensor:
    """Each neuron's entries, in the memory order of `like`, over its norm; zeros for a neuron of zeros."""
    sizes = neuron_norm(weight.detach().double()).unsqueeze(-1)
    return _ratio(stored_view(weight.detach(), like=like).flatten(1).double(), sizes)
