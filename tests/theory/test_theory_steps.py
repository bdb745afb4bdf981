"""Tests of relative steps and turning angles of neurons against closed forms and the optimisers' own updates."""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor, nn

from nero import Nero
from nero.optim import LAMB, Madam, constrained, project
from nero.theory.balance import quantiles
from nero.theory.steps import (
    StepMeter,
    layer_step,
    relative_size,
    relative_steps,
    turning_angles,
)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def constant(value: float, length: int) -> Tensor:
    return torch.full((length,), value, dtype=torch.float64)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5))


def backward(model: nn.Module, seed: int = 1) -> None:
    model.zero_grad()
    parameter = next(model.parameters())
    model(drawn(6, 3, 5, 5, seed=seed).to(parameter)).square().mean().backward()


# ----------------------------------------------------------------------------------------------------- quantiles


@given(arrays.arrays(np.float32, st.integers(1, 60), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_quantiles_match_numpy(values: np.ndarray) -> None:
    expected = np.quantile(values.astype(np.float64), [0, 0.05, 0.5, 0.95, 1])
    ours = quantiles(torch.from_numpy(values))
    assert list(ours) == ["min", "low", "median", "high", "max"]
    np.testing.assert_allclose(list(ours.values()), expected, rtol=1e-12, atol=1e-12 * np.abs(values).max())


@pytest.mark.slow
def test_quantiles_of_more_entries_than_torch_quantile_supports() -> None:
    values = torch.arange(2**24 + 2, dtype=torch.int32).flip(0)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values.double(), 0.5)
    spread = quantiles(values)
    assert spread["median"] == 2**23 + 0.5
    assert spread["high"] == pytest.approx(0.95 * (2**24 + 1), rel=1e-15)


def test_quantiles_of_constant_values_are_exact() -> None:
    for length in range(1, 60):
        assert set(quantiles(constant(0.1, length)).values()) == {0.1}


def test_quantiles_are_not_rounded_to_half_precision() -> None:
    assert quantiles(torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16))["median"] == 1.00390625


def test_quantiles_with_nan_are_nan_and_infinities_are_kept() -> None:
    assert all(math.isnan(value) for value in quantiles(torch.tensor([1.0, math.nan, 2.0])).values())
    spread = quantiles(torch.tensor([1.0] * 10 + [math.inf] * 10))
    assert spread == {"min": 1, "low": 1, "median": math.inf, "high": math.inf, "max": math.inf}


@pytest.mark.parametrize("shape", [(0,), (), (2, 3)])
def test_quantiles_reject_empty_or_non_vector_input(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not of the shape"):
        quantiles(torch.ones(shape))


# ------------------------------------------------------------------------------------------------- angles and steps


def rotated(rows: Tensor, angle: float, seed: int = 7) -> Tensor:
    """Each row rotated by `angle` in the plane spanned by the row and a random vector."""
    size = rows.norm(dim=-1, keepdim=True)
    along = rows / size
    across = drawn(*rows.shape, seed=seed)
    across = across - (across * along).sum(-1, keepdim=True) * along
    across = across - (across * along).sum(-1, keepdim=True) * along
    across = across / across.norm(dim=-1, keepdim=True)
    return size * (math.cos(angle) * along + math.sin(angle) * across)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-8, 1e-3, 0.5, math.pi / 2, 3.0, math.pi - 1e-8, math.pi])
def test_turning_angles_recover_rotation_angle(angle: float) -> None:
    before = 3 * drawn(6, 20)
    after = rotated(before, angle)
    torch.testing.assert_close(turning_angles(before, after), constant(angle, 6), rtol=0, atol=1e-15)
    # The step is a chord of the circle, of length 2 sin(angle / 2).
    chord = constant(2 * math.sin(angle / 2), 6)
    torch.testing.assert_close(relative_steps(before, after), chord, rtol=1e-14, atol=1e-15)


def test_tiny_angles_keep_full_precision() -> None:
    before = torch.tensor([[1.0, 0.0]])
    after = torch.tensor([[1.0, 1e-10]])
    assert turning_angles(before, after).item() == pytest.approx(1e-10, rel=1e-7, abs=0)
    assert torch.cosine_similarity(before, after).item() == 1


def test_scaling_changes_step_but_not_angle() -> None:
    before = drawn(5, 7)
    assert turning_angles(before, 3 * before).max() < 1e-15
    assert turning_angles(before, 4 * before).max() == 0
    torch.testing.assert_close(relative_steps(before, 3 * before), constant(2.0, 5))
    torch.testing.assert_close(turning_angles(before, -before), constant(math.pi, 5))


def test_zero_neuron_has_zero_angle_and_infinite_relative_step() -> None:
    before = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    after = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert turning_angles(before, after).tolist() == [0, 0, 0]
    assert relative_steps(before, after).tolist() == [0, math.inf, 1]
    assert layer_step(torch.zeros(2, 2), torch.zeros(2, 2)) == 0
    assert layer_step(torch.zeros(2, 2), torch.ones(2, 2)) == math.inf


def test_nan_affects_only_its_own_neuron() -> None:
    before, after = drawn(3, 4), drawn(3, 4, seed=1)
    after[1, 2] = math.nan
    for measure in (relative_steps, turning_angles):
        assert measure(before, after).isnan().tolist() == [False, True, False]


def test_steps_are_measured_where_squares_overflow_or_underflow() -> None:
    before, after = drawn(4, 6), drawn(4, 6, seed=1)
    for size in (1e-170, 1e170):
        torch.testing.assert_close(relative_steps(size * before, size * after), relative_steps(before, after))
        torch.testing.assert_close(turning_angles(size * before, size * after), turning_angles(before, after))
        assert layer_step(size * before, size * after) == pytest.approx(layer_step(before, after))


def test_half_precision_weights_are_measured_in_float64() -> None:
    before = drawn(3, 50).to(torch.bfloat16)
    after = rotated(before.double(), 0.1).to(torch.bfloat16)
    for measure in (relative_steps, turning_angles):
        assert torch.equal(measure(before, after), measure(before.double(), after.double()))
    assert layer_step(before, after) == layer_step(before.double(), after.double())


def test_convolution_measurements_do_not_depend_on_memory_format() -> None:
    before, after = drawn(4, 3, 5, 2), drawn(4, 3, 5, 2, seed=1)
    expected = turning_angles(before.flatten(1), after.flatten(1)), relative_steps(before.flatten(1), after.flatten(1))
    for old in (before, before.contiguous(memory_format=torch.channels_last)):
        for new in (after, after.contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(turning_angles(old, new), expected[0])
            torch.testing.assert_close(relative_steps(old, new), expected[1])
            assert layer_step(old, new) == pytest.approx(((after - before).norm() / before.norm()).item())


def test_mismatched_shapes_or_wrong_dims_raise() -> None:
    for measure in (relative_steps, turning_angles, layer_step):
        with pytest.raises(ValueError, match="changes no shape"):
            measure(torch.ones(2, 3), torch.ones(3))
    for measure in (relative_steps, turning_angles):
        with pytest.raises(ValueError, match="two or more dims"):
            measure(torch.ones(3), torch.ones(3))


# ---------------------------------------------------------------------------------------- Equation 3, Definition 5

# float16 values: even their smallest differences are far above the rounding errors of float64.
ELEMENTS = st.floats(-1e3, 1e3, width=16)
MATRICES = arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=ELEMENTS)


@settings(max_examples=300)
@given(data=st.data(), before=MATRICES)
def test_layer_step_is_at_most_largest_neuron_step(data: st.DataObject, before: np.ndarray) -> None:
    after = data.draw(arrays.arrays(np.float64, before.shape, elements=ELEMENTS))
    old, new = torch.from_numpy(before), torch.from_numpy(after)
    largest = relative_steps(old, new).max().item()
    assert layer_step(old, new) <= largest * (1 + 1e-12)


@given(before=MATRICES, eta=st.floats(1e-6, 10), seed=st.integers(0, 2**32))
def test_layer_step_equals_neuron_step_when_all_are_equal(before: np.ndarray, eta: float, seed: int) -> None:
    assume(np.abs(before).max() > 1e-3)
    old = torch.from_numpy(before)
    direction = drawn(*old.shape, seed=seed)
    change = eta * old.norm(dim=1, keepdim=True) * direction / direction.norm(dim=1, keepdim=True)
    assert relative_size(change, old) == pytest.approx(eta, rel=1e-12, abs=0)


# ------------------------------------------------------------------------------------------------------------ Nero


def balanced(*shape: int, seed: int = 0) -> Tensor:
    return project(drawn(*shape, seed=seed))


def stepped(weight: Tensor, grad: Tensor, **settings_: float) -> Tensor:
    """A copy of the weight after Nero's first step."""
    weight = weight.clone().requires_grad_()
    optimizer = Nero([weight], **settings_)
    weight.grad = grad
    optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("beta", [0.0, 0.999])
@pytest.mark.parametrize("eta", [1e-4, 0.01, 0.5])
def test_first_nero_step_turns_by_arctan_of_lr(eta: float, beta: float) -> None:
    before = balanced(6, 30)
    grad = project(drawn(6, 30, seed=1), norm=False)
    # Tangent to the sphere and centred.
    grad = grad - (grad * before).sum(-1, keepdim=True) * before
    unprojected = stepped(before, grad, lr=eta, beta=beta, mean=False, norm=False)
    torch.testing.assert_close(relative_steps(before, unprojected), constant(eta, 6), rtol=1e-12, atol=0)
    angles = turning_angles(before, stepped(before, grad, lr=eta, beta=beta))
    torch.testing.assert_close(angles, constant(math.atan(eta), 6), rtol=1e-10, atol=0)


@given(seed=st.integers(0, 2**32), eta=st.floats(1e-4, 0.9), lean=st.floats(-3, 3), pull=st.floats(-3, 3))
def test_first_nero_step_turns_by_at_most_arcsin_of_lr(seed: int, eta: float, lean: float, pull: float) -> None:
    before = balanced(4, 9, seed=seed)
    grad = drawn(4, 9, seed=seed + 1) + lean + pull * before
    # The unit gradient has the components a along the ones vector, t along w, and r along a unit vector τ across both.
    # The projection removes a, so that the new direction is that of (1 - η t) w - η r τ.
    unit = grad / grad.norm(dim=-1, keepdim=True)
    a, t = unit.sum(-1) / 3, (unit * before).sum(-1)
    r = (1 - a**2 - t**2).clamp(min=0).sqrt()
    angles = turning_angles(before, stepped(before, grad, lr=eta, beta=0))
    torch.testing.assert_close(angles, torch.atan2(eta * r, 1 - eta * t), rtol=1e-8, atol=1e-12)
    # w + η u is in a ball of radius η around the unit vector w, so its angle to w is at most asin η.
    assert angles.max().item() <= math.asin(eta) * (1 + 1e-12)


def test_gradient_above_average_makes_nero_step_exceed_lr_as_predicted() -> None:
    eta, beta, t = 1e-3, 0.9, 4
    weight = balanced(1, 8).requires_grad_()
    optimizer = Nero([weight], lr=eta, beta=beta, mean=False, norm=False)
    grad = drawn(1, 8, seed=1)
    for size in [1e-9] * (t - 1) + [1.0]:
        before = weight.detach().clone()
        weight.grad = size * grad
        optimizer.step()
    step = layer_step(before, weight)
    # If all gradients but the last vanish, this is ‖g‖ √(1 - βᵗ) / √((1 - β) ‖g‖²).
    assert step * before.norm().item() == pytest.approx(eta * math.sqrt((1 - beta**t) / (1 - beta)), rel=1e-9)
    assert step > 1.8 * eta


def test_nero_bias_step_is_relative_to_mean_size() -> None:
    before = torch.tensor([0.1, 1.9]).double()
    after = stepped(before, torch.tensor([1.0, 1.0]).double(), lr=0.01)
    relative = (after - before).abs() / before
    torch.testing.assert_close(relative, torch.tensor([0.1, 0.01 / 1.9]).double())


# ------------------------------------------------------------------------------------------------------- StepMeter

OPTIMISERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "Nero": partial(Nero, lr=0.01),
    "LAMB": partial(LAMB, lr=0.01),
    "Madam": partial(Madam, lr=0.01),
    "constrained SGD": partial(constrained, base=torch.optim.SGD, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=list(OPTIMISERS))
@pytest.mark.parametrize("channels_last", [False, True])
def test_step_meter_matches_difference_of_weights(make: Callable, channels_last: bool) -> None:
    model = network()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    parameters = dict(model.named_parameters())
    with StepMeter(optimizer, parameters) as meter:
        for t in range(2):
            backward(model, seed=t)
            before = {name: param.detach().clone() for name, param in parameters.items()}
            meter.arm()
            optimizer.step()
    assert [layer.name for layer in meter.layers] == ["0.weight", "4.weight"]
    for layer in meter.layers:
        old = before[layer.name].contiguous().flatten(1).double()
        new = parameters[layer.name].detach().contiguous().flatten(1).double()
        steps = ((new - old).norm(dim=1) / old.norm(dim=1)).numpy()
        angles = torch.cosine_similarity(old, new).clamp(-1, 1).arccos().numpy()
        assert layer.relative_step == pytest.approx(((new - old).norm() / old.norm()).item())
        assert layer.relative_step > 1e-4
        shares = [0, 0.05, 0.5, 0.95, 1]
        assert list(layer.neuron_steps.values()) == pytest.approx(np.quantile(steps, shares))
        assert list(layer.angles.values()) == pytest.approx(np.quantile(angles, shares), rel=1e-4)
        assert layer.relative_step <= layer.neuron_steps["max"] * (1 + 1e-12)
        assert asdict(layer) == {
            "name": layer.name,
            "relative_step": layer.relative_step,
            "neuron_steps": layer.neuron_steps,
            "angles": layer.angles,
        }


def test_sgd_neuron_step_is_scaled_gradient_over_norm() -> None:
    weight, lr = drawn(5, 8).requires_grad_(), 0.3
    weight.grad = drawn(5, 8, seed=1)
    expected = lr * weight.grad.norm(dim=1) / weight.detach().norm(dim=1)
    optimizer = torch.optim.SGD([weight], lr=lr)
    with StepMeter(optimizer, {"w": weight}) as meter:
        meter.arm()
        optimizer.step()
    (layer,) = meter.layers
    assert layer.neuron_steps == pytest.approx(quantiles(expected))


def test_balanced_neurons_turn_by_at_most_arcsin_of_nero_lr() -> None:
    model = network()
    optimizer = Nero(model.parameters(), lr=0.01)
    backward(model)
    with StepMeter(optimizer, dict(model.named_parameters())) as meter:
        meter.arm()
        optimizer.step()
    for layer in meter.layers:
        assert 0 < layer.angles["min"] <= layer.angles["max"] <= math.asin(0.01) * (1 + 1e-4)


def test_constrained_step_is_measured_after_projection() -> None:
    model = network()
    optimizer = constrained(model.parameters(), base=torch.optim.SGD, lr=0.1)
    backward(model)
    with StepMeter(optimizer, dict(model.named_parameters())) as meter:
        meter.arm()
        optimizer.step()
    for layer in meter.layers:
        # The distance between two unit vectors is the chord of their angle.
        for name, angle in layer.angles.items():
            assert layer.neuron_steps[name] == pytest.approx(2 * math.sin(angle / 2), rel=1e-4)


def test_only_step_after_arming_is_measured() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with StepMeter(optimizer, {"w": weight}) as meter:
        seen = []
        for size, armed in [(0.5, False), (0.25, True), (0.125, False)]:
            weight.grad = torch.full((2, 2), size)
            if armed:
                meter.arm()
            optimizer.step()
            seen.append([layer.relative_step for layer in meter.layers])
    assert seen == [[], [0.5], [0.5]]  # 0.25 / (1 - 0.5)


def test_failed_step_is_not_measured_with_the_next() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def fails() -> float:
        raise ArithmeticError

    with StepMeter(optimizer, {"w": weight}) as meter:
        meter.arm()
        with pytest.raises(ArithmeticError):
            optimizer.step(fails)
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        assert meter.layers == []
        meter.arm()
        optimizer.step()
        assert [layer.relative_step for layer in meter.layers] == [1.0]


def test_step_meter_leaves_no_hooks_and_does_not_change_training() -> None:
    model, twin = network(), network()
    optimizer, expected = Nero(model.parameters()), Nero(twin.parameters())
    meter = StepMeter(optimizer, dict(model.named_parameters()))

    def interrupted() -> None:
        with meter:
            backward(model)
            meter.arm()
            optimizer.step()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        interrupted()
    assert len(meter.layers) == 2
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(RuntimeError, match="within its with block"):
        meter.arm()
    backward(twin)
    expected.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_parameters_outside_optimiser_have_zero_step_and_empty_are_omitted() -> None:
    held, other, empty = (torch.ones(shape, requires_grad=True) for shape in ((2, 2), (3, 2), (0, 2)))
    held.grad = torch.ones(2, 2)
    optimizer = torch.optim.SGD([held], lr=0.5)
    with StepMeter(optimizer, {"held": held, "other": other, "empty": empty}) as meter:
        meter.arm()
        optimizer.step()
    assert {layer.name: layer.relative_step for layer in meter.layers} == {"held": 0.5, "other": 0.0}
