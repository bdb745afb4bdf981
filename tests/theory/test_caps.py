"""Tests of hyperspherical caps against mpmath, closed forms, and random points on spheres."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nero.theory.caps import log_cap, log_cap_lower_bound

# Sphere sizes of real networks, and both sides of each switch of method: to Stirling's series (dimensions 31 to 33)
# and to the band up to the equator (2 deviations). `DEVIATIONS` are angles from the equator in units of 1 / sqrt(dim).
DIMS = (1, 2, 3, 4, 7, 16, 25, 31, 32, 33, 100, 574, 1150, 4606, 25086)
ANGLES = (1e-300, 1e-12, 1e-4, 0.01, 0.3, math.pi / 4, 0.8, 1.2, 1.5, 1.57)
DEVIATIONS = (1e-6, 0.5, 1.0, 1.9, 1.99, 2.0, 2.01, 2.1, 3.0, 6.0)

angles = st.floats(0, math.pi)
dims = st.one_of(st.integers(0, 40), st.integers(0, 10**6))


def mpmath_at(digits: int) -> Any:
    mpmath = pytest.importorskip("mpmath", reason="the reference is mpmath's")
    context = mpmath.mp.clone()  # does not change the precision of other tests
    context.dps = digits
    return context


@pytest.mark.parametrize("dim", DIMS)
def test_log_cap_matches_mpmath_up_to_equator(dim: int) -> None:
    mpmath = mpmath_at(40)
    for angle in (*ANGLES, *(math.pi / 2 - k / math.sqrt(dim) for k in DEVIATIONS)):
        if 0 < angle <= math.pi / 2:
            x = mpmath.sin(mpmath.mpf(angle)) ** 2
            exact = mpmath.log(mpmath.betainc(mpmath.mpf(dim) / 2, 0.5, 0, x, regularized=True) / 2)
            assert abs(log_cap(angle, dim) - exact) <= 1e-13 * abs(exact), (angle, dim)


@pytest.mark.parametrize("dim", DIMS)
def test_log_cap_matches_mpmath_beyond_equator(dim: int) -> None:
    mpmath = mpmath_at(40)
    for rest in (0.1, 0.5, 1.0, 1.4, *(math.pi / 2 - k / math.sqrt(dim) for k in DEVIATIONS)):
        if 0 < rest <= math.pi / 2:
            angle = math.pi - rest
            x = mpmath.sin(mpmath.mpf(math.pi - angle)) ** 2
            left = mpmath.betainc(mpmath.mpf(dim) / 2, 0.5, 0, x, regularized=True) / 2
            assert log_cap(angle, dim) == pytest.approx(float(mpmath.log1p(-left)), rel=1e-12, abs=1e-300), (rest, dim)


@pytest.mark.parametrize("angle", [1e-4, 0.5, 1.4, 1.5, 1.5678, 1.5688, 1.5698])
def test_log_cap_matches_integral_in_a_million_dimensions(angle: float) -> None:
    """mpmath's incomplete beta function fails here, so sin^(dim - 1) is integrated near its upper end instead."""
    mpmath, dim = mpmath_at(40), 10**6
    end = mpmath.mpf(angle)
    log_sine = mpmath.log(mpmath.sin(end))
    width = min(end, 100 / (dim * mpmath.cot(end) + mpmath.sqrt(dim)))
    integral = mpmath.quad(
        lambda t: mpmath.exp((dim - 1) * (mpmath.log(mpmath.sin(t)) - log_sine)), mpmath.linspace(end - width, end, 20)
    )
    exact = mpmath.log(integral) + (dim - 1) * log_sine - mpmath.log(mpmath.beta(mpmath.mpf(dim) / 2, 0.5))
    assert abs(log_cap(angle, dim) - exact) <= 1e-13 * abs(exact)


def test_log_cap_is_finite_where_cap_underflows() -> None:
    assert math.exp(log_cap(1e-4, 4606)) == 0
    # The leading term for small caps is sin^dim / (sqrt(2 pi dim) cos).
    assert log_cap(1e-4, 4606) == pytest.approx(4606 * math.log(1e-4) - math.log(2 * math.pi * 4606) / 2, rel=1e-6)


@pytest.mark.parametrize("angle", [1e-5, 0.01, 0.4, 1.0, 1.5, math.pi / 2, 1.6, 2.4, 3.1])
def test_log_cap_matches_closed_forms_in_low_dimensions(angle: float) -> None:
    shares = {
        0: 0.5,
        1: angle / math.pi,
        2: math.sin(angle / 2) ** 2,  # (1 - cos) / 2
        3: (angle - math.sin(angle) * math.cos(angle)) / math.pi,
    }
    for dim, share in shares.items():
        # The form for dimension 3 suffers from cancellation at small angles.
        rel = 1e-5 if dim == 3 and angle < 0.1 else 1e-14
        assert math.exp(log_cap(angle, dim)) == pytest.approx(share, rel=rel)


@pytest.mark.parametrize("dim", range(1, 7))
def test_log_cap_matches_share_of_random_points(dim: int) -> None:
    points = 200_000
    drawn = np.random.default_rng(dim).standard_normal((points, dim + 1))
    turned = np.arctan2(np.linalg.norm(drawn[:, 1:], axis=1), drawn[:, 0])
    for angle in (0.5, 1.0, 1.4, math.pi / 2, 1.8, 2.3):
        share = math.exp(log_cap(angle, dim))
        deviation = math.sqrt(share * (1 - share) / points)
        assert abs((turned <= angle).mean() - share) < 4 * deviation
        # Neighbouring dimensions give different shares, except at the equator, where every cap is one half.
        if angle != math.pi / 2:
            for other in (dim - 1, dim + 1):
                assert abs((turned <= angle).mean() - math.exp(log_cap(angle, other))) > 4 * deviation


def test_log_cap_at_extreme_angles() -> None:
    for dim in (1, 2, 3, 1000, 10**6):
        assert log_cap(0.0, dim) == log_cap_lower_bound(0.0, dim) == -math.inf
        assert log_cap(math.pi / 2, dim) == math.log(0.5)
        assert log_cap(math.pi, dim) == 0
        assert log_cap_lower_bound(math.pi, dim) == math.log(0.5)
    # S^0 consists of two points. A cap contains one of them, and both at pi.
    assert log_cap(0.0, 0) == log_cap(3.14, 0) == log_cap_lower_bound(0.0, 0) == math.log(0.5)
    assert log_cap(math.pi, 0) == 0


@given(angle=st.floats(0, math.pi, exclude_min=True), dim=dims)
def test_log_cap_is_finite_for_positive_angles(angle: float, dim: int) -> None:
    assert -math.inf < log_cap(angle, dim) <= 0


@given(first=angles, second=angles, dim=dims)
def test_log_cap_increases_with_angle(first: float, second: float, dim: int) -> None:
    narrow, wide = (log_cap(angle, dim) for angle in sorted((first, second)))
    assert narrow <= (wide if math.isinf(wide) else wide + 1e-12 * abs(wide))


@given(angle=st.floats(1e-6, math.pi - 1e-6), dim=dims)
def test_cap_and_opposite_cap_sum_to_one(angle: float, dim: int) -> None:
    assert math.exp(log_cap(angle, dim)) + math.exp(log_cap(math.pi - angle, dim)) == pytest.approx(1, abs=1e-12)


@given(angle=angles, dim=dims)
def test_ball_lower_bound_does_not_exceed_log_cap(angle: float, dim: int) -> None:
    exact = log_cap(angle, dim)
    # On S^0 the bound is exact.
    assert log_cap_lower_bound(angle, dim) <= (exact if dim == 0 or math.isinf(exact) else exact + 1e-14 * abs(exact))


def test_ball_lower_bound_uses_sine_of_half_angle() -> None:
    assert math.exp(log_cap_lower_bound(2.0, 3)) == pytest.approx(math.sin(1.0) ** 3 / 2)


def test_ball_bound_loses_one_bit_per_dim_for_small_caps_half_at_equator() -> None:
    for dim in (1000, 4606):
        loss = log_cap(1e-3, dim) - log_cap_lower_bound(1e-3, dim)
        assert loss / dim == pytest.approx(math.log(2), rel=0.01)
    for dim in (1, 2, 25, 4606):
        loss = log_cap(math.pi / 2, dim) - log_cap_lower_bound(math.pi / 2, dim)
        assert loss == pytest.approx(dim / 2 * math.log(2))


@pytest.mark.parametrize("measure", [log_cap, log_cap_lower_bound])
@pytest.mark.parametrize(
    ("angle", "dim", "complaint"),
    [
        (-0.1, 3, "from 0 to pi radians, not -0.1"),
        (3.2, 3, "from 0 to pi radians, not 3.2"),
        (math.nan, 3, "from 0 to pi radians, not nan"),
        (1.0, -1, "a non-negative integer, not -1"),
        (1.0, 2.5, "a non-negative integer, not 2.5"),
    ],
)
def test_invalid_cap_gives_one_line_error(measure: Any, angle: float, dim: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        measure(angle, dim)
    assert "\n" not in str(refusal.value)
