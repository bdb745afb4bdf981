"""Theorem 1 (realisable PAC-Bayes) and the bound that Section 8 draws from it, for networks of any layers.

Measures are natural logarithms throughout: that of a network's solutions is e to the minus millions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nero.theory.caps import log_cap

Cap = Callable[[float, int], float]


@dataclass(frozen=True)
class Spheres:
    """A layer: as many equal spheres S^dim as it has neurons. A balanced neuron of fan-in d turns on S^(d - 2)."""

    neurons: int
    dim: int

    def __post_init__(self) -> None:
        if self.neurons < 1 or self.dim < 0:
            raise ValueError(
                f"a layer is 1 neuron or more on spheres S^0 or larger, not {self.neurons} on S^{self.dim}"
            )


@dataclass(frozen=True)
class Bound:
    """What Theorem 1 says of eps(V_S), the population error averaged over all weights that fit the training data.

    nats is the right side of Equation 5, which ln 1/(1 - eps(V_S)) is at most.
    """

    nats: float

    @property
    def error(self) -> float:
        """The most that eps(V_S) can be: 1 - e^-nats, by Equation 5's second inequality, the tighter one."""
        return -math.expm1(-self.nats)

    @property
    def says_nothing(self) -> bool:
        """As the paper states it (eps(V_S) <= nats), the bound allows every error."""
        return self.nats >= 1

    def is_vacuous(self, classes: int) -> bool:
        """It allows the error of guessing among so many classes, 1 - 1 / classes."""
        if classes < 2:
            raise ValueError(f"guessing is among 2 classes or more, not {classes}")
        return self.nats >= math.log(classes)


def log_version_space(
    spheres: Sequence[Spheres], angle: float, log_solutions: float = 0.0, log_share: float = 0.0, cap: Cap = log_cap
) -> float:
    """ln of the lower bound on P[V_S] of Equation 6, for layers of different fan-in:
    K times the product over all neurons of P[cap_dim(angle)], times the share of those caps that fits the data.

    log_solutions is ln K, of solutions whose caps do not intersect. log_share is 0 for alpha-robust solutions, and less
    where only random rotations vouch for a part of the caps. A measure is never more than 1, whatever K is claimed.
    """
    if not 0 <= log_solutions < math.inf:
        raise ValueError(f"ln K of 1 solution or more is from 0, and finite, not {log_solutions}")
    if not log_share <= 0:
        raise ValueError(f"ln of a share is at most 0, not {log_share}")
    return min(0.0, log_solutions + log_share + _log_caps(spheres, angle, cap))


def realisable_bound(log_measure: float, examples: int, delta: float) -> Bound:
    """Equation 5: (ln 1/P[V_S] + ln 2n/delta) / (n - 1), for a share 1 - delta of the training sets of n examples.

    log_measure is ln P[V_S], or of what it is at least.
    """
    if not log_measure <= 0:
        raise ValueError(f"ln of a measure is at most 0, not {log_measure}")
    return Bound((-log_measure + _log_confidence(examples, delta)) / (examples - 1))


def paper_bound(
    neurons: int, fan_in: int, angle: float, examples: int, delta: float, log_solutions: float = 0.0
) -> Bound:
    """Section 8's last inequality, to the letter: with m neurons of fan-in d and alpha the angle,
    (m ln 2 + m (d - 2) ln 1/sin(alpha/2) + ln 2n/delta - ln K) / (n - 1).

    So it does not stop at a measure of 1 where more solutions are claimed than there is room for.
    """
    m, dim = neurons, Spheres(neurons, fan_in - 2).dim
    if not 0 <= angle <= math.pi:
        raise ValueError(f"a cap's angle is from 0 to pi radians, not {angle}")
    half_chord = math.sin(angle / 2)  # 0 also for the least of floats
    per_dimension = -math.log(half_chord) if half_chord > 0 else math.inf
    turning = m * dim * per_dimension if dim else 0.0
    return Bound((m * math.log(2) + turning + _log_confidence(examples, delta) - log_solutions) / (examples - 1))


def critical_angle(
    spheres: Sequence[Spheres], examples: int, delta: float, error: float, cap: Cap = log_cap
) -> float | None:
    """The least alpha for which one alpha-robust solution bounds the error by `error`; None where not even pi does."""
    _check_error(error)

    def suffices(angle: float) -> bool:
        return realisable_bound(log_version_space(spheres, angle, cap=cap), examples, delta).error <= error

    if not suffices(math.pi):
        return None
    if suffices(0.0):
        return 0.0
    too_small, enough = 0.0, math.pi
    while too_small < (middle := (too_small + enough) / 2) < enough:  # to neighbouring floats
        if suffices(middle):
            enough = middle
        else:
            too_small = middle
    return enough


def log_solutions_needed(
    spheres: Sequence[Spheres],
    angle: float,
    examples: int,
    delta: float,
    error: float,
    log_share: float = 0.0,
    cap: Cap = log_cap,
) -> float:
    """The least ln K for which the error is bounded by `error`: 0 where one solution is enough, infinity where not even
    a measure of 1 would be."""
    _check_error(error)
    needed_measure = _log_confidence(examples, delta) + (examples - 1) * math.log1p(-error)
    if needed_measure > 0:
        return math.inf
    return max(0.0, needed_measure - log_version_space(spheres, angle, 0.0, log_share, cap))


def examples_needed(
    spheres: Sequence[Spheres],
    angle: float,
    delta: float,
    error: float,
    log_solutions: float = 0.0,
    log_share: float = 0.0,
    cap: Cap = log_cap,
) -> int | float:
    """The least n for which the error is bounded by `error`, were all else the same with more examples; infinity where
    the caps measure nothing."""
    _check_error(error)
    log_measure = log_version_space(spheres, angle, log_solutions, log_share, cap)
    if log_measure == -math.inf:
        return math.inf

    def suffice(examples: int) -> bool:
        return realisable_bound(log_measure, examples, delta).error <= error

    # The bound falls with n: each example more takes away more than its part in ln 2n/delta adds.
    enough = 2
    while not suffice(enough):
        enough *= 2
    too_few = enough // 2 if enough > 2 else 1
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if suffice(middle):
            enough = middle
        else:
            too_few = middle
    return enough


def _log_caps(spheres: Sequence[Spheres], angle: float, cap: Cap) -> float:
    """ln of the measure of one solution's caps, a product over all neurons."""
    if not spheres:
        raise ValueError("a network has one layer or more")
    measures = {dim: cap(angle, dim) for dim in {layer.dim for layer in spheres}}
    return math.fsum(layer.neurons * measures[layer.dim] for layer in spheres)


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
