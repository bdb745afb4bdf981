"""Tests of Theorem 1 and the bound of Section 8: known values, simulations of small classes, and real networks."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nero.theory.caps import log_cap, log_cap_lower_bound
from nero.theory.pac_bayes import (
    Bound,
    Spheres,
    critical_angle,
    examples_needed,
    log_solutions_needed,
    log_version_space,
    realisable_bound,
)

SMALL = [Spheres(neurons=3, dim=2), Spheres(neurons=2, dim=1)]
# (neurons, fan-in) of a VGG-11 with two wide layers after its convolutions: 28 million weights.
VGG = [
    Spheres(neurons, fan_in - 2)
    for neurons, fan_in in (
        (64, 27),
        (128, 576),
        (256, 1152),
        (256, 2304),
        (512, 2304),
        (512, 4608),
        (512, 4608),
        (512, 4608),
        (4096, 512),
        (4096, 4096),
        (10, 4096),
    )
]

networks = st.lists(st.builds(Spheres, neurons=st.integers(1, 500), dim=st.integers(0, 5000)), min_size=1, max_size=4)
angles = st.floats(1e-6, math.pi)
counts = st.integers(2, 10**7)
shares = st.floats(1e-6, 0.999)


# ------------------------------------------------------------------------------------------------- known values


def test_bound_for_two_examples_and_measure_one_half() -> None:
    bound = realisable_bound(math.log(1 / 2), examples=2, delta=0.5)
    assert bound.nats == pytest.approx(math.log(2 * 8))
    assert bound.error == pytest.approx(15 / 16)


def test_bound_for_a_thousand_examples() -> None:
    # (ln 1e10 + ln 40000) / 999
    assert realisable_bound(math.log(1e-10), examples=1000, delta=0.05).nats == pytest.approx(0.033656142, rel=1e-7)


def test_version_space_is_product_of_caps() -> None:
    # A cap of angle pi/3 covers a quarter of a sphere and a third of a circle.
    one = math.log(1 / 4**3 / 3**2)
    assert log_version_space(SMALL, math.pi / 3) == pytest.approx(one)
    five_halves = log_version_space(SMALL, math.pi / 3, log_solutions=math.log(5), log_share=math.log(0.5))
    assert five_halves == pytest.approx(one + math.log(2.5))


def test_version_space_measure_is_at_most_one() -> None:
    assert log_version_space(SMALL, math.pi / 3, log_solutions=100.0) == 0
    assert log_version_space(SMALL, math.pi) == 0


def test_zero_angle_gives_vacuous_bound() -> None:
    bound = realisable_bound(log_version_space(SMALL, 0.0), examples=1000, delta=0.05)
    assert bound.error == 1
    assert bound.is_vacuous(10)
    assert bound.nats >= 1


def test_bounds_no_better_than_guessing_are_vacuous() -> None:
    assert Bound(math.log(10)).error == pytest.approx(0.9)
    assert Bound(math.log(10) + 1e-9).is_vacuous(10)
    assert not Bound(math.log(10) - 1e-9).is_vacuous(10)
    assert Bound(math.log(10)).is_vacuous(2)
    # The looser inequality, error <= nats, would already be vacuous here.
    assert not Bound(1.0).is_vacuous(3)


def test_small_errors_keep_full_precision() -> None:
    assert Bound(1e-20).error == 1e-20


def test_half_spheres_cost_one_bit_per_neuron() -> None:
    neurons = sum(layer.neurons for layer in VGG)
    bound = realisable_bound(log_version_space(VGG, math.pi / 2), examples=50_000, delta=0.01)
    assert bound.nats == pytest.approx((neurons * math.log(2) + math.log(1e7)) / 49_999, rel=1e-15)


@given(
    neurons=st.integers(1, 10**5),
    fan_in=st.integers(2, 5000),
    angle=st.one_of(angles, st.sampled_from([0.0, 5e-324])),
    examples=counts,
    delta=shares,
    part=st.floats(0, 1),
)
def test_paper_inequality_follows_from_ball_lower_bound(
    neurons: int, fan_in: int, angle: float, examples: int, delta: float, part: float
) -> None:
    one = log_version_space([Spheres(neurons, fan_in - 2)], angle, cap=log_cap_lower_bound)
    log_solutions = -part * one if math.isfinite(one) else 0.0  # at most as many as fit
    measure = log_version_space([Spheres(neurons, fan_in - 2)], angle, log_solutions, cap=log_cap_lower_bound)
    ours = realisable_bound(measure, examples, delta)
    half_chord = math.sin(angle / 2)
    turning = neurons * (fan_in - 2) * (-math.log(half_chord) if half_chord > 0 else math.inf) if fan_in > 2 else 0.0
    papers = (neurons * math.log(2) + turning + math.log(2 * examples / delta) - log_solutions) / (examples - 1)
    assert papers == pytest.approx(ours.nats, rel=1e-9, abs=1e-12 * abs(log_solutions) / (examples - 1))
    # Exact caps never give a worse bound.
    exact = log_version_space([Spheres(neurons, fan_in - 2)], angle, log_solutions)
    assert realisable_bound(exact, examples, delta).nats <= papers * (1 + 1e-9) + 1e-12 * log_solutions


# --------------------------------------------------------------------------------------------------- Theorem 1

Draw = tuple[float, float]  # ln P[V_S] and eps(V_S), both exact


def thresholds(examples: int, draws: int) -> Iterator[Draw]:
    """Classifiers x >= t of uniform x in 0..199, with a uniform prior over t = 0..200; the true t is 70."""
    size, truth = 200, 70
    generator = np.random.default_rng(0)
    inputs = np.arange(size)
    predictions = inputs[None, :] >= np.arange(size + 1)[:, None]
    wrong = predictions != (inputs >= truth)[None, :]
    errors = wrong.mean(axis=1)
    for _ in range(draws):
        fits = ~wrong[:, generator.integers(size, size=examples)].any(axis=1)
        yield math.log(fits.mean()), errors[fits].mean()


def two_classifiers(examples: int, draws: int) -> Iterator[Draw]:
    """A perfect classifier of tiny measure, and an imperfect one that fits a fifth of the training sets."""
    true_share, error = 1e-6, 1 - 0.2 ** (1 / examples)
    generator = np.random.default_rng(0)
    for _ in range(draws):
        found_out = (generator.random(examples) < error).any()
        yield (math.log(true_share), 0.0) if found_out else (0.0, (1 - true_share) * error)


@pytest.mark.parametrize("problem", [thresholds, two_classifiers])
@pytest.mark.parametrize("delta", [0.02, 0.1, 0.5])
def test_bound_holds_with_probability_one_minus_delta(
    problem: Callable[[int, int], Iterator[Draw]], delta: float
) -> None:
    examples, draws = 60, 2000
    violated, bounds, errors = 0, [], []
    for log_measure, error in problem(examples, draws):
        bound = realisable_bound(log_measure, examples, delta)
        violated += error > bound.error
        bounds.append(bound.error)
        errors.append(error)
    assert violated / draws <= delta + 3 * math.sqrt(delta * (1 - delta) / draws)
    assert np.mean(bounds) < 0.3  # the bound is not trivial
    assert np.mean(errors) > 0.001  # nor are the errors


def test_bound_without_confidence_term_is_violated() -> None:
    """Without the term ln(2n / delta), the check of the previous test fails."""
    violated = sum(error > Bound(-log_measure / 59).error for log_measure, error in two_classifiers(60, 2000))
    assert violated / 2000 > 0.1 + 3 * math.sqrt(0.1 * 0.9 / 2000)


# ---------------------------------------------------------------------------------- monotonicity of the bound


@given(spheres=networks, first=angles, second=angles, examples=counts, delta=shares)
def test_larger_angle_never_loosens_bound(
    spheres: list[Spheres], first: float, second: float, examples: int, delta: float
) -> None:
    narrow, wide = (
        realisable_bound(log_version_space(spheres, angle), examples, delta).nats for angle in sorted((first, second))
    )
    assert wide <= narrow * (1 + 1e-12)


@given(spheres=networks, angle=angles, first=counts, second=counts, delta=shares)
def test_more_examples_never_loosen_bound(
    spheres: list[Spheres], angle: float, first: int, second: int, delta: float
) -> None:
    measure = log_version_space(spheres, angle)
    few, many = (realisable_bound(measure, examples, delta).nats for examples in sorted((first, second)))
    assert many <= few


@given(spheres=networks, angle=angles, first=st.floats(0, 1e6), second=st.floats(0, 1e6), examples=counts)
def test_more_solutions_never_loosen_bound(
    spheres: list[Spheres], angle: float, first: float, second: float, examples: int
) -> None:
    one, other = sorted((first, second))
    few, many = (realisable_bound(log_version_space(spheres, angle, k), examples, 0.1).nats for k in (one, other))
    assert many <= few


@given(measure=st.floats(-1e6, 0), examples=counts, first=shares, second=shares)
def test_lower_confidence_never_loosens_bound(measure: float, examples: int, first: float, second: float) -> None:
    sure, unsure = (realisable_bound(measure, examples, delta).nats for delta in sorted((first, second)))
    assert unsure <= sure


@given(nats=st.floats(0, 1e9))
def test_error_bound_is_at_most_nats(nats: float) -> None:
    assert 0 <= Bound(nats).error <= min(nats, 1)


@pytest.mark.parametrize("angle", [1e-6, 0.01, 0.1, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("cap", [log_cap, log_cap_lower_bound])
def test_bound_is_finite_for_millions_of_weights(angle: float, cap: Callable[[float, int], float]) -> None:
    weights = sum(layer.neurons * layer.dim for layer in VGG)
    assert weights > 25e6
    measure = log_version_space(VGG, angle, cap=cap)
    assert -weights * math.log(2 / math.sin(1e-6)) * 1.01 < measure <= 0
    assert math.isfinite(realisable_bound(measure, 50_000, 0.05).nats)


# ---------------------------------------------------------------------- required angle, solutions and examples


@pytest.mark.parametrize(("spheres", "examples"), [(SMALL, 60), (VGG, 50_000)])
@pytest.mark.parametrize("error", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("cap", [log_cap, log_cap_lower_bound])
def test_bound_reaches_error_exactly_at_critical_angle(
    spheres: list[Spheres], examples: int, error: float, cap: Callable[[float, int], float]
) -> None:
    delta = 0.05
    angle = critical_angle(spheres, examples, delta, error, cap)
    assert angle is not None

    def bounded(at: float) -> float:
        return realisable_bound(log_version_space(spheres, at, cap=cap), examples, delta).error

    assert bounded(angle) <= error < bounded(math.nextafter(angle, 0))
    assert bounded(angle * (1 - 1e-6)) > error >= bounded(min(angle * (1 + 1e-6), math.pi))


def test_critical_angle_of_one_neuron_matches_closed_form() -> None:
    # A circle's cap is angle / pi, so ln 2 nats with 11 examples mean 10 ln 2 = ln(pi / angle) + ln(22 / delta).
    angle = critical_angle([Spheres(1, 1)], examples=11, delta=0.5, error=0.5)
    assert angle == pytest.approx(math.pi * 44 / 2**10)


def test_critical_angle_is_none_when_unattainable() -> None:
    assert critical_angle(SMALL, examples=5, delta=0.05, error=0.5) is None
    # Ball's bound on a cap is at most half a sphere, for which 50 examples and 20 neurons are not enough.
    assert critical_angle([Spheres(20, 5)], examples=50, delta=0.05, error=0.25) is not None
    assert critical_angle([Spheres(20, 5)], examples=50, delta=0.05, error=0.25, cap=log_cap_lower_bound) is None


def test_critical_angle_is_zero_for_zero_dimensional_spheres() -> None:
    assert critical_angle([Spheres(3, 0)], examples=1000, delta=0.05, error=0.5) == 0


@given(spheres=networks, angle=angles, examples=counts, error=shares, log_share=st.floats(-100, 0))
def test_log_solutions_needed_is_minimal(
    spheres: list[Spheres], angle: float, examples: int, error: float, log_share: float
) -> None:
    needed = log_solutions_needed(log_version_space(spheres, angle, log_share=log_share), examples, 0.05, error)

    def bounded(log_solutions: float) -> float:
        return realisable_bound(log_version_space(spheres, angle, log_solutions, log_share), examples, 0.05).error

    if math.isinf(needed):
        assert bounded(1e12) > error  # even with a measure of 1
    else:
        slack = 1e-9 * (1 + needed)
        assert bounded(needed + slack) <= error
        assert needed == 0 or bounded(max(0.0, needed - slack)) > error or needed < slack


@given(spheres=networks, angle=angles, error=shares, log_solutions=st.floats(0, 1e5), log_share=st.floats(-100, 0))
def test_examples_needed_is_minimal(
    spheres: list[Spheres], angle: float, error: float, log_solutions: float, log_share: float
) -> None:
    measure = log_version_space(spheres, angle, log_solutions, log_share)
    needed = examples_needed(measure, 0.05, error)
    assert isinstance(needed, int)
    assert realisable_bound(measure, needed, 0.05).error <= error
    assert needed == 2 or realisable_bound(measure, needed - 1, 0.05).error > error


def test_examples_needed_known_value_and_infinity() -> None:
    # For a measure of 1 and an error of 1/2, this is the first n with 2n / delta <= 2^(n - 1).
    assert examples_needed(log_version_space(SMALL, math.pi), delta=0.5, error=0.5) == 6
    assert examples_needed(log_version_space(SMALL, 0.0), delta=0.5, error=0.5) == math.inf


# --------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (lambda: realisable_bound(-1.0, 1, 0.1), "2 examples or more, not 1"),
        (lambda: realisable_bound(-1.0, 10, 0.0), "between 0 and 1, not 0.0"),
        (lambda: realisable_bound(-1.0, 10, 1.0), "between 0 and 1, not 1.0"),
        (lambda: realisable_bound(-1.0, 10, math.nan), "between 0 and 1, not nan"),
        (lambda: realisable_bound(0.1, 10, 0.1), "at most 0, not 0.1"),
        (lambda: realisable_bound(math.nan, 10, 0.1), "at most 0, not nan"),
        (lambda: log_version_space([], 1.0), "one layer or more"),
        (lambda: log_version_space(SMALL, 4.0), "from 0 to pi radians, not 4.0"),
        (lambda: log_version_space(SMALL, 1.0, log_solutions=-1.0), "1 solution or more is from 0, and finite, not -1"),
        (lambda: log_version_space(SMALL, 1.0, log_share=0.5), "share is at most 0, not 0.5"),
        (lambda: critical_angle(SMALL, 10, 0.1, 0.0), "between 0 and 1, not 0.0"),
        (lambda: critical_angle([], 10, 0.1, 0.5), "one layer or more"),
        (lambda: critical_angle(SMALL, 1, 0.1, 0.5), "2 examples or more, not 1"),
        (lambda: log_solutions_needed(-1.0, 10, 0.1, 1.0), "between 0 and 1, not 1.0"),
        (lambda: log_solutions_needed(-1.0, 1, 0.1, 0.5), "2 examples or more, not 1"),
        (lambda: examples_needed(-1.0, 2.0, 0.5), "between 0 and 1, not 2.0"),
        (lambda: examples_needed(0.1, 0.1, 0.5), "at most 0, not 0.1"),
        (lambda: Spheres(3, -1), "3 on S\\^-1"),
        (lambda: Spheres(0, 3), "not 0 on S\\^3"),
        (lambda: Bound(1.0).is_vacuous(1), "2 classes or more, not 1"),
    ],
)
def test_invalid_arguments_give_one_line_error(asked: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        asked()
    assert "\n" not in str(refusal.value)
