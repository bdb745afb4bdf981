"""Tests of robustness (Definition 6) on small classifiers: lower bound, upper bound and random rotations."""

import math
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import slow_after
from nero.theory.robustness import (
    Perceptron,
    adversarial_angle,
    attack,
    certified_angle,
    draws_needed,
    error_curve,
    first_order_angle,
    random_angle,
)
from nero.theory.solutions import Solution, margin
from support import small_solutions

BALANCED = pytest.mark.parametrize("balanced", [False, True])


# ----------------------------------------------------------------------------------------------------- solutions


def test_margin_is_label_logit_minus_best_other() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [5.0, 5.0, 0.0], [math.nan, 0.0, 1.0]])
    found = margin(logits, torch.tensor([1, 0, 0, 2]))
    assert found[:3].tolist() == [1.0, -2.0, 0.0]
    assert found[3].isnan()


def test_solution_sorts_fitted_examples_by_margin_and_counts_errors() -> None:
    network = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(2))
    inputs = torch.tensor([[5.0, 0.0], [0.0, 1.0], [3.0, 3.0], [0.0, 2.0]])
    solution = Solution(network, inputs, torch.tensor([0, 1, 0, 0]), batch_size=3)
    assert (solution.examples, solution.errors, solution.classes) == (4, 2, 2), "a tie is none of the fitted"
    assert solution.order.tolist() == [1, 0]
    assert solution.fitted_margins.tolist() == [1.0, 5.0]
    assert not network.training
    flipped = {"weight": torch.tensor([[1.0, 0.0], [0.0, -1.0]])}
    assert solution.made_wrong(flipped) == 0.5
    assert solution.has_error(flipped)


def test_has_error_checks_every_batch() -> None:
    network = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0], [0.0]]))
    inputs = torch.linspace(1, 2, 700)[:, None]
    solution = Solution(network, inputs, torch.zeros(700, dtype=torch.long), batch_size=100)

    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.where(x > 1.999, -1.0, x), 0 * x], dim=1)

    assert not solution.has_error(solution.weights)
    solution.network = Late()
    assert solution.has_error({}), "in the last batch"


@pytest.mark.parametrize(
    ("network", "inputs", "labels", "message"),
    [
        (nn.Linear(2, 2), torch.ones(3, 2), torch.zeros(2, dtype=torch.long), "as many labels"),
        (nn.Linear(2, 2), torch.ones(0, 2), torch.zeros(0, dtype=torch.long), "and some"),
        (nn.BatchNorm1d(2), torch.ones(3, 2), torch.zeros(3, dtype=torch.long), "nothing to turn"),
    ],
)
def test_invalid_solution_raises(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Solution(network, inputs, labels)


# -------------------------------------------------------------------------------- upper bound: adversarial angle


@BALANCED
@pytest.mark.parametrize("seed", slow_after(2, range(6)))
def test_adversarial_angle_matches_closed_form_for_linear_classifier(seed: int, balanced: bool) -> None:
    solution = small_solutions.linear(seed, balanced=balanced)
    truth = small_solutions.true_angle_of_linear(solution)
    found = adversarial_angle(solution, candidates=40, attacked=40)
    assert found is not None
    assert truth * (1 - 1e-9) <= found.angle <= truth * 1.02
    assert certified_angle(solution, small_solutions.chain(solution)) <= truth


@BALANCED
def test_witness_misclassifies_within_adversarial_angle(balanced: bool) -> None:
    solution = small_solutions.perceptron(3, balanced=balanced)
    found = adversarial_angle(solution)
    assert found is not None
    angles = torch.cat(solution.angles_to(found.witness))
    assert angles.max() == found.angle
    for name, weight in found.witness.items():
        torch.testing.assert_close(weight.norm(dim=1), solution.weights[name].norm(dim=1))
        if balanced:
            torch.testing.assert_close(weight.sum(1), torch.zeros(len(weight)).double(), rtol=0, atol=1e-12)
    place = solution.order.tolist().index(found.example)
    logits = solution.logits(found.witness, solution.inputs[place : place + 1])
    assert margin(logits, solution.labels[place : place + 1]) < 0
    assert solution.has_error(found.witness)
    assert 0.2 < found.first_order / found.angle < 5


@pytest.mark.slow
def test_adversarial_angle_matches_brute_force_search() -> None:
    """All four neurons have two weights and turn on circles, so that a grid covers all rotations."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    solution = small_solutions.fitted(network, torch.randn(8, 2).double())
    found = adversarial_angle(solution)
    assert found is not None

    def errors(reach: float) -> int:
        grid = torch.cartesian_prod(*2 * [torch.linspace(-reach, reach, 33).double()])
        hidden = torch.tanh(solution.inputs @ rotated(solution, "0.weight", grid).mT + network[0].bias)
        logits = hidden[:, None] @ rotated(solution, "2.weight", grid).mT + network[2].bias
        labels = solution.labels.repeat(len(grid) ** 2)
        return int((margin(logits.flatten(0, 2), labels) <= 0).sum())

    with torch.no_grad():
        assert errors(0.97 * found.angle) == 0
        assert errors(1.1 * found.angle) > 0


def rotated(solution: Solution, name: str, angles: torch.Tensor) -> torch.Tensor:
    """Weights of a layer of two neurons, rotated by each pair of angles [pairs, 2]."""
    weight = solution.weights[name]
    across = torch.stack([-weight[:, 1], weight[:, 0]], dim=1)
    return angles.cos()[..., None] * weight + angles.sin()[..., None] * across


def test_adversarial_angle_is_none_when_no_neuron_can_turn() -> None:
    network = nn.Linear(1, 2, bias=False).double()  # neurons with a single weight cannot turn
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    solution = small_solutions.fitted(network, torch.ones(3, 1).double())
    assert first_order_angle(solution, 0) == math.inf
    assert adversarial_angle(solution) is None
    assert attack(solution, 0, 1.0, 3) is None


# ---------------------------------------------------------------------------------- lower bound: certified angle


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 3), st.booleans())
def test_certified_angle_is_below_adversarial_angle(seed: int, depth: int, balanced: bool) -> None:
    solution = small_solutions.perceptron(seed, depth=depth, balanced=balanced)
    certified = certified_angle(solution, small_solutions.chain(solution))
    found = adversarial_angle(solution, steps=5)
    assert 0 < certified < (found.angle if found else math.pi)
    assert not any(solution.has_error(solution.turned_at_random(certified, seed, i)) for i in range(5))


def test_certified_angle_rejects_mismatched_layers() -> None:
    solution = small_solutions.perceptron(0, depth=2)
    chain = small_solutions.chain(solution)
    with pytest.raises(ValueError, match="other logits"):
        certified_angle(solution, Perceptron(chain.weights, chain.biases, torch.tanh, 1.0))
    with pytest.raises(ValueError, match="the perceptron's layers are"):
        certified_angle(solution, Perceptron(chain.weights[:1], chain.biases[:1], torch.relu, 1.0))


# ------------------------------------------------------------------------------------------------- random rotations


def test_draws_needed_for_confidence() -> None:
    assert draws_needed(0.95, 0.95) == 59
    assert 0.95**59 < 0.05 < 0.95**58
    for bad in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="confidence"):
            draws_needed(bad, 0.5)
        with pytest.raises(ValueError, match="share"):
            draws_needed(0.5, bad)


@BALANCED
def test_random_angle_keeps_required_share_of_rotations_error_free(balanced: bool) -> None:
    """Checked with 600 new draws, which are enough to tell a share of 85 % from the required 90 %."""
    solution = small_solutions.linear(1, balanced=balanced, fan_in=5)
    said: list[str] = []
    found = random_angle(solution, say=said.append)
    assert found.angle > small_solutions.true_angle_of_linear(solution)
    assert said[-1].endswith(f"{found.draws} of {found.draws} draws without an error")
    fine = sum(not solution.has_error(solution.turned_at_random(found.angle, 7, i)) for i in range(600))
    assert fine >= 510
    further = sum(
        not solution.has_error(solution.turned_at_random(min(4 * found.angle, 3.0), 8, i)) for i in range(200)
    )
    assert further < 170, "else the angle is needlessly small"


def test_random_angle_is_determined_by_seed() -> None:
    solution = small_solutions.perceptron(5)
    first, second, other = (random_angle(solution, seed=seed) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_error_curve_grows_with_angle() -> None:
    solution = small_solutions.perceptron(2, examples=200)
    curve = error_curve(solution, [1e-6, 0.3, 1.5], draws=8)
    assert [angle for angle, _ in curve] == [1e-6, 0.3, 1.5]
    assert curve[0][1] == 0 < curve[1][1] < curve[2][1] <= 1


@pytest.mark.gpu
@BALANCED
def test_gpu_angles_match_cpu(balanced: bool) -> None:
    here = small_solutions.perceptron(3, balanced=balanced)
    there = Solution(deepcopy(here.network).cuda(), here.inputs.cuda(), here.labels.cuda())
    ours, theirs = adversarial_angle(here), adversarial_angle(there)
    assert ours is not None
    assert theirs is not None
    assert theirs.angle == pytest.approx(ours.angle, rel=0.03)
    assert random_angle(there).angle == pytest.approx(random_angle(here).angle, rel=0.5)
