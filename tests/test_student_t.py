"""Quantiles of Student's t against closed forms, against integrals of its density, and against scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from nero.report.student_t import incomplete_beta, quantile, upper_tail

PROPERTY = settings(deadline=None, derandomize=True)
PROBABILITY = st.floats(0.501, 0.9999)
DF = st.floats(0.5, 200)


@PROPERTY
@given(PROBABILITY)
def test_one_degree_of_freedom_is_cauchys(probability: float) -> None:
    assert quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-10)


@PROPERTY
@given(PROBABILITY)
def test_two_degrees_of_freedom_have_a_closed_form(probability: float) -> None:
    spread = 4 * probability * (1 - probability)
    assert quantile(probability, 2) == pytest.approx(2 * (probability - 0.5) * math.sqrt(2 / spread), rel=1e-10)


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (100, 1.9840)]
)
def test_quantiles_are_those_of_printed_tables(df: float, t: float) -> None:
    assert quantile(0.975, df) == pytest.approx(t, abs=5e-5)


def test_many_degrees_of_freedom_are_nearly_normal() -> None:
    assert quantile(0.975, 1e7) == pytest.approx(1.959964, abs=1e-6)


@PROPERTY
@given(st.floats(0.1, 20), st.floats(1, 50))
def test_the_tail_is_the_integral_of_the_density(t: float, df: float) -> None:
    # With t = sqrt(df) tan(angle) the density is that of cos(angle) ** (df - 1), over angles below a right one.
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def integral(low: float, high: float) -> float:
        angles = (high - low) / 2 * nodes + (high + low) / 2
        return float((high - low) / 2 * weights @ np.cos(angles) ** (df - 1))

    edge = math.atan(t / math.sqrt(df))
    expected = integral(edge, math.pi / 2) / (2 * (integral(0, edge) + integral(edge, math.pi / 2)))
    assert upper_tail(t, df) == pytest.approx(expected, rel=1e-4, abs=1e-12)


@PROPERTY
@given(PROBABILITY, DF)
def test_the_quantile_leaves_the_rest_above_it(probability: float, df: float) -> None:
    assert upper_tail(quantile(probability, df), df) == pytest.approx(1 - probability, rel=1e-9)


@PROPERTY
@given(PROBABILITY, DF)
def test_quantiles_are_scipys(probability: float, df: float) -> None:
    assert quantile(probability, df) == pytest.approx(stats.t.ppf(probability, df), rel=1e-9)


@PROPERTY
@given(st.floats(0.1, 50), st.floats(0.1, 50), st.floats(0, 1))
def test_the_incomplete_beta_function_is_scipys(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x, 1 - x) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("probability", "df"), [(0.5, 2), (1.0, 2), (0.3, 2), (0.975, 0), (0.975, math.nan)])
def test_what_has_no_quantile_here_is_refused(probability: float, df: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(probability, df)
