"""Parameters of real networks that are not plain layers of neurons: frozen, zero, transposed, gains, pretrained."""

import copy
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel

from nero.optim import LAMB, Madam, Nero, constrained, neuron_mean, neuron_norm, project_
from nero.optim.balance import project, round_stochastically
from support import references
from support.fused_steps import DEVICE, make, set_gradients

PATHS: list[Any] = [
    pytest.param({"foreach": False}, id="single"),
    pytest.param({"foreach": True}, id="foreach"),
    pytest.param(
        {"fused": True},
        id="fused",
        marks=pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton or its interpreter"),
    ),
]
EVERY_PATH = pytest.mark.parametrize("path", PATHS)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)).to(DEVICE)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 0, zero: bool = True) -> None:
    for t in range(steps):
        x = references.draw(seed + t, [(16, 6)])[0].to(DEVICE)
        if zero:
            optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :3]).backward()
        optimizer.step()


def values(tensors: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


# ---------------------------------------------------------------------------------------------------- frozen


@EVERY_PATH
@pytest.mark.parametrize("kind", [Nero, LAMB, Madam])
def test_frozen_parameters_are_never_touched(kind: Callable[..., Any], path: dict[str, Any]) -> None:
    model = network()
    model[0].requires_grad_(False)
    before = values(model[0].parameters())
    optimizer = kind(model.parameters(), lr=0.1, **path)
    train(model, optimizer, 2)
    references.assert_same(values(model[0].parameters()), before)
    assert not any(param in optimizer.state for param in model[0].parameters())

    # Frozen in mid-training, with gradients of the last step left.
    model[2].requires_grad_(False)
    before = values(model[2].parameters())
    train(model, optimizer, 2, zero=False)
    references.assert_same(values(model[2].parameters()), before)


def test_constrained_optimisers_leave_frozen_parameters_alone() -> None:
    model = network()
    model[0].requires_grad_(False)
    before = values(model[0].parameters())
    optimizer = constrained(model.parameters(), torch.optim.SGD, lr=0.1)
    train(model, optimizer, 2)
    references.assert_same(values(model[0].parameters()), before)
    torch.testing.assert_close(neuron_norm(model[2].weight), torch.ones(5, device=DEVICE))


@EVERY_PATH
def test_unfrozen_parameter_is_projected_when_first_stepped(path: dict[str, Any]) -> None:
    frozen = nn.Parameter(make([(5, 7)])[0].detach())
    other = nn.Parameter(make([(3, 4)], seed=1)[0].detach())
    late = nn.Parameter(frozen.detach().clone())
    frozen.requires_grad_(False)
    optimizer = Nero([frozen, other], lr=0.1, **path)
    set_gradients([other], 0)
    optimizer.step()
    assert torch.equal(frozen, late)

    frozen.requires_grad_(True)
    set_gradients([frozen], 1)
    other.grad = None
    optimizer.step()
    reference = Nero([late], lr=0.1, **path)
    set_gradients([late], 1)
    reference.step()
    assert torch.equal(frozen, late)
    assert optimizer.state[frozen]["step"] == 1


@pytest.mark.parametrize("frozen_at_load", [False, True])
@pytest.mark.parametrize("frozen_at_save", [False, True])
def test_state_with_and_without_frozen_parameters_loads(frozen_at_save: bool, frozen_at_load: bool) -> None:
    model = network()
    model[0].requires_grad_(not frozen_at_save)
    optimizer = Nero(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    other = copy.deepcopy(model)
    other[0].requires_grad_(not frozen_at_load)
    loaded = Nero(other.parameters(), lr=0.1)
    loaded.load_state_dict(references.on_disk(optimizer.state_dict()))
    for each in (model, other):
        each.requires_grad_(True)
    train(model, optimizer, 2, seed=9)
    train(other, loaded, 2, seed=9)
    if not frozen_at_save or frozen_at_load:  # else construction has projected what the saved run had left alone
        references.assert_same(values(other.parameters()), values(model.parameters()))


# ------------------------------------------------------------------------------------------------ zero neurons


@EVERY_PATH
@given(lr=st.floats(1e-4, 0.1), zero=st.lists(st.booleans(), min_size=4, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_neurons_leave_zero_at_the_pace_of_the_learning_rate(
    path: dict[str, Any], lr: float, zero: list[bool], seed: int
) -> None:
    start = references.draw(seed, [(4, 6)])[0]
    start[zero] = 0
    weight = start.to(DEVICE).requires_grad_()
    optimizer = Nero([weight], lr=lr, **path)
    share = 1 - sum(zero) / 4
    scale = 0.01 if all(zero) else share
    reference = references.Nero(references.as_arrays([start]), lr, 0.999)
    for t in range(1, 4):
        set_gradients([weight], seed + t)
        reference.step(references.as_arrays([weight.grad]))
        optimizer.step()
        norms = neuron_norm(weight).tolist()
        for norm, started_at_zero in zip(norms, zero, strict=True):
            # With beta near one a step is at most sqrt(t) times its usual size.
            assert norm <= 1.01 * lr * scale * t**1.5 if started_at_zero else norm == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(
        weight.detach().cpu().double(), torch.from_numpy(reference.params[0]), rtol=2e-5, atol=2e-6
    )


@EVERY_PATH
def test_neurons_that_start_at_zero_have_norm_at_most_one(path: dict[str, Any]) -> None:
    weight = torch.zeros(3, 8, device=DEVICE, requires_grad=True)
    optimizer = Nero([weight], lr=1.0, sigma_b=1.0, **path)
    for t in range(4):
        set_gradients([weight], t)
        optimizer.step()
        assert (neuron_norm(weight) <= 1 + 1e-5).all()
    assert (neuron_norm(weight) > 1 - 1e-5).any()


@pytest.mark.parametrize("norm", [True, "initial"])
def test_state_does_not_depend_on_the_default_dtype(norm: bool | str) -> None:
    (weight,) = make([(3, 4)])
    with torch.no_grad():
        weight[1] = 0
    torch.set_default_dtype(torch.float64)
    try:
        state = Nero([weight], norm=norm).state[weight]
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert (state["norm"] < 0).tolist() == [False, True, False]


def test_low_rank_adapters_start_from_the_same_function() -> None:
    torch.manual_seed(0)
    base, down, up = nn.Linear(6, 3), nn.Linear(6, 2, bias=False), nn.Linear(2, 3, bias=False)
    base.requires_grad_(False)
    nn.init.zeros_(up.weight)
    x = references.draw(0, [(32, 6)])[0]
    before = base(x)
    optimizer = Nero([*base.parameters(), *down.parameters(), *up.parameters()], lr=0.01)
    assert torch.equal(base(x) + up(down(x)), before)
    F.mse_loss(base(x) + up(down(x)), x[:, :3]).backward()
    optimizer.step()
    assert 0 < (base(x) + up(down(x)) - before).norm() / before.norm() < 1e-3


# --------------------------------------------------------------------------------- gains, other dims, no neurons


@EVERY_PATH
@pytest.mark.parametrize("shape", [(96, 1, 1), (5, 1)])
def test_slices_of_one_entry_are_gains(path: dict[str, Any], shape: tuple[int, ...]) -> None:
    (start,) = references.draw(0, [shape])
    gain, vector = ((1e-6 * start).to(DEVICE).reshape(s).requires_grad_() for s in (shape, (-1,)))
    gains, vectors = Nero([gain], lr=0.1, **path), Nero([vector], lr=0.1, **path)
    assert torch.equal(gain.detach().cpu(), 1e-6 * start)
    for t in range(3):
        for param, optimizer in ((vector, vectors), (gain, gains)):
            set_gradients([param], t)
            optimizer.step()
    assert torch.equal(gain.flatten(), vector)


@EVERY_PATH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2, 2), (2, 5, 3)])
def test_tensors_without_neurons_step_as_vectors(
    path: dict[str, Any], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    (table,) = make([shape], dtype)
    if table.ndim == 4:
        table = table.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    vector = table.detach().reshape(-1).clone().requires_grad_()
    optimizers = [Nero([p], lr=0.1, neuron_dim=None, gain_penalty=0.1, **path) for p in (table, vector)]
    for t in range(3):
        set_gradients([table], t)
        assert table.grad is not None
        vector.grad = table.grad.reshape(-1).clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(table.flatten(), vector)


@EVERY_PATH
@pytest.mark.parametrize("shape", [(6, 4), (4, 3, 2, 2), (4, 1), (1, 4)])
@pytest.mark.parametrize("norm", [True, False, "initial"])
def test_neurons_along_another_dim_step_as_those_of_the_transpose(
    path: dict[str, Any], shape: tuple[int, ...], norm: bool | str
) -> None:
    (weight,) = make([shape])
    other = weight.detach().movedim(1, 0).contiguous().requires_grad_()
    optimizer = Nero([weight], lr=0.1, neuron_dim=1, norm=norm, **path)
    plain = Nero([other], lr=0.1, norm=norm, **path)
    for t in range(3):
        set_gradients([weight], t)
        assert weight.grad is not None
        other.grad = weight.grad.movedim(1, 0).clone(memory_format=torch.contiguous_format)
        optimizer.step()
        plain.step()
    torch.testing.assert_close(weight.movedim(1, 0), other, rtol=1e-6, atol=1e-7)
    if norm is True and min(shape) > 1:
        torch.testing.assert_close(neuron_norm(weight, 1), torch.ones(shape[1], device=DEVICE))
        assert neuron_mean(weight, 1).abs().max() < 1e-6


def test_transposed_convolution_has_balanced_filters() -> None:
    layer = nn.ConvTranspose2d(3, 5, 2).to(DEVICE)
    optimizer = Nero([{"params": [layer.weight], "neuron_dim": 1}, {"params": [layer.bias]}])
    layer(torch.ones(2, 3, 4, 4, device=DEVICE)).square().sum().backward()
    optimizer.step()
    norms = layer.weight.detach().transpose(0, 1).flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(5, device=DEVICE))


# --------------------------------------------------------------------------------------------------- fine-tuning


@EVERY_PATH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_initial_norms_are_kept_and_construction_changes_nothing(path: dict[str, Any], dtype: torch.dtype) -> None:
    weight, wide, bias = make([(6, 9), (2, 20_000), (6,)], dtype)
    with torch.no_grad():
        weight[0] = 0
        weight[1] *= 100
    before = values([weight, wide, bias])
    norms = [neuron_norm(param) for param in (weight, wide)]
    optimizer = Nero([weight, wide, bias], lr=0.1, norm="initial", **path)
    references.assert_same(values([weight, wide, bias]), before)
    for t in range(5):
        set_gradients([weight, wide, bias], t)
        optimizer.step()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(neuron_norm(weight)[1:], norms[0][1:], rtol=tolerance, atol=0)
    torch.testing.assert_close(neuron_norm(wide), norms[1], rtol=tolerance, atol=0)
    assert neuron_norm(weight)[0] > 0
    assert not torch.equal(weight, before[0])


def test_mean_can_be_subtracted_from_neurons_of_their_initial_norm() -> None:
    (weight,) = make([(4, 9)])
    norms = neuron_norm(weight)
    Nero([weight], norm="initial", mean=True)
    torch.testing.assert_close(neuron_norm(weight), norms)
    assert neuron_mean(weight).abs().max() < 1e-6


@given(
    seed=st.integers(0, 999),
    mean=st.booleans(),
    lengths=st.lists(st.sampled_from([1.0, -1.0, 3.5, -0.25, 1e-3, -math.inf]), min_size=5, max_size=5),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
)
@settings(deadline=None)
def test_projection_to_given_norms(seed: int, mean: bool, lengths: list[float], size: float) -> None:
    rows = size * references.draw(seed, [(5, 7)], torch.float64)[0]
    wanted = torch.tensor(lengths, dtype=torch.float64)
    result = project(rows, mean=mean, lengths=wanted)
    centred = rows - rows.mean(1, keepdim=True) if mean else rows
    norms = centred.norm(dim=1)
    kept = torch.where(wanted < 0, torch.minimum(norms, -wanted), wanted)
    torch.testing.assert_close(result, centred * (kept / norms).unsqueeze(1), rtol=1e-9, atol=1e-12)
    assert torch.equal(project(result, mean=mean, lengths=wanted), result)


def test_state_of_growing_neurons_loads_into_weights_that_are_not_zero() -> None:
    model = network()
    nn.init.zeros_(model[4].weight)
    optimizer = Nero(model.parameters(), lr=0.1)
    train(model, optimizer, 3)
    other = copy.deepcopy(model)
    resumed = Nero(other.parameters(), lr=0.1)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(references.on_disk(optimizer.state_dict()))
    train(model, optimizer, 3, seed=5)
    train(other, resumed, 3, seed=5)
    references.assert_same(values(other.parameters()), values(model.parameters()))
    fresh = Nero(network().parameters(), lr=0.1)
    fresh.load_state_dict(Nero(network(1).parameters()).state_dict())


# ------------------------------------------------------------------------------------ weight decay and rounding


@EVERY_PATH
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_weight_decay_is_decoupled(path: dict[str, Any], tensor_lr: bool) -> None:
    free, other = (make([(4, 5), (6,)], seed=s) for s in (0, 0))
    lr: Any = torch.tensor(0.1, device=DEVICE) if tensor_lr else 0.1
    settings = {"norm": False, "mean": False, **path}
    decaying, plain = Nero(free, lr=lr, weight_decay=0.5, **settings), Nero(other, lr=lr, **settings)
    for t in range(3):
        set_gradients(free, t)
        set_gradients(other, t)
        decaying.step()
        with torch.no_grad():
            for param in other:
                param.mul_(1 - 0.1 * 0.5)
        plain.step()
    for mine, theirs in zip(free, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_weight_decay_of_balanced_neurons_is_refused_by_name() -> None:
    model = network()
    before = values(model.parameters())
    groups = [{"params": [("first", model[0].weight)]}, {"params": [("last", model[4].weight)], "weight_decay": 0.1}]
    with pytest.raises(ValueError, match=r"weight_decay.*norm=False.*'last' of group 1, shape \(3, 5\)"):
        Nero(groups)
    references.assert_same(values(model.parameters()), before)
    Nero([{"params": [model[4].bias], "weight_decay": 0.1}])


def test_stochastic_rounding_is_unbiased() -> None:
    torch.manual_seed(0)
    numbers = torch.tensor([1.0, 1 + 2**-9, -3.14159, 1e-30, 0.0, math.inf, -math.inf, math.nan]).repeat(20_000, 1)
    rounded = round_stochastically(numbers).float()
    exact = torch.tensor([0, 4, 5, 6])
    torch.testing.assert_close(rounded[:, exact], numbers[:, exact])
    assert rounded[:, 7].isnan().all()
    torch.testing.assert_close(rounded[:, 1:3].mean(0), numbers[0, 1:3], rtol=2e-5, atol=0)
    assert (rounded[:, 1] == 1).float().mean() == pytest.approx(0.75, abs=0.02)


@EVERY_PATH
@pytest.mark.parametrize("shape", [(64, 32), (1, 3000), (1, 8200), (512,)])
def test_stochastic_rounding_keeps_small_steps(path: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Many steps too small for bfloat16 along one direction arrive on average where float32 arrives."""
    torch.manual_seed(0)
    errors, moved = {}, {}
    (exact,) = make([shape])
    (direction,) = references.draw(1, [shape])
    for rounding in (False, True):
        weight = exact.detach().bfloat16().requires_grad_()
        optimizer = Nero([weight], lr=1e-3, mean=False, norm=False, stochastic_rounding=rounding, **path)
        start = weight.detach().clone()
        reference = start.float().requires_grad_()
        follow = Nero([reference], lr=1e-3, mean=False, norm=False, foreach=False)
        for t in range(8):
            weight.grad = direction.to(DEVICE, torch.bfloat16)
            reference.grad = weight.grad.float()
            optimizer.step()
            follow.step()
            if t == 0:
                moved[rounding] = (weight != start).float().mean().item()
        change = (reference - start.float()).detach()
        errors[rounding] = (((weight - start.float()).detach() * change).sum() / change.square().sum() - 1).abs().item()
    assert errors[True] < 0.1 < 0.3 < errors[False]
    assert moved[True] > 0


# ----------------------------------------------------------------------------------- averaged and pruned weights


def test_averaged_weights_can_be_projected() -> None:
    model = network()
    optimizer = Nero([{"params": model[:4].parameters()}, {"params": model[4].parameters(), "norm": False}], lr=0.5)
    averaged = AveragedModel(model)
    for t in range(3):
        train(model, optimizer, 1, seed=t)
        averaged.update_parameters(model)
    last = averaged.module[4].weight.detach().clone()
    assert (neuron_norm(averaged.module[0].weight) < 0.999).any()
    optimizer.project_(zip(model.parameters(), averaged.module.parameters(), strict=True))
    torch.testing.assert_close(neuron_norm(averaged.module[0].weight), torch.ones(8, device=DEVICE))
    assert neuron_norm(averaged.module[4].weight).sub(1).abs().max() > 0.01
    torch.testing.assert_close(averaged.module[4].weight, project(last, norm=False))
    with pytest.raises(ValueError, match="not a parameter of this optimiser"):
        optimizer.project_([(averaged.module[0].weight, model[0].weight)])


def test_parameters_changed_by_hand_can_be_projected() -> None:
    model = network()
    optimizer = Nero(model.parameters(), norm="initial")
    norms = neuron_norm(model[0].weight)
    with torch.no_grad():
        model[0].weight.mul_(3)
    optimizer.project_()
    torch.testing.assert_close(neuron_norm(model[0].weight), norms)


@given(seed=st.integers(0, 99), keep=st.floats(0, 1))
@settings(deadline=None)
def test_pruned_entries_stay_zero_in_balanced_neurons(seed: int, keep: float) -> None:
    (weight,) = references.draw(seed, [(5, 4, 3)])
    mask = torch.rand(5, 4, 3, generator=torch.Generator().manual_seed(seed)) < keep
    project_(weight, mask=mask)
    assert (weight[~mask] == 0).all()
    for row, kept in zip(weight.flatten(1), mask.flatten(1), strict=True):
        if kept.sum() >= 2:
            assert row[kept].sum().abs() < 1e-5
            assert row.norm().item() == pytest.approx(1, abs=1e-5)


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"norm": "start"}, 'norm must be True, False or "initial"'),
        ({"neuron_dim": -1}, "neuron_dim must be None or an integer from 0"),
        ({"neuron_dim": 2}, r"neuron_dim 2 is not a dim of this parameter.*shape \(8, 6\)"),
        ({"differentiable": True}, "differentiable=True is not supported"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"weight_decay": 0.1}, "norm=False"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_changes(setting: dict[str, Any], message: str) -> None:
    model, later = network(), network(1)
    before = values([*model.parameters(), *later.parameters()])
    groups = [{"params": later.parameters()}, {"params": model.parameters(), **setting}]
    with pytest.raises(ValueError, match=message):
        Nero(groups)
    references.assert_same(values([*model.parameters(), *later.parameters()]), before)
    optimizer = Nero(later.parameters())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": model.parameters(), **setting})
    assert len(optimizer.param_groups) == 1
    references.assert_same(values(model.parameters()), before[: len(list(model.parameters()))])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int64])
def test_unsupported_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    param = torch.zeros(2, 3).to(dtype)
    with pytest.raises(RuntimeError, match=rf"float32.*not {dtype}.*'scale' of group 0, shape \(2, 3\)"):
        Nero([("scale", param)])


def test_fused_is_refused_on_meta_tensors() -> None:
    with torch.device("meta"):
        layer = nn.Linear(3, 4)
    for kind in (Nero, LAMB, Madam):
        with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point Tensors of"):
            kind(layer.parameters(), fused=True)
        kind(layer.parameters())


def test_one_cycle_schedule_says_what_to_pass() -> None:
    optimizer = Nero(network().parameters())
    with pytest.raises(ValueError, match="cycle_momentum"):
        OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=10, cycle_momentum=False)
    optimizer.step()
    scheduler.step()


def test_closure_returns_its_loss() -> None:
    model = network()
    optimizer = Nero(model.parameters())
    x = references.draw(0, [(4, 6)])[0].to(DEVICE)

    def closure() -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).shape == ()
    assert optimizer.step() is None
