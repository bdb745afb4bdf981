import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nero.optim import Nero, neuron_mean, neuron_norm, project
from nero.optim.balance import has_neurons
from nero.optim.reference import ReferenceNero
from support import references
from support.plain_nero import PlainNero

BOTH_PATHS = pytest.mark.parametrize("foreach", [False, True])
HALVES = pytest.mark.parametrize("halves", [(True, True), (True, False), (False, True), (False, False)])


@BOTH_PATHS
@HALVES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.999, 0.5, 0.0])
def test_matches_algorithm_1(beta, dtype, halves, foreach):
    params = references.parameters(dtype=dtype)
    reference = references.Nero(references.as_arrays(params), 0.03, beta, *halves)
    optimizer = Nero(params, lr=0.03, beta=beta, mean=halves[0], norm=halves[1], foreach=foreach)
    references.assert_follows(params, reference, optimizer)


@settings(max_examples=40)
@given(**references.ANY_STEP, beta=st.floats(0, 0.9999))
def test_matches_plain_reference_on_any_shape(seed, shape, lr, beta, foreach):
    params = references.parameters(seed, torch.float64, shapes=[shape, shape, (3, 2)])
    reference = PlainNero(params, lr, beta)
    references.assert_follows(params, reference, Nero(params, lr=lr, beta=beta, foreach=foreach), steps=3)


@pytest.mark.parametrize("beta", [0.999, 0.5, 0.0])
def test_plain_reference_matches_algorithm_1(beta):
    params = references.parameters(dtype=torch.float64)
    loops = references.Nero(references.as_arrays(params), 0.03, beta)
    references.assert_follows(params, loops, ReferenceNero(params, 0.03, beta))


def test_weights_are_balanced_at_construction_and_in_groups_added_later():
    first, later = references.parameters(0), references.parameters(1)
    biases = [bias.detach().clone() for bias in first + later if not has_neurons(bias)]
    optimizer = Nero(first)
    optimizer.add_param_group({"params": later, "lr": 0.1})
    for weight in first + later:
        if has_neurons(weight):
            torch.testing.assert_close(neuron_norm(weight), torch.ones(weight.shape[0]))
            torch.testing.assert_close(neuron_mean(weight), torch.zeros(weight.shape[0]))
    references.assert_same([bias for bias in first + later if not has_neurons(bias)], biases)
    assert len(optimizer.state) == len(first) + len(later)


def test_param_groups_have_their_own_settings():
    free, bound = references.draw(0, [(3, 4), (3, 4)])
    before = free.clone()
    optimizer = Nero([{"params": [free.requires_grad_()], "mean": False, "norm": False}, {"params": [bound]}])
    assert torch.equal(free, before)
    assert torch.equal(bound, project(references.draw(0, [(3, 4), (3, 4)])[1]))
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": [torch.ones(2)], "lr": -1.0})
    assert len(optimizer.param_groups) == 2


def test_scales_are_set_from_initial_parameters():
    weight, gains, biases, zeros = references.draw(0, [(4, 5), (6,), (7,), (3, 2)])
    gains.fill_(1.5)
    biases.zero_()
    zeros.zero_()
    optimizer = Nero([weight, gains, biases, zeros], norm=False, mean=False)
    scales = [state["scale"].item() for state in optimizer.state.values()]
    assert scales == pytest.approx([weight.norm(dim=1).mean().item(), 1.5, 0.01, 0.01])
    assert Nero([weight]).state[weight]["scale"].item() == pytest.approx(1)
    assert Nero([biases], sigma_b=1.0).state[biases]["scale"].item() == 1.0


def test_running_average_is_kept_between_steps():
    bias = torch.tensor([1.0])
    optimizer = Nero([bias], lr=0.1, beta=0.5)
    for grad in (3.0, 1.0):
        bias.grad = torch.tensor([grad])
        optimizer.step()
    # After the second step: avg = (0.5 * 0.5 * 9 + 0.5 * 1) / (1 - 0.25) = 11/3.
    torch.testing.assert_close(bias, torch.tensor([1 - 0.1 - 0.1 / math.sqrt(11 / 3)]))


@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entries_with_only_zero_gradients_do_not_move(dtype, foreach):
    params = references.parameters(dtype=dtype)
    optimizer = Nero(params, lr=0.1, foreach=foreach)
    before = [param.detach().clone() for param in params]
    references.run(params, optimizer, range(20))
    for old, new in zip(before, params, strict=True):
        if new.ndim:
            assert torch.equal(old[0], new[0])  # set_gradients gives the first row or entry a zero gradient
            assert not torch.equal(old[1:], new[1:])
        assert new.isfinite().all()


def test_parameter_without_gradient_keeps_step_count():
    used, unused = references.draw(0, [(3, 4), (3, 4)])
    optimizer = Nero([used, unused])
    used.grad = torch.ones_like(used)
    optimizer.step()
    assert optimizer.state[used]["step"] == 1
    assert optimizer.state[unused]["step"] == 0


def test_changed_learning_rate_takes_effect():
    weight = references.draw(0, [(2, 3)])[0]
    lr = torch.tensor(0.1)
    optimizer = Nero([weight], lr=lr)
    before = weight.clone()
    lr.zero_()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert torch.equal(weight, before)


def test_half_precision_step_is_computed_in_float32():
    params = references.parameters(dtype=torch.bfloat16)
    rounded = [param.detach().float().requires_grad_() for param in params]
    optimizer, exact = Nero(params, lr=0.1), Nero(rounded, lr=0.1)
    references.run(params, optimizer, range(1))
    references.run(rounded, exact, range(1))
    for half, full in zip(params, rounded, strict=True):
        torch.testing.assert_close(half.float(), full.detach(), rtol=2**-7, atol=2**-9)
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}


def test_load_state_dict_updates_lr_tensor_in_place():
    params = references.parameters()
    lr = torch.tensor(0.5)
    optimizer = Nero(params, lr=lr)
    saved = Nero(references.parameters(), lr=0.25).state_dict()
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr == 0.25


def test_loading_state_of_another_optimiser_raises():
    params = references.parameters()
    adam = torch.optim.Adam(params)
    references.run(params, adam, range(1))
    with pytest.raises(ValueError, match="state of parameter 0"):
        Nero(params).load_state_dict(adam.state_dict())
    with pytest.raises(ValueError, match="parameter group"):
        Nero(params).load_state_dict(Nero(params[:3]).state_dict())


def test_no_host_reads_guard_detects_item():
    with pytest.raises(AssertionError, match="_local_scalar_dense"), references.NoHostReads():
        torch.ones(()).item()


def test_closure_runs_with_grad_enabled():
    model = nn.Linear(3, 2)
    optimizer = Nero(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        return loss

    with torch.no_grad():
        first = optimizer.step(closure)
    for _ in range(200):
        last = optimizer.step(closure)
    assert last < 0.5 * first


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -0.1}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": math.inf}, "lr"),
        ({"lr": torch.tensor(-1.0)}, "lr"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ({"beta": 1.0}, "beta"),
        ({"beta": -0.1}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"sigma_b": 0.0}, "sigma_b"),
    ],
)
def test_invalid_settings_raise(setting, message):
    with pytest.raises(ValueError, match=message):
        Nero([torch.ones(2, 2)], **setting)


def test_zero_learning_rate_is_allowed():
    weight = torch.ones(2, 3)
    Nero([weight], lr=0.0)


def test_sparse_gradients_and_complex_parameters_raise():
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer = Nero(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="complex"):
        Nero([torch.ones(2, 2, dtype=torch.complex64)])


@BOTH_PATHS
def test_empty_tensors_are_supported(foreach):
    shapes = [(0, 5), (5, 0), (0,), (2, 3)]
    params = references.parameters(shapes=shapes)
    optimizer = Nero(params, foreach=foreach)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert params[3].isfinite().all()
    assert all(state["scale"] > 0 for state in optimizer.state.values())


def test_nan_gradient_propagates():
    weight, bias = references.draw(0, [(2, 3), (2,)])
    optimizer = Nero([weight, bias])
    weight.grad, bias.grad = torch.full_like(weight, math.nan), torch.tensor([math.nan, 1.0])
    optimizer.step()
    assert weight.isnan().all()
    assert bias.isnan().tolist() == [True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matches_algorithm_1_on_gpu(dtype):
    params = references.parameters(dtype=dtype, device="cuda")
    reference = references.Nero(references.as_arrays(params), 0.03, 0.999)
    references.assert_follows(params, reference, Nero(params, lr=0.03))
