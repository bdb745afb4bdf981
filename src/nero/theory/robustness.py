"""The alpha of Definition 6, the largest angle by which no rotation of the neurons makes an error, in three ways.

    adversarial_angle  an upper bound: a rotation, found by gradient ascent, that makes an error
    certified_angle    a lower bound, for perceptrons: no rotation by that angle can make one
    random_angle       far above alpha: with some confidence, a share of the random rotations by that angle makes none

Random draws cannot rule out the worst rotation. But they bound the measure of the version space, all that Theorem 1
needs: if a share of the rotations by up to an angle makes no error, P[V_S] is at least that share of the caps' product.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import torch
from torch import Tensor

from nero.theory.solutions import WEAK, Solution, TurningLayer, Weights, clip_to_cap, margin, tangent, turn

ADVERSARIAL_PRECISION = 0.01  # relative
SMALLEST_ADVERSARIAL = 1e-12  # float32 cannot tell smaller angles from zero
SMALLEST_CERTIFIED = 1e-30
SMALLEST_RANDOM, LARGEST_RANDOM = 1e-7, math.pi / 2
TRIED = 16  # random rotations without an error that make an angle a candidate
SHORTEN = 0.9  # factor of a random angle that failed


@dataclass(frozen=True)
class AdversarialAngle:
    """A rotation of all neurons by up to `angle` that makes a fitted example wrong.

    Attributes:
        first_order: the smallest angle at which a linear model of a margin reaches zero
        example: its index among the training examples
        attacked: number of examples that were tried, with `steps` steps for each angle
        witness: the turned weights
    """

    angle: float
    first_order: float
    example: int
    attacked: int
    steps: int
    witness: Weights


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
    return AdversarialAngle(angle, promising[0][0], index, len(promising[:attacked]), steps, witness)


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
        weights = solution.turned(partial(_descend, weights, gradients, by, angle))
    value, _ = _margin_and_gradients(solution, example, weights)
    return weights if value < 0 else None


def _descend(
    weights: Weights, gradients: Weights, by: float, angle: float, layer: TurningLayer, centres: Tensor
) -> Tensor:
    """A layer's rows turned against their gradients, but no further than the angle from the solution's rows."""
    rows = turn(weights[layer.name].flatten(1), -gradients[layer.name], by)
    return clip_to_cap(rows, centres, angle, layer.centred)


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
        if (weights := attack(solution, example, middle, steps)) is None:
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

    Attributes:
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
    centred = {layer.name: layer.centred for layer in solution.layers}
    if set(perceptron.weights) != set(centred):
        raise ValueError(f"the perceptron's layers are {list(perceptron.weights)}, the network's {list(centred)}")
    matrices = [solution.weights[name].double() for name in perceptron.weights]
    parts = []  # for each batch, the norms of its inputs to each layer, and its logits
    for inputs in solution.inputs.split(solution.batch_size):
        h, sizes = solution.prepare(inputs).flatten(1).double(), []
        for number, (name, matrix, bias) in enumerate(
            zip(perceptron.weights, matrices, perceptron.biases, strict=True)
        ):
            h = perceptron.activation(h) if number else h
            sizes.append((h - h.mean(1, keepdim=True) if centred[name] else h).norm(dim=1))
            h = h @ matrix.T + (0 if bias is None else bias.double())
        theirs = solution.logits({}, inputs).double()
        if not torch.allclose(h, theirs, rtol=1e-2, atol=1e-2 * (float(theirs.abs().max()) + 1e-30)):
            raise ValueError("these layers give other logits than the network")
        parts.append((*sizes, h))
    *sizes, logits = map(torch.cat, zip(*parts, strict=True))

    hidden = [
        (size, float(torch.linalg.matrix_norm(matrix, 2)), float(matrix.norm()))
        for size, matrix in zip(sizes[:-1], matrices[:-1], strict=True)
    ]
    # From the label's logit and neuron to those of each other class.
    labels = solution.labels[:, None]
    gaps = (logits.gather(1, labels) - logits).scatter(1, labels, torch.inf)
    norms = matrices[-1].norm(dim=1)
    between = torch.cdist(matrices[-1], matrices[-1])[solution.labels]
    both = (norms[:, None] + norms)[solution.labels]

    def holds(angle: float) -> bool:
        r, off = 2 * math.sin(angle / 2), torch.zeros_like(sizes[0])
        for size, spectral, frobenius in hidden:
            off = perceptron.slope * (spectral * off + r * frobenius * (size + off))
        return bool((gaps > between * off[:, None] + r * both * (sizes[-1] + off)[:, None]).all())

    return _largest(holds, SMALLEST_CERTIFIED, math.pi, 1.001) if holds(SMALLEST_CERTIFIED) else 0.0


def _largest(holds: Callable[[float], bool], low: float, high: float, ratio: float) -> float:
    """The largest angle that holds, from below and up to the ratio; bisects the logarithm."""
    while high / low > ratio:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class RandomAngle:
    """With `confidence`, at least `share` of the rotations by up to `angle` leave every fitted example right.

    Attributes:
        draws: number of rotations, all without an error, behind this. The angle is 0 where none was found.
    """

    angle: float
    confidence: float
    share: float
    draws: int


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
    numbers = count()

    def passed(angle: float, draws: int, roughly: bool = False) -> int:
        """Number of fresh draws before one makes an error, up to `draws`.

        The weakest examples are checked for all draws first, where nearly all errors are. `roughly` checks only those.
        """
        fresh = list(islice(numbers, draws))
        for first, last in ((0, WEAK),) if roughly else ((0, WEAK), (WEAK, None)):
            for done, number in enumerate(fresh):
                if solution.has_error(solution.turned_at_random(angle, seed, number), first, last):
                    return done
        return draws

    angle = _largest(lambda angle: passed(angle, TRIED, roughly=True) == TRIED, SMALLEST_RANDOM, LARGEST_RANDOM, 1.05)
    for attempt in count(1):
        needed = draws_needed(1 - (1 - confidence) / 2**attempt, share)
        without_error = passed(angle, needed)
        say(f"random rotations by up to {angle:.3g}: {without_error} of {needed} draws without an error")
        if without_error == needed:
            return RandomAngle(angle, confidence, share, needed)
        angle *= SHORTEN
        if angle < SMALLEST_RANDOM:
            break
    return RandomAngle(0.0, confidence, share, 0)


def error_curve(
    solution: Solution, angles: Sequence[float], draws: int = 4, seed: int = 1, examples: int = 5000
) -> list[tuple[float, float]]:
    """For each angle the mean share of fitted examples, of at most `examples`, that random rotations make wrong."""
    numbers = count()

    def share(angle: float) -> float:
        turned = (solution.turned_at_random(angle, seed, number) for number in islice(numbers, draws))
        return sum(solution.made_wrong(weights, examples) for weights in turned) / draws

    return [(angle, share(angle)) for angle in angles]
