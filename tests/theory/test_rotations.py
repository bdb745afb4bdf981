"""Tests of rotating neurons on their spheres."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nero.optim import project_
from nero.theory.caps import log_cap
from nero.theory.solutions import clip_to_cap, draw_angles, sphere_dim, tangent, turn, turn_at_random
from nero.theory.steps import turning_angles


def rows(seed: int, neurons: int = 5, fan_in: int = 7, balanced: bool = False) -> torch.Tensor:
    drawn = torch.randn(neurons, fan_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return project_(drawn) if balanced else drawn


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("angle", [1e-9, 0.01, 1.0, math.pi / 2, 3.0])
def test_turn_rotates_by_angle_and_keeps_norm_and_mean(angle: float, centred: bool) -> None:
    old = rows(0, balanced=centred)
    new = turn(old, tangent(old, rows(1), centred), angle)
    torch.testing.assert_close(
        turning_angles(old, new), torch.full((5,), angle, dtype=torch.float64), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(new.norm(dim=1), old.norm(dim=1))
    if centred:
        torch.testing.assert_close(new.sum(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-14)


def test_turn_in_two_dimensions_is_plane_rotation() -> None:
    old = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    cosine, sine = math.cos(0.3), math.sin(0.3)
    rotated = old @ torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64)
    ahead = torch.tensor([[-4.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(turn(old, ahead, 0.3), rotated)
    torch.testing.assert_close(turn(old, 100 * ahead, torch.tensor([0.3], dtype=torch.float64)), rotated)


def test_neurons_that_cannot_turn_are_unchanged() -> None:
    zero, pair = torch.zeros(1, 3), torch.tensor([[math.sqrt(0.5), -math.sqrt(0.5)]])
    angles, directions = np.random.default_rng(0), torch.Generator().manual_seed(0)
    assert torch.equal(turn(zero, torch.ones(1, 3), 1.0), zero)
    assert torch.equal(turn(pair, torch.zeros(1, 2), 1.0), pair)
    assert sphere_dim(2, centred=True) == sphere_dim(1, centred=False) == sphere_dim(1, centred=True) == 0
    assert torch.equal(turn_at_random(pair, 1.0, True, angles, directions), pair)
    assert torch.equal(turn_at_random(pair, 0.0, False, angles, directions), pair)


def test_clip_to_cap_projects_to_nearest_point() -> None:
    centres = rows(0)
    direction = tangent(centres, rows(1), False)
    inside, outside = turn(centres, direction, 0.2), turn(centres, direction, 0.7)
    assert torch.equal(clip_to_cap(inside, centres, 0.3, False), inside)
    torch.testing.assert_close(clip_to_cap(outside, centres, 0.3, False), turn(centres, direction, 0.3))
    backwards = turn(centres, direction, 3.0)
    torch.testing.assert_close(clip_to_cap(backwards, centres, 0.3, False), turn(centres, direction, 0.3))
    assert torch.equal(clip_to_cap(torch.zeros(1, 3), torch.zeros(1, 3), 0.3, False), torch.zeros(1, 3))


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("angle", [1e-5, 1e-3, 0.1])
def test_clip_to_cap_is_accurate_in_float32(angle: float, balanced: bool) -> None:
    """The tolerance is that of float32, which rounds each entry by about 1e-8 of the row's norm."""
    centres = rows(0, neurons=50, fan_in=300, balanced=balanced).float()
    direction = tangent(centres, rows(1, neurons=50, fan_in=300).float(), balanced)
    for by in (0.98, 1.02, 10):
        clipped = clip_to_cap(turn(centres, direction, by * angle), centres, angle, balanced)
        torch.testing.assert_close(
            turning_angles(centres, clipped), torch.full((50,), min(by, 1) * angle).double(), rtol=5e-3, atol=1e-7
        )


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 3, 10, 782, 4606])
@pytest.mark.parametrize("angle", [1e-4, 0.3, 1.2, math.pi / 2, 2.5])
def test_drawn_angles_are_uniform_on_cap(dim: int, angle: float) -> None:
    """Kolmogorov-Smirnov test: the share of draws within a smaller angle must be the ratio of the caps."""
    drawn = np.sort(draw_angles(angle, dim, 1000, np.random.default_rng(dim)))
    assert drawn[0] >= 0
    assert drawn[-1] <= angle
    expected = np.array([math.exp(log_cap(float(a), dim) - log_cap(angle, dim)) for a in drawn])
    distance = np.abs(expected - (np.arange(1000) + 0.5) / 1000).max()
    assert distance < 1.95 / math.sqrt(1000), "passes by chance with a probability of 0.999"


@pytest.mark.parametrize("balanced", [False, True])
def test_random_turns_have_no_preferred_direction(balanced: bool) -> None:
    old = rows(0, neurons=1, balanced=balanced).expand(20000, 7).contiguous()
    new = turn_at_random(old, 0.5, balanced, np.random.default_rng(1), torch.Generator().manual_seed(1))
    along = tangent(old, new, balanced)
    assert (turning_angles(old, new) <= 0.5 + 1e-9).all()
    error = along.std(0) / math.sqrt(len(along))
    assert (along.mean(0).abs() < 5 * error).all()
    spread = along.T @ along / len(along)
    values = torch.linalg.eigvalsh(spread)[2 if balanced else 1 :]  # zero along the neuron and the ones vector
    assert values.max() / values.min() < 1.1


@given(
    st.tuples(st.floats(max_value=0), st.integers(1, 3))
    | st.tuples(st.floats(3.15), st.integers(1, 3))
    | st.tuples(st.floats(0.1, 3.1), st.integers(max_value=0))
)
def test_draw_angles_rejects_invalid_angle_or_dim(cap: tuple[float, int]) -> None:
    angle, dim = cap
    with pytest.raises(ValueError, match="a cap has an angle"):
        draw_angles(angle, dim, 1, np.random.default_rng(0))
