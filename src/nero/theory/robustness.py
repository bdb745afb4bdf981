"""The alpha of Definition 6, the largest angle by which no rotation of the neurons makes an error, in three ways.

adversarial_angle  an upper bound: a rotation, found by gradient ascent, that makes an error
certified_angle    a lower bound, for perceptrons: no rotation by that angle can make one
random_angle       far above alpha: with some confidence, a share of the random rotations by that angle makes none

Random draws cannot rule out the worst rotation. But they bound the measure of the version space, all that Theorem 1
needs: if a share of the rotations by up to an angle makes no error, P[V_S] is at least that share of the caps' product.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from nero.theory.solutions import WEAK, Draw, Solution, TurningLayer, Weights, clip_to_cap, margin, tangent, turn

ADVERSARIAL_PRECISION = 0.01  # relative
SMALLEST_ADVERSARIAL = 1e-12  # float32 cannot tell smaller angles from zero
SMALLEST_CERTIFIED = 1e-30
SMALLEST_RANDOM, LARGEST_RANDOM = 1e-7, math.pi / 2
TRIED = 16  # random rotations without an error that make an angle a candidate
SHORTEN = 0.9  # factor of a random angle that failed


@dataclass(frozen=True)
class AdversarialAngle:
    """A rotation of all neurons by up to `angle` that makes a fitted example wrong.

    example:      its index among the training examples
    first_order:  the smallest angle at which a linear model of a margin reaches zero
    attacked:     number of examples that were tried, with `steps` steps for each angle
    witness:      the turned weights
    """

    angle: float
    example: int
    first_order: float
    attacked: int
    steps: int
    witness: Weights

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("angle", "first_order", "example", "attacked", "steps")}


def adversarial_angle(
    solution: Solution,
    candidates: int = 64,
    attacked: int = 16,
    steps: int = 20,
    say: Callable[[str], None] = lambda line: None,
) -> AdversarialAngle | None:
    """The smallest angle found; None where nothing up to a right angle makes an error.

    For one example, all neurons are turned so as to lower its margin: projected gradient ascent on a product of
    spheres. Each neuron takes steps of the same angle whatever its gradient's length: the steepest direction in the
    maximum norm over neurons.

    Args:
        candidates: number of examples with the smallest margins to rank by `first_order_angle`.
        attacked: number of those to attack, best first.
        steps: gradient steps for each angle.
        say: called with a line for each improvement.
    """
    promising = sorted((first_order_angle(solution, i), i) for i in range(min(candidates, len(solution.order))))
    best: tuple[float, int, Weights] | None = None
    for guess, example in promising[:attacked]:
        below = best[0] * (1 - ADVERSARIAL_PRECISION) if best else None
        if found := _smallest(solution, example, guess, steps, below):
            best = (found[0], example, found[1])
            say(f"adversarial rotation by up to {found[0]:.3g} (first order {guess:.3g})")
    if best is None:
        return None
    _, example, witness = best
    # The angle after rounding, that of these very weights.
    angle = max(float(angles.max()) for angles in solution.angles_to(witness))
    index = int(solution.order[example])
    return AdversarialAngle(angle, index, promising[0][0], len(promising[:attacked]), steps, witness)


def first_order_angle(solution: Solution, example: int) -> float:
    """Margin of the `example`-th weakest over its derivative by the angle of all neurons' steepest turns."""
    value, gradients = _margin_and_gradients(solution, example, solution.weights)
    per_radian = sum(
        float((gradients[layer.name].norm(dim=-1) * solution.weights[layer.name].flatten(1).norm(dim=-1)).sum())
        for layer in solution.layers
    )
    return float(value) / per_radian if per_radian > 0 else math.inf


def attack(solution: Solution, example: int, angle: float, steps: int) -> Weights | None:
    """Weights within the angle that make the `example`-th weakest example wrong, if found."""
    weights = solution.weights
    for step in range(steps):
        value, gradients = _margin_and_gradients(solution, example, weights)
        if value < 0:
            return weights
        # The first step goes to the border of every cap, where a linear model has its least margin; later ones shorten.
        by = angle if step == 0 else angle * (1 - step / steps) / 2
        weights = solution.turned(_descent(weights, gradients, by, angle))
    value, _ = _margin_and_gradients(solution, example, weights)
    return weights if value < 0 else None


def _descent(weights: Weights, gradients: Weights, by: float, angle: float) -> Callable[[TurningLayer, Tensor], Tensor]:
    """Turns each layer of `weights` against its gradient, within the angle of the solution's rows."""

    def change(layer: TurningLayer, centres: Tensor) -> Tensor:
        rows = turn(weights[layer.name].flatten(1), -gradients[layer.name], by)
        return clip_to_cap(rows, centres, angle, layer.centred)

    return change


def _smallest(
    solution: Solution, example: int, guess: float, steps: int, below: float | None
) -> tuple[float, Weights] | None:
    """The smallest angle, less than `below` if given, at which the attack succeeds, with its weights."""
    high = below if below is not None else min(guess, math.pi / 2)
    found = attack(solution, example, high, steps)
    while found is None and below is None and high < math.pi / 2:
        high = min(1.5 * high, math.pi / 2)
        found = attack(solution, example, high, steps)
    if found is None:
        return None
    low = high / 2
    while (weights := attack(solution, example, low, steps)) is not None and low > SMALLEST_ADVERSARIAL:
        high, found, low = low, weights, low / 2
    while high / low > 1 + ADVERSARIAL_PRECISION:
        middle = math.sqrt(low * high)
        weights = attack(solution, example, middle, steps)
        if weights is None:
            low = middle
        else:
            high, found = middle, weights
    return high, found


def _margin_and_gradients(solution: Solution, example: int, weights: Weights) -> tuple[Tensor, Weights]:
    """The margin of one example, and the tangential part of its gradient by each layer's rows."""
    leaves = {name: weight.detach().requires_grad_(True) for name, weight in weights.items()}
    with torch.enable_grad():
        logits = solution.logits(leaves, solution.inputs[example : example + 1])
        value = margin(logits, solution.labels[example : example + 1]).sum()
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    by_name = dict(zip(leaves, gradients, strict=True))
    return value.detach(), {
        layer.name: tangent(leaves[layer.name].detach().flatten(1), by_name[layer.name].flatten(1), layer.centred)
        for layer in solution.layers
    }


@dataclass(frozen=True)
class Perceptron:
    """Linear layers by the names of their weights in a solution, with an activation after each but the last.

    slope: the activation's largest slope
    """

    weights: Sequence[str]
    biases: Sequence[Tensor | None]
    activation: Callable[[Tensor], Tensor]
    slope: float


@torch.no_grad()
def certified_angle(solution: Solution, perceptron: Perceptron) -> float:
    """The largest angle, up to the precision of a bisection, for which no rotation can make a fitted example wrong.

    A neuron that turns by up to alpha moves by up to r = 2 sin(alpha / 2) times its norm. So if the inputs h of a layer
    W are off by up to e, its outputs are off by up to |W|_2 e + r |W|_F (|h| + e), and the activation passes on at most
    its slope times that. For centred neurons, whose moves are centred as well, only h without its mean counts. Holds
    for every rotation, but is loose: the gap to `adversarial_angle` grows with depth.

    Raises ValueError where the layers do not give the network's logits.
    """
    reach = _Reach(solution, perceptron)
    if not reach.holds(SMALLEST_CERTIFIED):
        return 0.0
    low, high = SMALLEST_CERTIFIED, math.pi
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if reach.holds(middle) else (low, middle)
    return low


class _Reach:
    """Norms and margins, in float64, that bound how far turned neurons can move a network's outputs."""

    def __init__(self, solution: Solution, perceptron: Perceptron) -> None:
        by_name = {layer.name: layer for layer in solution.layers}
        if set(perceptron.weights) != set(by_name):
            raise ValueError(f"the perceptron's layers are {list(perceptron.weights)}, the network's {list(by_name)}")
        matrices = [solution.weights[name].double() for name in perceptron.weights]
        self.slope = perceptron.slope
        self.spectral = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in matrices]
        self.frobenius = [float(matrix.norm()) for matrix in matrices]
        sizes: list[list[Tensor]] = [[] for _ in matrices]
        logits = []
        for inputs in solution.inputs.split(solution.batch_size):
            h = solution.prepare(inputs).flatten(1).double()
            for number, (matrix, bias) in enumerate(zip(matrices, perceptron.biases, strict=True)):
                centred = by_name[perceptron.weights[number]].centred
                sizes[number].append((h - h.mean(1, keepdim=True) if centred else h).norm(dim=1))
                h = h @ matrix.T + (0 if bias is None else bias.double())
                if number < len(matrices) - 1:
                    h = perceptron.activation(h)
            theirs = solution.logits({}, inputs)
            scale = float(theirs.abs().max()) + 1e-30
            if not torch.allclose(h, theirs.double(), rtol=1e-2, atol=1e-2 * scale):
                raise ValueError("these layers give other logits than the network")
            logits.append(h)
        self.sizes = [torch.cat(parts) for parts in sizes]
        output, labels, last = torch.cat(logits), solution.labels, matrices[-1]
        gaps = output.gather(1, labels[:, None]) - output
        self.gaps = gaps.scatter(1, labels[:, None], torch.inf)  # to each other class
        self.between = torch.cdist(last, last)[labels]  # distances from the label's neuron to each other one
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


@dataclass(frozen=True)
class RandomAngle:
    """With `confidence`, at least `share` of the rotations by up to `angle` leave every fitted example right.

    draws: number of rotations, all without an error, behind this. The angle is 0 where none was found.
    """

    angle: float
    confidence: float
    share: float
    draws: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


def draws_needed(confidence: float, share: float) -> int:
    """Draws without an error that show, with this confidence, that at least the share has none.

    If the share were less than s, n draws would all succeed with a probability of less than s^n.
    """
    for name, value in (("confidence", confidence), ("share", share)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, not {value}")
    return math.ceil(math.log1p(-confidence) / math.log(share))


def random_angle(
    solution: Solution,
    confidence: float = 0.95,
    share: float = 0.9,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> RandomAngle:
    """The largest angle found at which at least the share of random rotations makes no error.

    A bisection with a few draws each finds a candidate, which is then tested with as many fresh draws as the confidence
    needs, and shortened until it passes. The k-th test may be wrong with probability (1 - confidence) / 2^k, all of
    them together with at most 1 - confidence.
    """
    draws = _Draws(solution, seed)
    low, high = SMALLEST_RANDOM, LARGEST_RANDOM
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if draws.passed(middle, TRIED, roughly=True) == TRIED else (low, middle)
    angle = low
    for attempt in count(1):
        needed = draws_needed(1 - (1 - confidence) / 2**attempt, share)
        passed = draws.passed(angle, needed)
        say(f"random rotations by up to {angle:.3g}: {passed} of {needed} draws without an error")
        if passed == needed:
            return RandomAngle(angle, confidence, share, needed)
        angle *= SHORTEN
        if angle < SMALLEST_RANDOM:
            break
    return RandomAngle(0.0, confidence, share, 0)


def error_curve(
    solution: Solution, angles: Sequence[float], draws: int = 4, seed: int = 1, examples: int = 5000
) -> list[tuple[float, float]]:
    """For each angle the mean share of fitted examples, of at most `examples`, that random rotations make wrong."""
    source = _Draws(solution, seed)

    def share(angle: float) -> float:
        turned = (source.rotation(angle, number) for number in source.fresh(draws))
        return sum(solution.made_wrong(weights, examples) for weights in turned) / draws

    return [(angle, share(angle)) for angle in angles]


class _Draws:
    """Random rotations, each identified by a number that seeds it."""

    def __init__(self, solution: Solution, seed: int) -> None:
        self.solution, self.seed, self.numbers = solution, seed, count()

    def fresh(self, draws: int) -> list[int]:
        """Numbers that were not used before."""
        return list(islice(self.numbers, draws))

    def rotation(self, angle: float, number: int) -> Weights:
        return self.solution.turned_at_random(angle, Draw.seeded(self.seed, number, self.solution.labels.device))

    def passed(self, angle: float, draws: int, roughly: bool = False) -> int:
        """Number of fresh draws before one makes an error, up to `draws`.

        The weakest examples are checked for all draws first, where nearly all errors are. `roughly` checks only those.
        """
        numbers = self.fresh(draws)
        for first, last in ((0, WEAK),) if roughly else ((0, WEAK), (WEAK, None)):
            for done, number in enumerate(numbers):
                if self.solution.has_error(self.rotation(angle, number), first, last):
                    return done
        return draws
