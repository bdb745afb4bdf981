"""Tests of stable steps and deep relative trust: exact values, cases where they hold, and counterexamples."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import slow_after
from nero import Nero
from nero.theory.trust import LayerTrust, StepTrust, descent_cosine, measure_step, trust_bound


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def named(weights: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"layer {number}": weight for number, weight in enumerate(weights)}


def through(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Output of the linear network with these weights."""
    for weight in weights:
        x = weight @ x
    return x


@torch.no_grad()
def move(weights: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
    for weight, change in zip(weights, changes, strict=True):
        weight += change


# ------------------------------------------------------------------------- trust bound, descent cosine and stability


def test_trust_bound_is_product_over_layers() -> None:
    weights = [matrix([[3.0, 4.0]]), matrix([[0.0], [2.0]])]
    changes = [matrix([[0.0, 0.5]]), matrix([[-0.4], [0.3]])]
    assert trust_bound(weights, changes) == pytest.approx(1.1 * 1.25 - 1, rel=1e-15)
    assert trust_bound([], []) == 0


def test_trust_bound_of_tiny_step_keeps_full_precision() -> None:
    weights = [matrix([[1.0, 0.0]])] * 3
    assert trust_bound(weights, [matrix([[0.0, 1e-18]])] * 3) == pytest.approx(3e-18, rel=1e-14, abs=0)


def test_trust_bound_is_infinite_when_zero_layer_moves() -> None:
    zeros, ones = torch.zeros(2, 2), torch.ones(2, 2)
    assert trust_bound([zeros, ones], [ones, ones]) == math.inf
    assert trust_bound([zeros, ones], [zeros, ones]) == 1
    # The bound is also infinite if the product overflows.
    assert trust_bound([ones] * 40, [1e10 * ones] * 40) == math.inf


def test_descent_cosine_is_one_along_negative_gradient() -> None:
    gradient = drawn(4, 3)
    across = matrix([[0.0, 1.0]])
    assert descent_cosine(-0.1 * gradient, gradient) == pytest.approx(1, rel=1e-15)
    assert descent_cosine(5 * gradient, gradient) == pytest.approx(-1, rel=1e-15)
    assert descent_cosine(across, matrix([[2.0, 0.0]])) == 0
    assert descent_cosine(matrix([[-1.0, -1.0]]), matrix([[2.0, 0.0]])) == pytest.approx(math.sqrt(0.5))
    assert all(abs(descent_cosine(drawn(9, 9, seed=s), drawn(9, 9))) <= 1 for s in range(20))


def test_descent_cosine_is_zero_without_step_or_gradient() -> None:
    zeros, ones = torch.zeros(2, 2), torch.ones(2, 2)
    for change, gradient in ((zeros, ones), (ones, zeros), (zeros, zeros)):
        cosine = descent_cosine(change, gradient)
        assert cosine == 0
        assert math.copysign(1, cosine) == 1


def layer(name: str = "w", gradient_change: float = 0.1, cosine: float = 0.5, relative_step: float = 0.1) -> LayerTrust:
    return LayerTrust(name, gradient_change, cosine, relative_step)


def step(*layers: LayerTrust, trust: float = 0.2) -> StepTrust:
    return StepTrust(layers, trust, loss=1.0, loss_after=0.9)


@pytest.mark.parametrize(
    ("measured", "stable"),
    [
        (layer(gradient_change=0.4, cosine=0.5), True),
        (layer(gradient_change=0.5, cosine=0.5), False),
        (layer(gradient_change=0.1, cosine=-0.5), False),
        (layer(gradient_change=math.nan), False),
        (layer(gradient_change=math.inf, cosine=0.0, relative_step=0.0), True),  # did not move
        (layer(gradient_change=0.0, cosine=0.0), False),  # moved without a gradient
        (layer(gradient_change=math.inf, cosine=0.0, relative_step=math.inf), False),
    ],
)
def test_layer_is_stable_if_gradient_change_is_below_cosine(measured: LayerTrust, stable: bool) -> None:
    assert measured.stable == stable
    assert step(layer(), measured).stable == stable


def test_step_that_moves_nothing_is_not_stable() -> None:
    assert not step(layer(relative_step=0.0)).stable
    assert not step().stable


def test_step_is_within_trust_if_every_layer_is() -> None:
    assert not step(layer("a", gradient_change=0.2), layer("b", gradient_change=0.21)).within_trust
    assert step(layer("a", gradient_change=0.2)).within_trust
    assert not step(layer("a", gradient_change=math.nan)).within_trust


# --------------------------------------------------------------------------------------------- deep relative trust

RATIOS = st.lists(st.floats(0, 2), min_size=1, max_size=5)


@given(ratios=RATIOS, seed=st.integers(0, 2**32))
def test_deep_relative_trust_is_exact_for_scaled_linear_layers(ratios: list[float], seed: int) -> None:
    widths = [3 + number % 2 for number in range(len(ratios) + 1)]
    weights = [drawn(widths[k + 1], widths[k], seed=seed + k).requires_grad_() for k in range(len(ratios))]
    x, readout = drawn(widths[0], seed=seed + 10), drawn(widths[-1], seed=seed + 11)
    changes = [ratio * weight.detach() for ratio, weight in zip(ratios, weights, strict=True)]
    seen = measure_step(lambda: readout @ through(weights, x), named(weights), lambda: move(weights, changes))
    for number, layer_seen in enumerate(seen.layers):
        # A layer's gradient is proportional to the product of all other layers.
        others = math.prod(1 + ratio for k, ratio in enumerate(ratios) if k != number) - 1
        assert layer_seen.gradient_change == pytest.approx(others, rel=1e-9, abs=1e-13)
        assert layer_seen.relative_step == pytest.approx(ratios[number], rel=1e-12)
        assert layer_seen.gradient_change <= seen.trust * (1 + 1e-9) + 1e-13
        if ratios[number] == 0:
            assert layer_seen.gradient_change == pytest.approx(seen.trust, rel=1e-9, abs=1e-13)
    assert seen.trust == pytest.approx(math.prod(1 + ratio for ratio in ratios) - 1, rel=1e-12, abs=1e-15)


@given(
    scales=st.lists(st.tuples(st.floats(0.1, 10), st.booleans(), st.floats(-3, 3)), min_size=1, max_size=6),
)
def test_network_of_width_one_obeys_deep_relative_trust(
    scales: list[tuple[float, bool, float]],
) -> None:
    weights = [matrix([[-size if negative else size]]) for size, negative, _ in scales]
    changes = [delta * weight.detach() for weight, (*_, delta) in zip(weights, scales, strict=True)]
    x = torch.ones(1, dtype=torch.float64)
    seen = measure_step(lambda: through(weights, x).sum(), named(weights), lambda: move(weights, changes))
    for number, layer_seen in enumerate(seen.layers):
        exact = abs(math.prod(1 + delta for k, (*_, delta) in enumerate(scales) if k != number) - 1)
        assert layer_seen.gradient_change == pytest.approx(exact, rel=1e-9, abs=1e-12)
        assert layer_seen.gradient_change <= seen.trust * (1 + 1e-9) + 1e-12


def curved_loss() -> tuple[list[Tensor], list[Tensor], Callable[[], Tensor]]:
    """A squared loss near its minimum, where a small step changes the small gradient by a large factor."""
    weights = [matrix([[1.0]]), matrix([[1.0]])]
    return weights, [matrix([[0.01]]), matrix([[0.0]])], lambda: (weights[1] @ weights[0] - 1.001).square().sum()


def ill_conditioned() -> tuple[list[Tensor], list[Tensor], Callable[[], Tensor]]:
    """Linear layers and a linear loss that depends on a direction in which the second layer is nearly zero."""
    weights = [matrix([[1.0, 0.0], [0.0, 1.0]]), matrix([[1.0, 0.0], [0.0, 1e-3]])]
    x, readout = torch.ones(2, dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    changes = [matrix([[0.0, 0.0], [0.0, 0.0]]), matrix([[0.0, 0.0], [0.0, 0.01]])]
    return weights, changes, lambda: readout @ through(weights, x)


def flipped_unit() -> tuple[list[Tensor], list[Tensor], Callable[[], Tensor]]:
    """A ReLU unit with a small input weight that the step switches off, next to one with a large weight."""
    weights = [matrix([[10.0], [0.01]]), matrix([[0.01, 1.0]])]
    x = torch.ones(1, dtype=torch.float64)
    changes = [matrix([[0.0], [-0.02]]), matrix([[0.0, 0.0]])]
    return weights, changes, lambda: (weights[1] @ (weights[0] @ x).relu()).sum()


@pytest.mark.parametrize("make", [curved_loss, ill_conditioned, flipped_unit])
def test_deep_relative_trust_can_be_violated(make: Callable) -> None:
    weights, changes, loss = make()
    seen = measure_step(loss, named(weights), lambda: move(weights, changes))
    assert seen.trust < 0.02
    assert not seen.within_trust
    # The first layer's gradient changes by far more than the definition allows.
    assert seen.layers[0].gradient_change > 0.9


# ---------------------------------------------------------------------------------------------------- stable steps


def smooth_network(seed: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    for module in model:
        if isinstance(module, nn.Linear):
            module.bias.requires_grad_(False)
    x, labels = drawn(20, 4, seed=seed), torch.arange(20) % 3
    return model, lambda: nn.functional.cross_entropy(model(x), labels)


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_step_stable_along_whole_path_decreases_loss_as_bounded(seed: int, noise: float) -> None:
    model, loss = smooth_network(seed)
    weights = {name: param for name, param in model.named_parameters() if param.ndim >= 2}
    start = [weight.detach().clone() for weight in weights.values()]
    gradients = torch.autograd.grad(loss(), list(weights.values()))
    directions = [
        -gradient + noise * gradient.norm() * (other / other.norm())
        for gradient, other in zip(
            gradients, (drawn(*g.shape, seed=9 + k) for k, g in enumerate(gradients)), strict=True
        )
    ]

    def look(length: float) -> StepTrust:
        move(list(weights.values()), [old - new.detach() for old, new in zip(start, weights.values(), strict=True)])
        return measure_step(
            loss, weights, lambda: move(list(weights.values()), [length * change for change in directions])
        )

    stable = []
    for length in [0.01 * 2**k for k in range(12)]:
        path = [look(length * part / 32) for part in range(1, 33)]
        if not all(seen.stable for seen in path):
            break
        end = path[-1]
        # The decrease is the integral of -∇(W + tΔW)·ΔW, to which each layer contributes at least this much.
        least = sum(
            length
            * direction.norm()
            * gradient.norm()
            * (layer.cosine - max(at.layers[k].gradient_change for at in path))
            for k, (direction, gradient, layer) in enumerate(zip(directions, gradients, end.layers, strict=True))
        )
        assert end.loss - end.loss_after >= 0.999 * least > 0  # the grid may slightly miss the worst point
        stable.append(length)
    # Short steps are stable, and steps that are too long are not.
    assert 1 <= len(stable) < 12


def test_step_stable_only_at_endpoint_can_increase_loss() -> None:
    # The gradient 1 - 2 cos 2πw is -1 at 0 and at 1, and mostly positive between them.
    weight = matrix([[0.0]])

    def loss() -> Tensor:
        return (weight - torch.sin(2 * math.pi * weight) / math.pi).sum()

    seen = measure_step(loss, {"w": weight}, lambda: move([weight], [matrix([[1.0]])]))
    (only,) = seen.layers
    assert only.cosine == 1
    assert only.gradient_change < 1e-12
    assert seen.stable
    assert seen.loss_after == pytest.approx(seen.loss + 1)


def test_too_long_gradient_step_is_not_stable() -> None:
    # For L = w²/2, the relative change of the gradient is the rate.
    for rate, stable in [(0.5, True), (0.999, True), (1.001, False), (3.0, False)]:
        weight = matrix([[2.0, -1.0]])
        seen = measure_step(
            lambda weight=weight: weight.square().sum() / 2,
            {"w": weight},
            lambda weight=weight, rate=rate: move([weight], [-rate * weight.detach()]),
        )
        assert seen.layers[0].gradient_change == pytest.approx(rate)
        assert seen.layers[0].cosine == pytest.approx(1)
        assert seen.trust == pytest.approx(rate)
        assert seen.stable == stable
        assert (seen.loss, seen.loss_after) == pytest.approx((2.5, 2.5 * (1 - rate) ** 2))


# --------------------------------------------------------------------------------------------------------- measure_step


def test_measure_step_does_not_change_training() -> None:
    def trained(looking: bool) -> tuple[nn.Module, list[StepTrust]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5)).double()
        optimizer, seen = Nero(model.parameters(), lr=0.01), []
        for t in range(3):
            x, labels = drawn(8, 3, 5, 5, seed=t), torch.arange(8) % 5

            def loss(x: Tensor = x, labels: Tensor = labels) -> Tensor:
                return nn.functional.cross_entropy(model(x), labels)

            optimizer.zero_grad()
            loss().backward()
            if looking:
                kept = [param.grad.clone() for param in model.parameters()]
                with torch.no_grad():  # the caller's grad mode must not matter
                    seen.append(measure_step(loss, dict(model.named_parameters()), optimizer.step))
                for param, grad in zip(model.parameters(), kept, strict=True):
                    assert torch.equal(param.grad, grad)
            else:
                optimizer.step()
        return model, seen

    (model, steps), (twin, _) = trained(True), trained(False)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for seen in steps:
        assert [layer.name for layer in seen.layers] == ["0.weight", "3.weight"]  # biases moved too but are not layers
        assert seen.stable
        assert seen.loss_after < seen.loss
        assert all(layer.relative_step < 0.03 for layer in seen.layers)
        assert seen.trust == pytest.approx(math.prod(1 + layer.relative_step for layer in seen.layers) - 1)


def test_measure_step_handles_frozen_unused_and_still_layers() -> None:
    used, still, frozen, unused = matrix([[1.0]]), matrix([[2.0]]), matrix([[4.0]]), matrix([[1.0]])
    frozen.requires_grad_(False)
    weights = {"used": used, "still": still, "frozen": frozen, "unused": unused}

    def take() -> None:
        move([used, frozen], [matrix([[-0.25]]), matrix([[1.0]])])

    seen = measure_step(lambda: (used * still * frozen).sum(), weights, take)
    by_name = {layer.name: layer for layer in seen.layers}
    # The frozen layer has no gradient to measure, but its step counts in the trust bound.
    assert by_name.keys() == {"used", "still", "unused"}
    assert seen.trust == pytest.approx(1.25 * 1.25 - 1)
    assert by_name["used"] == LayerTrust("used", gradient_change=0.25, cosine=1.0, relative_step=0.25)
    assert by_name["still"] == LayerTrust("still", gradient_change=0.0625, cosine=0.0, relative_step=0.0)
    assert by_name["unused"] == LayerTrust("unused", gradient_change=0.0, cosine=0.0, relative_step=0.0)
    assert seen.stable


def test_diverged_step_is_neither_stable_nor_within_trust() -> None:
    weight = matrix([[1.0]])
    seen = measure_step(lambda: weight.square().sum(), {"w": weight}, lambda: move([weight], [matrix([[math.nan]])]))
    assert not seen.stable
    assert not seen.within_trust
    assert math.isnan(seen.loss_after)
