"""Theorem 1 (realisable PAC-Bayes) and the bound that Section 8 derives from it, for any layers.

All measures are natural logarithms, of the order of minus millions for a network.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nero.theory.caps import log_cap

Cap = Callable[[float, int], float]


@dataclass(frozen=True)
class Spheres:
    """A layer: one sphere S^dim for each neuron; S^(d - 2) for balanced neurons of fan-in d."""

    neurons: int
    dim: int

    def __post_init__(self) -> None:
        if self.neurons < 1 or self.dim < 0:
            raise ValueError(f"a layer has 1 neuron or more on S^0 or larger, not {self.neurons} on S^{self.dim}")


@dataclass(frozen=True)
class Bound:
    """A bound on eps(V_S), the population error averaged over all weights that fit the training data (Theorem 1).

    nats is the right side of Equation 5, an upper bound on ln 1/(1 - eps(V_S)).
    """

    nats: float

    @property
    def error(self) -> float:
        """Upper bound on eps(V_S): 1 - e^-nats, by Equation 5's second inequality, the tighter one."""
        return -math.expm1(-self.nats)

    def is_vacuous(self, classes: int) -> bool:
        """Whether it allows the error of guessing, 1 - 1 / classes."""
        if classes < 2:
            raise ValueError(f"guessing is among 2 classes or more, not {classes}")
        return self.nats >= math.log(classes)


def log_version_space(
    spheres: Sequence[Spheres], angle: float, log_solutions: float = 0.0, log_share: float = 0.0, cap: Cap = log_cap
) -> float:
    """ln of Equation 6's lower bound on P[V_S], for layers of different fan-in: K times the product of the caps of all
    neurons, times the share of the caps that fits the data; at most ln 1.

    log_solutions is ln K, the number of solutions whose caps do not intersect. log_share is 0 for alpha-robust
    solutions, and less where random rotations show that a part of the caps fits.
    """
    if not 0 <= log_solutions < math.inf:
        raise ValueError(f"ln K of 1 solution or more is from 0, and finite, not {log_solutions}")
    if not log_share <= 0:
        raise ValueError(f"ln of a share is at most 0, not {log_share}")
    if not spheres:
        raise ValueError("a network has one layer or more")
    measures = {dim: cap(angle, dim) for dim in {layer.dim for layer in spheres}}
    log_caps = math.fsum(layer.neurons * measures[layer.dim] for layer in spheres)
    return min(0.0, log_solutions + log_share + log_caps)


def realisable_bound(log_measure: float, examples: int, delta: float) -> Bound:
    """Equation 5: (ln 1/P[V_S] + ln 2n/delta) / (n - 1), for a share 1 - delta of the training sets of n examples.

    log_measure is ln P[V_S], or a lower bound on it.
    """
    if not log_measure <= 0:
        raise ValueError(f"ln of a measure is at most 0, not {log_measure}")
    return Bound((-log_measure + _log_confidence(examples, delta)) / (examples - 1))


def critical_angle(
    spheres: Sequence[Spheres], examples: int, delta: float, error: float, cap: Cap = log_cap
) -> float | None:
    """The smallest alpha at which one alpha-robust solution bounds the error by `error`; None if not even pi does."""
    _check_error(error)

    def suffices(angle: float) -> bool:
        return realisable_bound(log_version_space(spheres, angle, cap=cap), examples, delta).error <= error

    if not suffices(math.pi):
        return None
    if suffices(0.0):
        return 0.0
    too_small, enough = 0.0, math.pi
    while too_small < (middle := (too_small + enough) / 2) < enough:  # to neighbouring floats
        too_small, enough = (too_small, middle) if suffices(middle) else (middle, enough)
    return enough


def log_solutions_needed(log_measure: float, examples: int, delta: float, error: float) -> float:
    """The smallest ln K that bounds the error by `error`: 0 if one solution suffices, infinity if a measure of 1 would
    not.

    log_measure is ln P[V_S] of one solution.
    """
    _check_error(error)
    needed = _log_confidence(examples, delta) + (examples - 1) * math.log1p(-error)
    return math.inf if needed > 0 else max(0.0, needed - log_measure)


def examples_needed(log_measure: float, delta: float, error: float) -> int | float:
    """The smallest n that bounds the error by `error`, all else being equal; infinity if the measure is zero."""
    _check_error(error)
    if log_measure == -math.inf:
        return math.inf

    def suffice(examples: int) -> bool:
        return realisable_bound(log_measure, examples, delta).error <= error

    # The bound decreases with n: ln 2n/delta grows more slowly than n - 1.
    enough = 2
    while not suffice(enough):
        enough *= 2
    return bisect.bisect_left(range(enough), True, lo=2, key=suffice)


def _log_confidence(examples: int, delta: float) -> float:
    """ln 2n/delta."""
    if examples < 2:
        raise ValueError(f"the bound needs 2 examples or more, not {examples}")
    if not 0 < delta < 1:
        raise ValueError(f"delta is a share of training sets between 0 and 1, not {delta}")
    return math.log(2 * examples / delta)


def _check_error(error: float) -> None:
    if not 0 < error < 1:
        raise ValueError(f"an error to be bounded is between 0 and 1, not {error}")
