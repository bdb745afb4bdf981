import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.optim import Madam
from support import references

BOTH_PATHS = pytest.mark.parametrize("foreach", [False, True])


@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.999, 0.5, 0.0])
@pytest.mark.parametrize(("g_bound", "p_scale"), [(10.0, 3.0), (0.7, 1.1)])
def test_matches_reference(g_bound, p_scale, beta, dtype, foreach):
    params = references.parameters(dtype=dtype)
    reference = references.Madam(references.as_arrays(params), 0.03, beta, g_bound, p_scale)
    optimizer = Madam(params, lr=0.03, beta=beta, g_bound=g_bound, p_scale=p_scale, foreach=foreach)
    references.assert_follows(params, reference, optimizer)


@settings(max_examples=30)
@given(**references.ANY_STEP, beta=st.floats(0, 0.9999))
def test_matches_reference_on_any_shape(seed, shape, lr, beta, foreach):
    params = references.parameters(seed, torch.float64, shapes=[shape, shape, (3, 2)])
    reference = references.Madam(references.as_arrays(params), lr, beta)
    references.assert_follows(params, reference, Madam(params, lr=lr, beta=beta, foreach=foreach), steps=3)


def test_first_step_multiplies_by_exp_of_lr():
    weight = torch.tensor([[2.0, -2.0, 2.0, 0.0]])
    weight.grad = torch.tensor([[1e-4, 3.0, -7.0, 1.0]])
    Madam([weight], lr=0.1).step()
    torch.testing.assert_close(weight, torch.tensor([[2 / math.exp(0.1), -2 * math.exp(0.1), 2 * math.exp(0.1), 0.0]]))


def test_sudden_large_gradient_is_clipped():
    weight = torch.tensor([1.0])
    optimizer = Madam([weight], lr=0.01, beta=0.999)
    for grad in [1.0] * 30 + [1e6]:
        weight.grad = torch.tensor([grad])
        before = weight.item()
        optimizer.step()
    # Relative to the running average, the last gradient is only sqrt(0.0305 / 0.001) = 5.5: beta alone bounds it.
    expected = math.sqrt((1 - 0.999**31) / 0.001)
    assert weight.item() / before == pytest.approx(math.exp(-0.01 * expected), rel=1e-4)
    tight = torch.tensor([1.0])
    optimizer = Madam([tight], lr=0.01, beta=0.999, g_bound=2.0)
    for grad in [1.0] * 30 + [1e6]:
        tight.grad = torch.tensor([grad])
        before = tight.item()
        optimizer.step()
    assert tight.item() / before == pytest.approx(math.exp(-0.01 * 2), rel=1e-4)


def test_weights_are_clamped_to_three_times_initial_rms():
    weight = torch.tensor([[1.0, -1.0, 1.0, 10.0]])
    optimizer = Madam([weight], lr=0.5)
    bound = 3 * math.sqrt(103 / 4)
    assert optimizer.state[weight]["bound"].item() == pytest.approx(bound)
    for _ in range(20):
        weight.grad = torch.tensor([[-1.0, 1.0, 1.0, -1.0]])
        optimizer.step()
    torch.testing.assert_close(weight[0, [0, 1, 3]], torch.tensor([bound, -bound, bound]))
    assert 0 < weight[0, 2] < 1e-3


@BOTH_PATHS
def test_entries_with_only_zero_gradients_do_not_move(foreach):
    params = references.parameters()
    with torch.no_grad():
        params[0][0, 0, 0, 0] = 100.0  # beyond the bound, but not to be clamped
    before = [param.detach().clone() for param in params]
    references.run(params, Madam(params, lr=0.1, foreach=foreach), range(5))
    for old, new in zip(before, params, strict=True):
        if new.ndim:
            assert torch.equal(old[0], new[0])
        assert new.isfinite().all()
    assert not torch.equal(before[1][1:], params[1][1:])


def test_nan_gradient_propagates():
    weight = torch.ones(2, 2)
    weight.grad = torch.tensor([[math.nan, 1.0], [0.0, 1.0]])
    Madam([weight]).step()
    assert weight.isnan().tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"lr": math.nan}, "lr"), ({"beta": 1.0}, "beta"), ({"g_bound": 0.0}, "g_bound"), ({"p_scale": -1.0}, "p_scale")],
)
def test_invalid_settings_raise(setting, message):
    with pytest.raises(ValueError, match=message):
        Madam([torch.ones(2, 2)], **setting)
