"""Quantiles of Student's t distribution, for any real number of degrees of freedom."""

import math
import sys

EPSILON = sys.float_info.epsilon
STEPS = 1000
"""More than the continued fraction ever takes for the degrees of freedom of a few runs."""


def quantile(probability: float, df: float) -> float:
    """The t that a fraction `probability` of the distribution lies below; `probability` is in (1/2, 1), `df` positive.

    Bisection on the upper tail, until no float lies between the bounds.
    """
    if not 0.5 < probability < 1 or not df > 0:
        raise ValueError(f"no quantile of Student's t for a probability of {probability} and {df} degrees of freedom")
    tail = 1 - probability
    low, high = 0.0, 1.0
    while upper_tail(high, df) > tail:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if upper_tail(middle, df) > tail else (low, middle)
    return high


def upper_tail(t: float, df: float) -> float:
    """P(T > t) for t of zero or more."""
    square = t * t
    return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square))


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function I_x(a, b); `rest` is 1 - x, given so that neither loses digits."""
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on one side of this point only
        return 1 - incomplete_beta(b, a, rest, x)
    if x == 0:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log(rest) - log_beta) / (a * _continued_fraction(a, b, x))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    value = numerator = 1.0
    denominator = 0.0
    for step in range(1, STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + term * denominator)
        numerator = 1 + term / numerator
        change = numerator * denominator
        value *= change
        if abs(change - 1) < EPSILON:
            return value
    raise ArithmeticError(f"the incomplete beta function does not converge for a = {a}, b = {b}, x = {x}")
