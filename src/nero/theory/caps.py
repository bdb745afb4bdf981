"""The measure of hyperspherical caps (Section 8), as natural logarithms: a network's caps underflow every float.

A cap of S^dim, the unit sphere of R^(dim + 1), is the set of points within an angle of one of its points. Angles are in
radians; math.pi counts as pi itself, so a cap of math.pi / 2 measures exactly one half.
"""

import math
from numbers import Integral

import numpy as np

# Terms of the series that are summed before an integral covers the rest (for small dimensions, the integral is
# inaccurate for the first terms), and terms of the complement's series (all that matter).
_TERMS, _COMPLEMENT_TERMS = 40, 128
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(64)
# ln sin^dim from which a cap is computed as one half minus the band up to the equator, at the cost of a digit or two.
_CLOSE = -2.0
# From here on Stirling's series for the beta function is exact to the last bit, and differences of lgamma are not.
_LARGE = 16.0


def log_cap(angle: float, dim: int) -> float:
    """ln of the share of S^dim that a cap covers.

    Up to the equator this is ln of 1/2 I_x(dim / 2, 1/2), x = sin^2 angle, I the regularised incomplete beta function;
    beyond, one minus the opposite cap. The relative error is 1e-13 up to the equator and a million dimensions, at a
    cost that does not depend on them; beyond the equator the small remainder is good to 1e-12, until it underflows.
    """
    _check(angle, dim)
    if dim == 0:  # two points
        return 0.0 if angle == math.pi else math.log(0.5)
    if angle == 0:
        return -math.inf
    if angle > math.pi / 2:
        return math.log1p(-math.exp(log_cap(math.pi - angle, dim)))
    a, sine, cosine = dim / 2, math.sin(angle), math.sin(math.pi / 2 - angle)
    x, y = sine * sine, cosine * cosine
    log_power = a * math.log1p(-y) if y < 0.5 else dim * math.log(sine)  # x^a; x itself may underflow
    if y <= 0.5 and log_power >= _CLOSE:
        return math.log(0.5) + math.log1p(-_band(a, y, cosine, log_power))
    return math.log(0.5) + log_power + math.log(cosine) - math.log(a) - _log_beta(a) + math.log(_series(a, x, y))


def log_cap_lower_bound(angle: float, dim: int) -> float:
    """ln of 1/2 sin^dim(angle / 2), a lower bound on a cap (Ball 1997, Lemma 2.3), used in the paper."""
    _check(angle, dim)
    if dim == 0:
        return math.log(0.5)
    half_chord = math.sin(angle / 2)  # 0 also for the smallest floats
    return math.log(0.5) + dim * math.log(half_chord) if half_chord > 0 else -math.inf


def _check(angle: float, dim: int) -> None:
    if not 0 <= angle <= math.pi:  # nor NaN
        raise ValueError(f"a cap's angle is from 0 to pi radians, not {angle}")
    if not isinstance(dim, Integral) or dim < 0:
        raise ValueError(f"a sphere's dimension is a non-negative integer, not {dim!r}")


def _series(a: float, x: float, y: float) -> float:
    """sum over n of (a + 1/2)_n / (a + 1)_n x^n, which is I_x(a, 1/2) a B(a, 1/2) / (x^a y^(1/2)), y = 1 - x.

    Near the equator in many dimensions it has millions of terms. But the remainder after N terms is the next term times
    the same series for a + N, and y times the series is the integral of e^-v / sqrt(1 + x/y (1 - e^(-v/a))) over v > 0,
    for which Gauss-Laguerre quadrature is exact enough where a and a y are not small. All terms are positive.
    """
    n = np.arange(_TERMS)
    terms = np.cumprod(x * (a + 0.5 + n) / (a + 1 + n))
    rest = _WEIGHTS @ (1 - x / y * np.expm1(-_NODES / (a + _TERMS))) ** -0.5
    return float(1 + terms[:-1].sum() + terms[-1] * rest / y)


def _band(a: float, y: float, cosine: float, log_power: float) -> float:
    """I_y(1/2, a): twice the share of the sphere between the cap and the equator."""
    n = np.arange(_COMPLEMENT_TERMS)
    terms = np.cumprod(y * (a + 0.5 + n) / (1.5 + n))
    return float(2 * cosine * math.exp(log_power - _log_beta(a)) * (1 + terms.sum()))


def _log_beta(a: float) -> float:
    """ln B(a, 1/2)."""
    half = math.lgamma(0.5)
    if a < _LARGE:
        return math.lgamma(a) + half - math.lgamma(a + 0.5)
    # ln Gamma(a + 1/2) / Gamma(a): the difference of two lgammas would lose digits.
    z = 1 / (a * a)
    odd_powers = -1 / 8 + z * (1 / 192 + z * (-1 / 640 + z * (17 / 14336 + z * (-31 / 18432 + z * 691 / 180224))))
    return half - (math.log(a) / 2 + odd_powers / a)
