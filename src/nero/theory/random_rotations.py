"""How far all neurons can be turned at random without an error: Definition 6 as far as draws can tell.

No number of draws rules out the one rotation that is worst, so that this angle may be, and is, far above the alpha of
Definition 6, which `adversarial` bounds from above and `certified` from below. What draws do give is a bound on the
measure of the version space, which is all that Theorem 1 asks for: if with some confidence at least a share of the
rotations by up to an angle make no error, then P[V_S] is at least that share of the product of caps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import Any

from nero.theory.solutions import WEAK, Draw, Solution

SMALLEST, LARGEST = 1e-7, math.pi / 2
"""Angles among which the largest one is sought."""

TRIED = 16
"""Rotations that must make no error for an angle to be worth all the draws that confidence needs."""

BACK = 0.9
"""By how much an angle that failed is shortened for the next attempt."""


@dataclass(frozen=True)
class RandomAngle:
    """With `confidence`, at least `share` of the rotations by up to `angle` leave every fitted example right.

    draws: of rotations, all without an error, on which this rests. The angle is 0 where none was found.
    """

    angle: float
    confidence: float
    share: float
    draws: int

    def record(self) -> dict[str, Any]:
        return asdict(self)


def draws_needed(confidence: float, share: float) -> int:
    """Draws without an error that rule out, with this confidence, that less than the share has none.

    Were the share less than s, n draws would all succeed with a probability of less than s^n.
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
    """The largest angle found of which draws can say that.

    A few draws each lead a bisection to a candidate, which is then held to as many fresh draws as confidence needs, and
    shortened until it passes. Attempts share the confidence: the k-th may be wrong with probability
    (1 - confidence) / 2^k, all of them together with no more than 1 - confidence.
    """
    draws = _Draws(solution, seed)
    low, high = SMALLEST, LARGEST
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
        angle *= BACK
        if angle < SMALLEST:
            break
    return RandomAngle(0.0, confidence, share, 0)


def error_curve(
    solution: Solution, angles: Sequence[float], draws: int = 4, seed: int = 1, examples: int = 5000
) -> list[tuple[float, float]]:
    """For each angle the share of fitted examples that random rotations by up to it make wrong, on average.

    examples: how many of them to look at, at most
    """
    source = _Draws(solution, seed)

    def share(angle: float) -> float:
        turned = (source.rotation(angle, number) for number in source.fresh(draws))
        return sum(solution.made_wrong(weights, examples) for weights in turned) / draws

    return [(angle, share(angle)) for angle in angles]


class _Draws:
    """Rotations by their numbers, each of which stands for random numbers of its own."""

    def __init__(self, solution: Solution, seed: int) -> None:
        self.solution, self.seed, self.numbers = solution, seed, count()

    def fresh(self, draws: int) -> list[int]:
        """Numbers that were not used before."""
        return list(islice(self.numbers, draws))

    def rotation(self, angle: float, number: int) -> dict[str, Any]:
        return self.solution.turned_at_random(angle, Draw.seeded(self.seed, number, self.solution.labels.device))

    def passed(self, angle: float, draws: int, roughly: bool = False) -> int:
        """How many fresh draws make no error before one does, up to a number that suffices.

        The weakest examples are looked at for all of them first: what fails does so there, nearly always. `roughly`
        leaves it at that.
        """
        numbers = self.fresh(draws)
        for first, last in ((0, WEAK),) if roughly else ((0, WEAK), (WEAK, None)):
            for done, number in enumerate(numbers):
                if self.solution.has_error(self.rotation(angle, number), first, last):
                    return done
        return draws
