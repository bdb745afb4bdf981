"""The measure of hyperspherical caps (Section 8), as natural logarithms: a network's caps underflow every float.

A cap of S^dim, the unit sphere of R^(dim + 1), is all that lies within an angle of one of its points. Angles are in
radians, and math.pi stands for pi itself: a cap of math.pi / 2 is exactly one half.
"""

import math
from numbers import Integral

import numpy as np

# Terms of the series that are summed before an integral takes the rest (any number would do for large dimensions: for
# small ones the first terms are what the integral does badly), and of the complement's series (all that matter).
_TERMS, _COMPLEMENT_TERMS = 40, 128
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(64)
# ln sin^dim from which a cap is computed as one half less the band up to the equator, at the price of a digit or two.
_CLOSE = -2.0
# From here on Stirling's series of the beta function is exact to the last bit, and lgamma's differences are not.
_LARGE = 16.0


def log_cap(angle: float, dim: int) -> float:
    """ln of the share of S^dim that a cap takes, exactly: ln of 1/2 I_x(dim / 2, 1/2) with x = sin^2 angle up to the
    equator, I the regularised incomplete beta function; beyond, of what the opposite cap leaves.

    Good to 1e-13 of the logarithm up to the equator and a million dimensions, at a cost that does not depend on them.
    Beyond the equator the small remainder is good to 1e-12, until it underflows and the cap is the whole sphere.
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
    """ln of 1/2 sin^dim(angle / 2), which a cap is never below (Ball 1997, Lemma 2.3): what the paper uses."""
    _check(angle, dim)
    if dim == 0:
        return math.log(0.5)
    half_chord = math.sin(angle / 2)  # 0 also for the least of floats
    return math.log(0.5) + dim * math.log(half_chord) if half_chord > 0 else -math.inf


def _check(angle: float, dim: int) -> None:
    if not 0 <= angle <= math.pi:  # nor NaN
        raise ValueError(f"a cap's angle is from 0 to pi radians, not {angle}")
    if not isinstance(dim, Integral) or dim < 0:
        raise ValueError(f"a sphere's dimension is a whole number from 0, not {dim!r}")


def _series(a: float, x: float, y: float) -> float:
    """sum over n of (a + 1/2)_n / (a + 1)_n x^n, which is I_x(a, 1/2) a B(a, 1/2) / (x^a y^(1/2)), y = 1 - x.

    Near the equator of many dimensions that takes millions of terms. But what follows N terms is the next one times the
    same series for a + N, and y times the series is the integral of e^-v / sqrt(1 + x/y (1 - e^(-v/a))) over v from 0,
    which a few nodes of Gauss-Laguerre quadrature do exactly enough where a and a y are not small. All is positive.
    """
    n = np.arange(_TERMS)
    terms = np.cumprod(x * (a + 0.5 + n) / (a + 1 + n))
    rest = _WEIGHTS @ (1 - x / y * np.expm1(-_NODES / (a + _TERMS))) ** -0.5
    return float(1 + terms[:-1].sum() + terms[-1] * rest / y)


def _band(a: float, y: float, cosine: float, log_power: float) -> float:
    """I_y(1/2, a): twice the share of the sphere between the cap and the equator, by a series that is soon over."""
    n = np.arange(_COMPLEMENT_TERMS)
    terms = np.cumprod(y * (a + 0.5 + n) / (1.5 + n))
    return float(2 * cosine * math.exp(log_power - _log_beta(a)) * (1 + terms.sum()))


def _log_beta(a: float) -> float:
    """ln B(a, 1/2)."""
    half = math.lgamma(0.5)
    if a < _LARGE:
        return math.lgamma(a) + half - math.lgamma(a + 0.5)
    # ln Gamma(a + 1/2) / Gamma(a), of which both are so large that their difference would lose digits.
    z = 1 / (a * a)
    odd_powers = -1 / 8 + z * (1 / 192 + z * (-1 / 640 + z * (17 / 14336 + z * (-31 / 18432 + z * 691 / 180224))))
    return half - (math.log(a) / 2 + odd_powers / a)
