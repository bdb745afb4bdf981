"""How little turning makes an error: an upper bound on the alpha of Definition 6, with the rotation that proves it.

For one example, all neurons are turned so as to lower its margin: projected gradient ascent, on the product of spheres,
of what is lost of it. Each neuron has a budget of its own, the angle, so each takes steps of its own length whatever
its gradient's: the steepest direction where the largest angle counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nero.theory.rotations import clip_to_cap, tangent, turn
from nero.theory.solutions import Solution, Weights, margin

CLOSE = 0.01
"""The angle is found to within this part of itself."""

SMALLEST = 1e-12
"""Angles that float32 no longer knows from none."""


@dataclass(frozen=True)
class AdversarialAngle:
    """A rotation of all neurons by up to `angle` that makes a fitted example wrong.

    example:      where that one stands among the training examples
    first_order:  the smallest angle at which a linear model of a margin would be used up
    attacked:     examples that were tried, each by `steps` steps for an angle
    witness:      the turned weights
    """

    angle: float
    example: int
    first_order: float
    attacked: int
    steps: int
    witness: Weights

    def record(self) -> dict[str, Any]:
        return {
            "angle": self.angle,
            "first_order": self.first_order,
            "example": self.example,
            "attacked": self.attacked,
            "steps": self.steps,
        }


def adversarial_angle(
    solution: Solution,
    candidates: int = 64,
    attacked: int = 16,
    steps: int = 20,
    say: Callable[[str], None] = lambda line: None,
) -> AdversarialAngle | None:
    """The smallest angle found; None where nothing up to a right angle makes an error.

    candidates:  examples with the smallest margins, of which the most promising ones by first order are `attacked`
    """
    promising = sorted((first_order_angle(solution, i), i) for i in range(min(candidates, len(solution.order))))
    best: tuple[float, int, Weights] | None = None
    for guess, example in promising[:attacked]:
        found = _smallest(solution, example, guess, steps, best[0] * (1 - CLOSE) if best else None)
        if found:
            best = (found[0], example, found[1])
            say(f"adversarial rotation by up to {found[0]:.3g} (first order {guess:.3g})")
    if best is None:
        return None
    _, example, witness = best
    # What rounding made of it: the claim is about these very weights.
    angle = max(float(angles.max()) for angles in solution.angles_to(witness))
    place = int(solution.order[example])
    return AdversarialAngle(angle, place, promising[0][0], len(promising[:attacked]), steps, witness)


def first_order_angle(solution: Solution, example: int) -> float:
    """Of the `example`-th weakest: its margin over what a radian of every neuron's best turn would take from it."""
    value, gradients = _margin_and_gradients(solution, example, solution.weights)
    per_radian = sum(
        float((gradients[layer.name].norm(dim=-1) * solution.weights[layer.name].flatten(1).norm(dim=-1)).sum())
        for layer in solution.layers
    )
    return float(value) / per_radian if per_radian > 0 else math.inf


def attack(solution: Solution, example: int, angle: float, steps: int) -> Weights | None:
    """Weights within the angle that make the `example`-th weakest example wrong, if they are found."""
    weights = solution.weights
    for step in range(steps):
        value, down = _margin_and_gradients(solution, example, weights)
        if value < 0:
            return weights
        # The first step goes to the border of every cap, where a linear model has its least margin; later ones shorten.
        by = angle if step == 0 else angle * (1 - step / steps) / 2
        now = weights

        def descend(layer: Any, centres: Tensor, by: float = by, now: Weights = now, down: Weights = down) -> Tensor:
            rows = now[layer.name].flatten(1)
            return clip_to_cap(turn(rows, -down[layer.name], by), centres, angle, layer.centred)

        weights = solution.turned(descend)
    value, _ = _margin_and_gradients(solution, example, weights)
    return weights if value < 0 else None


def _smallest(
    solution: Solution, example: int, guess: float, steps: int, below: float | None
) -> tuple[float, Weights] | None:
    """The smallest angle at which the example is made wrong, with the weights; if `below` is given, less than that."""
    high = below if below is not None else min(guess, math.pi / 2)
    found = attack(solution, example, high, steps)
    while found is None and below is None and high < math.pi / 2:
        high = min(1.5 * high, math.pi / 2)
        found = attack(solution, example, high, steps)
    if found is None:
        return None
    low = high / 2
    while (weights := attack(solution, example, low, steps)) is not None and low > SMALLEST:
        high, found, low = low, weights, low / 2
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        weights = attack(solution, example, middle, steps)
        if weights is None:
            low = middle
        else:
            high, found = middle, weights
    return high, found


def _margin_and_gradients(solution: Solution, example: int, weights: Weights) -> tuple[Tensor, Weights]:
    """The margin of one example, and its gradient by each layer's rows, along which they can turn."""
    leaves = {name: weight.detach().requires_grad_(True) for name, weight in weights.items()}
    with torch.enable_grad():
        logits = solution.logits(leaves, solution.inputs[example : example + 1])
        value = margin(logits, solution.labels[example : example + 1]).sum()
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    by_name = dict(zip(leaves, gradients, strict=True))
    rows: Weights = {}
    for layer in solution.layers:
        weight, gradient = leaves[layer.name].detach().flatten(1), by_name[layer.name]
        rows[layer.name] = tangent(
            weight, torch.zeros_like(weight) if gradient is None else gradient.flatten(1), layer.centred
        )
    return value.detach(), rows
