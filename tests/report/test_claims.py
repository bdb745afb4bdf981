"""Tests of the paper's claims about Nero, mostly from Section 4, as properties of every layer and gradient."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nero.optim import Madam, Nero, neuron_mean, neuron_norm, project
from nero.optim.nero import nero_update
from optim.test_every_optimiser import BOTH_PATHS
from support import references

PROPERTY = settings(max_examples=25)
SEED = st.integers(0, 2**32)
LAYER = st.tuples(st.integers(1, 8), st.integers(3, 300))
ETA = st.floats(1e-3, 0.5)


def layer_and_gradients(seed: int, shape: tuple[int, ...], number: int = 1) -> tuple[Tensor, list[Tensor]]:
    """Random weights, and gradients whose norms differ by orders of magnitude between neurons."""
    weight, *grads = references.draw(seed, [shape] * (number + 1), torch.float64)
    lengths = references.draw(seed + 1, [(shape[0], 1)] * number, torch.float64)
    return weight, [grad * 10 ** (3 * length) for grad, length in zip(grads, lengths, strict=True)]


def step(optimizer: Nero, weight: Tensor, grad: Tensor) -> Tensor:
    """Take one step and return the weights from before it."""
    before = weight.clone()
    weight.grad = grad.to(weight.dtype)
    optimizer.step()
    return before


def rotation_angle(before: Tensor, after: Tensor) -> Tensor:
    """Rotation angle of each unit-norm neuron; unlike an arc cosine, it is accurate for small angles."""
    along = (after * before).sum(1, keepdim=True)
    return torch.atan2((after - along * before).norm(dim=1), along.squeeze(1))


# ------------------------------------------------------------------- "a pure rotation of the weight vector by ≈ η"


@PROPERTY
@given(seed=SEED, shape=LAYER, eta=ETA)
def test_tangential_gradient_rotates_each_neuron_by_learning_rate(seed, shape, eta):
    weight, (grad,) = layer_and_gradients(seed, shape)
    optimizer = Nero([weight], lr=eta)
    grad = grad - grad.mean(1, keepdim=True)
    grad = grad - (grad * weight).sum(1, keepdim=True) * weight
    before = step(optimizer, weight, grad)
    # A step of length η along the tangent turns by atan η, which is about η for small η.
    expected = torch.full((shape[0],), math.atan(eta), dtype=torch.float64)
    torch.testing.assert_close(rotation_angle(before, weight), expected, rtol=1e-6, atol=1e-9)
    assert ((weight * grad).sum(1) < 0).all()  # downhill


@PROPERTY
@given(seed=SEED, shape=LAYER, eta=ETA, beta=st.floats(0, 0.9999))
def test_rotation_angle_per_step_is_bounded(seed, shape, eta, beta):
    # "Since Nero normalises gradients via running averages, a Nero update is only approximately per-neuron relative":
    # a gradient may exceed its average, but only by the factor in `longest`.
    weight, grads = layer_and_gradients(seed, shape, number=4)
    optimizer = Nero([weight], lr=eta, beta=beta)
    for t, grad in enumerate(grads, start=1):
        before = step(optimizer, weight, grad)
        longest = eta * math.sqrt((1 - beta**t) / (1 - beta))
        if longest < 1:
            assert rotation_angle(before, weight).max() <= math.asin(longest) * (1 + 1e-6) + 1e-9


# ---------------------------------------------- "per-neuron relative updates are automatically per-layer relative"


@PROPERTY
@given(seed=SEED, shape=LAYER, eta=ETA, beta=st.floats(0, 0.9999))
def test_first_update_is_relative_per_neuron_and_per_layer(seed, shape, eta, beta):
    weight, (grad,) = layer_and_gradients(seed, shape)
    weight = project(weight)
    zeros, ones = torch.zeros(shape[0], dtype=torch.float64), torch.ones(shape[0], dtype=torch.float64)
    rate, _ = nero_update(grad.norm(dim=1), avg_sq=zeros, step=ones, scale=ones, lr=eta, beta=beta)
    change = -rate.unsqueeze(1) * grad
    torch.testing.assert_close(change.norm(dim=1) / weight.norm(dim=1), eta * ones)
    assert (change.norm() / weight.norm()).item() == pytest.approx(eta)


@PROPERTY
@given(seed=SEED, shape=LAYER, eta=ETA)
def test_relative_layer_change_is_bounded_by_max_neuron_change(seed, shape, eta):
    weight, grads = layer_and_gradients(seed, shape, number=4)
    optimizer = Nero([weight], lr=eta, beta=0.5)
    for t, grad in enumerate(grads, start=1):
        before = step(optimizer, weight, grad)
        change = weight - before
        of_neurons = change.norm(dim=1) / before.norm(dim=1)
        assert change.norm() / before.norm() <= of_neurons.max() * (1 + 1e-9)
        # The bound above holds for any update. Nero's neurons also move by at most the chord of their largest angle.
        longest = eta * math.sqrt((1 - 0.5**t) / (1 - 0.5))
        assert change.norm() / before.norm() <= 2 * math.sin(math.asin(longest) / 2) * (1 + 1e-6)


# --------------------------------------- "the need for initialisation tuning and weight decay ... is removed"


@PROPERTY
@given(seed=SEED, shape=LAYER, foreach=st.booleans())
def test_training_is_invariant_to_initial_weight_scale_and_offset(seed, shape, foreach):
    weight, grads = layer_and_gradients(seed, shape, number=3)
    sizes, offsets = references.draw(seed + 2, [(shape[0], 1)] * 2, torch.float64)
    other = weight * 10**sizes + offsets
    optimizers = [(Nero([start], lr=0.1, foreach=foreach), start) for start in (weight, other)]
    for grad in grads:
        for optimizer, start in optimizers:
            step(optimizer, start, grad)
    torch.testing.assert_close(other, weight, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "foreach"), [(torch.float32, False), (torch.bfloat16, True)])
def test_balance_is_preserved_for_thousands_of_steps(dtype, foreach):
    balance_holds(dtype, foreach, steps=4000)


@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_balance_is_preserved(dtype, foreach):
    balance_holds(dtype, foreach, steps=200)


def balance_holds(dtype, foreach, steps):
    params = references.draw(0, [(6, 40), (6, 40), (5, 2)], dtype)
    optimizer = Nero(params, lr=0.02, foreach=foreach)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(dtype)
        optimizer.step()
    tolerance = {torch.float32: 5e-6, torch.float64: 1e-14}.get(dtype, 3 * torch.finfo(dtype).eps)
    for param in params:
        fan_in = param[0].numel()
        assert (neuron_norm(param) - 1).abs().max() <= tolerance
        assert neuron_mean(param).abs().max() * math.sqrt(fan_in) <= tolerance


# -------------------------------- "per-neuron running averages consume ~ square root the memory of per-synapse ones"


@PROPERTY
@given(shape=st.lists(st.integers(0, 40), max_size=4).map(tuple))
def test_state_has_one_value_per_neuron_or_bias(shape):
    (param,) = references.draw(0, [shape])
    sizes = {name: value.numel() for name, value in Nero([param], gain_penalty=0.1).state[param].items()}
    neurons = len(shape) >= 2 and math.prod(shape[1:]) != 1
    assert sizes.pop("avg_sq") == (shape[0] if neurons else param.numel())
    assert set(sizes) == ({"step", "scale"} if neurons else {"step", "scale", "gain"})
    assert all(size == 1 for size in sizes.values())


@PROPERTY
@given(width=st.integers(1, 100))
def test_square_layer_state_is_square_root_of_per_synapse_state(width):
    weight = torch.ones(width, width)
    per_neuron, per_synapse = Nero([weight]).state[weight]["avg_sq"], Madam([weight]).state[weight]["avg_sq"]
    assert per_neuron.numel() == math.isqrt(per_synapse.numel())


# ------------------------------- "normalisation is local to a neuron, no communication is needed between neurons"


@PROPERTY
@given(seed=SEED, shape=st.tuples(st.integers(2, 8), st.integers(2, 50)), cut=st.integers(1, 7), foreach=st.booleans())
def test_layer_split_across_neurons_gives_same_step(seed, shape, cut, foreach):
    whole, grads = layer_and_gradients(seed, shape, number=3)
    parts = [part.clone() for part in whole.tensor_split([min(cut, shape[0] - 1)])]
    optimizer, apart = Nero([whole], lr=0.1, foreach=foreach), [Nero([part], lr=0.1, foreach=foreach) for part in parts]
    for grad in grads:
        step(optimizer, whole, grad)
        for part, own, slope in zip(parts, apart, grad.split([len(part) for part in parts]), strict=True):
            step(own, part, slope)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-14)


@PROPERTY
@given(seed=SEED, shape=LAYER, foreach=st.booleans(), data=st.data())
def test_step_is_invariant_to_per_neuron_gradient_scale(seed, shape, foreach, data):
    # Scaling by powers of two is exact, so the steps must be bitwise equal.
    powers = data.draw(st.lists(st.integers(-20, 20), min_size=shape[0], max_size=shape[0]))
    factors = torch.tensor([2.0**power for power in powers])
    grads = references.draw(seed, [shape] * 3)
    layers, biases = [], []
    for by in (torch.ones(shape[0]), factors):
        weight, bias = references.draw(seed + 1, [shape, shape[:1]])
        optimizer = Nero([weight, bias], lr=0.05, foreach=foreach)
        for grad in grads:
            bias.grad = grad[:, 0] * by
            step(optimizer, weight, grad * by[:, None])
        layers.append(weight)
        biases.append(bias)
    references.assert_same(*[[one] for one in layers])
    references.assert_same(*[[one] for one in biases])


# ------------------------------------------- "corrects for the warmup bias" of averages that are initialised to zero


@PROPERTY
@given(seed=SEED, beta=st.floats(0, 0.9999), eta=ETA, size=st.floats(1e-3, 1e3))
def test_constant_gradient_gives_full_size_bias_steps_from_first_step(seed, beta, eta, size):
    bias, grad = references.draw(seed, [(6,), (6,)], torch.float64)
    grad[0] = 0
    optimizer = Nero([bias], lr=eta, beta=beta)
    scale = bias.abs().mean()
    for _ in range(4):
        before = step(optimizer, bias, size * grad)
        torch.testing.assert_close(before - bias, eta * scale * grad.sign(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_bias_correction_keeps_float32_precision(beta):
    bias = torch.tensor([2.0, -2.0, 2.0])
    bias.grad = torch.tensor([1e-3, 5.0, 0.0])
    Nero([bias], lr=0.1, beta=beta).step()
    # The tolerance is tight: 1 - 0.999 computed in float32 has a relative error of 1e-5.
    torch.testing.assert_close(bias, torch.tensor([1.8, -2.2, 2.0]), rtol=2e-7, atol=0)


# ------------------------- Section 5.7: "the batch norm gains were regularised towards one using a quadratic penalty"


def gains_biases_and_a_layer():
    layer, gains, biases, single = references.draw(0, [(3, 4), (5,), (5,), ()])
    return [layer, gains.fill_(1), biases, single.fill_(1)]


def step_all(optimizer, params, t, grad_of):
    for param, grad in zip(params, references.draw(t, [tuple(param.shape) for param in params]), strict=True):
        param.grad = grad_of(param, grad)
    optimizer.step()


@BOTH_PATHS
@pytest.mark.parametrize("maximize", [False, True])
def test_gain_penalty_equals_quadratic_penalty_in_loss(foreach, maximize):
    strength, sign = 0.3, -1 if maximize else 1
    ours, theirs = gains_biases_and_a_layer(), gains_biases_and_a_layer()
    gains = {id(theirs[1]), id(theirs[3])}
    optimizer = Nero(ours, lr=0.1, gain_penalty=strength, maximize=maximize, foreach=foreach)
    plain = Nero(theirs, lr=0.1, foreach=foreach)
    for t in range(5):
        step_all(optimizer, ours, t, lambda param, grad: grad)
        # The gradient of λ/2 Σ (γ - 1)², which is minimised even if the loss is maximised.
        step_all(plain, theirs, t, lambda p, grad: sign * grad + strength * (p - 1) * (id(p) in gains))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    free = gains_biases_and_a_layer()
    unpenalised = Nero(free, lr=0.1, maximize=maximize, foreach=foreach)
    for t in range(5):
        step_all(unpenalised, free, t, lambda param, grad: grad)
    assert [torch.equal(a, b) for a, b in zip(ours, free, strict=True)] == [True, False, True, False]


@BOTH_PATHS
def test_gain_flags_are_restored_from_checkpoint(foreach):
    ours = gains_biases_and_a_layer()
    optimizer = Nero(ours, gain_penalty=0.3, foreach=foreach)
    assert [optimizer.state[param]["gain"].item() for param in ours[1:]] == [1, 0, 1]
    for t in range(3):
        step_all(optimizer, ours, t, lambda param, grad: grad)
    saved = references.on_disk(optimizer.state_dict())
    # Trained values no longer show which parameters are gains, so the flags must come from the checkpoint.
    for settings_now in ({"gain_penalty": 0.1}, {}):
        theirs = references.values(ours)
        other = Nero(theirs, foreach=foreach, **settings_now)
        other.load_state_dict(saved)
        assert other.param_groups[0]["gain_penalty"] == 0.3
        assert [other.state[param]["gain"].item() for param in theirs[1:]] == [1, 0, 1]
        control = copy.deepcopy([ours, optimizer])
        for t in range(3, 6):
            step_all(other, theirs, t, lambda param, grad: grad)
            step_all(control[1], control[0], t, lambda param, grad: grad)
        references.assert_same(theirs, control[0])


def test_invalid_or_late_gain_penalty_raises():
    for penalty in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="gain_penalty"):
            Nero([torch.ones(3)], gain_penalty=penalty)
    gains = torch.ones(3)
    optimizer = Nero([gains])
    optimizer.param_groups[0]["gain_penalty"] = 0.1
    gains.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="gain_penalty is given when a group is added"):
        optimizer.step()
    assert torch.equal(gains, torch.ones(3))
