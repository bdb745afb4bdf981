import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.optim import LAMB
from support import references

BOTH_PATHS = pytest.mark.parametrize("foreach", [False, True])


@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("betas", [(0.0, 0.999), (0.9, 0.999), (0.5, 0.0)])
@pytest.mark.parametrize(("clamp_value", "debias"), [(10.0, False), (0.5, False), (10.0, True), (math.inf, True)])
def test_matches_reference(clamp_value, debias, betas, dtype, foreach):
    params = references.parameters(dtype=dtype)
    reference = references.LAMB(references.as_arrays(params), 0.03, betas, 1e-6, clamp_value, debias)
    optimizer = LAMB(params, lr=0.03, betas=betas, clamp_value=clamp_value, debias=debias, foreach=foreach)
    references.assert_follows(params, reference, optimizer)


@settings(max_examples=30)
@given(**references.ANY_STEP, beta1=st.floats(0, 0.99), debias=st.booleans())
def test_matches_reference_on_any_shape(seed, shape, lr, beta1, debias, foreach):
    params = references.parameters(seed, torch.float64, shapes=[shape, shape, (3, 2)])
    reference = references.LAMB(references.as_arrays(params), lr, (beta1, 0.999), 1e-6, 10.0, debias)
    optimizer = LAMB(params, lr=lr, betas=(beta1, 0.999), debias=debias, foreach=foreach)
    references.assert_follows(params, reference, optimizer, steps=3)


@BOTH_PATHS
def test_step_length_is_relative_to_weight_norm(foreach):
    small, large, zero = torch.full((2, 3), 0.1), torch.full((10, 10), 5.0), torch.zeros(4)
    optimizer = LAMB([small, large, zero], lr=0.01, betas=(0.0, 0.999), foreach=foreach)
    before = [param.clone() for param in (small, large, zero)]
    for param in (small, large, zero):
        param.grad = torch.ones_like(param)
    optimizer.step()
    lengths = [(new - old).norm().item() for old, new in zip(before, (small, large, zero), strict=True)]
    # The large layer's norm of 50 is clamped to 10; a layer of zeros takes Adam's step, 1 / sqrt(1 - 0.999) per entry.
    adam = 2 / math.sqrt(0.001)
    assert lengths == pytest.approx([0.01 * 0.1 * math.sqrt(6), 0.01 * 10, 0.01 * adam], rel=1e-4)


@BOTH_PATHS
@pytest.mark.parametrize("debias", [False, True])
def test_direction_matches_adam_only_with_debias(foreach, debias):
    # For weights of norm zero, LAMB takes Adam's step; Adam always corrects the bias of its averages.
    ours, theirs = torch.zeros(4), torch.zeros(4)
    lamb = LAMB([ours], lr=0.1, eps=1e-8, debias=debias, foreach=foreach)
    adam = torch.optim.Adam([theirs], lr=0.1)
    ours.grad = theirs.grad = torch.tensor([1.0, -2.0, 3.0, 1e-3])
    lamb.step()
    adam.step()
    assert torch.allclose(ours, theirs, rtol=1e-4) == debias


@BOTH_PATHS
def test_entries_with_only_zero_gradients_do_not_move(foreach):
    params = references.parameters()
    before = [param.detach().clone() for param in params]
    references.run(params, LAMB(params, lr=0.1, betas=(0.0, 0.999), foreach=foreach), range(5))
    for old, new in zip(before, params, strict=True):
        if new.ndim:
            assert torch.equal(old[0], new[0])
            assert not torch.equal(old[1:], new[1:])


@BOTH_PATHS
def test_zero_gradient_changes_nothing(foreach):
    weight, bias = references.draw(0, [(3, 4), (4,)])
    before = [weight.clone(), bias.clone()]
    weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
    LAMB([weight, bias], foreach=foreach).step()
    references.assert_same([weight, bias], before)


def test_no_first_moment_is_kept_without_momentum():
    (weight,) = references.draw(0, [(3, 4)])
    assert set(LAMB([weight], betas=(0.0, 0.999)).state[weight]) == {"step", "exp_avg_sq"}
    assert set(LAMB([weight], betas=(0.9, 0.999)).state[weight]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -0.1}, "lr"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\]"),
        ({"betas": (0.9,)}, "two numbers"),
        ({"eps": 0.0}, "eps"),
        ({"clamp_value": 0.0}, "clamp_value"),
    ],
)
def test_invalid_settings_raise(setting, message):
    with pytest.raises(ValueError, match=message):
        LAMB([torch.ones(2, 2)], **setting)
