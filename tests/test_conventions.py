"""Nero, LAMB and Madam follow the conventions of torch.optim that its users rely on."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import SWALR

from nero.optim import LAMB, Madam, Nero, neuron_mean, neuron_norm
from nero.optim.balance import has_neurons
from optim.test_every_optimiser import BOTH_PATHS, EVERY_KIND, EVERY_OPTIMISER, Kind, Make
from support import references

# A non-default value for every setting.
OTHERWISE: dict[Kind, dict[str, Any]] = {
    Nero: {
        "lr": 0.05,
        "beta": 0.5,
        "mean": False,
        "norm": False,
        "sigma_b": 0.5,
        "neuron_dim": None,
        "gain_penalty": 0.3,
        "stochastic_rounding": True,
        "maximize": True,
        "foreach": True,
        "fused": False,
        "capturable": False,
    },
    LAMB: {
        "lr": 0.05,
        "betas": (0.0, 0.9),
        "eps": 0.1,
        "clamp_value": 0.5,
        "debias": True,
        "maximize": True,
        "foreach": True,
        "fused": False,
        "capturable": False,
    },
    Madam: {
        "lr": 0.05,
        "beta": 0.5,
        "g_bound": 0.7,
        "p_scale": 0.8,
        "maximize": True,
        "foreach": True,
        "fused": False,
        "capturable": False,
    },
}
# These parameters have neurons that keep their norm, and no step is differentiable: see test_real_networks.py.
REFUSED = {Nero: {"weight_decay", "differentiable"}}
# Settings that change how a step is computed, but not its result.
ONLY_HOW = {"foreach", "fused", "capturable", "stochastic_rounding"}  # the last one in float32
EVERY_SETTING = pytest.mark.parametrize(
    ("kind", "setting"),
    [pytest.param(kind, name, id=f"{kind.__name__}-{name}") for kind, names in OTHERWISE.items() for name in names],
)
LATER = (
    "maximize", "foreach", "fused", "capturable", "gain_penalty", "debias", "clamp_value", "sigma_b", "neuron_dim",
    "weight_decay", "stochastic_rounding", "differentiable",
)  # fmt: skip


def parameters(seed: int = 0) -> list[Tensor]:
    """The reference parameters, with one tensor set to ones, as gains are."""
    params = references.parameters(seed)
    params[2].detach().fill_(1)
    return params


# ------------------------------------------------------------------------------------------------------ settings


@EVERY_KIND
def test_every_constructor_argument_is_a_param_group_key(kind: Kind) -> None:
    arguments = set(inspect.signature(kind).parameters) - {"params"}
    optimizer = kind(parameters())
    assert arguments == optimizer.defaults.keys() == optimizer.param_groups[0].keys() - {"params"}
    assert arguments == OTHERWISE[kind].keys() | REFUSED.get(kind, set())
    assert all(optimizer.defaults[name] != value for name, value in OTHERWISE[kind].items())


@EVERY_SETTING
def test_setting_can_be_overridden_per_param_group(kind: Kind, setting: str) -> None:
    own = {setting: OTHERWISE[kind][setting]}
    first, second = parameters(0), parameters(1)
    optimizer = kind([{"params": first, **own}, {"params": second}])
    assert optimizer.param_groups[0][setting] == own[setting]
    assert optimizer.param_groups[1][setting] == optimizer.defaults[setting] != own[setting]

    alone = parameters(0), parameters(1)
    for params, single in zip(alone, (kind(alone[0], **own), kind(alone[1])), strict=True):
        references.run(params, single, range(3))
    for t in range(3):
        references.set_gradients(first, seed=t)
        references.set_gradients(second, seed=t)
        optimizer.step()
    references.assert_same(first + second, alone[0] + alone[1])


@EVERY_SETTING
def test_load_state_dict_restores_non_default_setting(kind: Kind, setting: str) -> None:
    params, plain = parameters(), parameters()
    optimizer = kind(params, **{setting: OTHERWISE[kind][setting]})
    references.run(params, optimizer, range(3))
    saved, weights = references.on_disk(optimizer.state_dict()), references.values(params)
    references.run(params, optimizer, range(3, 6))

    resumed = parameters(1)
    other = kind(resumed)
    other.load_state_dict(saved)
    assert other.state_dict()["param_groups"] == saved["param_groups"]
    references.copy_into_(resumed, weights)
    references.run(resumed, other, range(3, 6))
    references.assert_same(resumed, params)

    references.run(plain, kind(plain), range(6))
    changed = any(not torch.allclose(a, b, rtol=1e-4) for a, b in zip(params, plain, strict=True))
    assert changed == (setting not in ONLY_HOW), "else this test says nothing of the setting"


@EVERY_KIND
@pytest.mark.parametrize("way", ["pickle", "state_dict"])
def test_loading_old_state_fills_missing_settings_with_defaults(kind: Kind, way: str) -> None:
    params = parameters()
    optimizer = kind(params)
    references.run(params, optimizer, range(2))
    if way == "pickle":
        state = copy.deepcopy(optimizer.__getstate__())
        for settings in (state["defaults"], *state["param_groups"]):
            for name in LATER:
                settings.pop(name, None)
        old = kind.__new__(kind)
        old.__setstate__(state)
        resumed = old.param_groups[0]["params"]
    else:
        saved = references.on_disk(optimizer.state_dict())
        for name in LATER:
            saved["param_groups"][0].pop(name, None)
        resumed = parameters()
        old = kind(resumed)
        old.load_state_dict(saved)
        references.copy_into_(resumed, params)
    assert old.param_groups[0].keys() == optimizer.param_groups[0].keys()
    for name in set(LATER) & optimizer.defaults.keys():
        assert old.param_groups[0][name] == optimizer.defaults[name]
    references.run(params, optimizer, range(2, 4))
    references.run(resumed, old, range(2, 4))
    references.assert_same(resumed, params)


@EVERY_KIND
def test_repr_includes_every_setting(kind: Kind) -> None:
    text = repr(kind(parameters()))
    assert kind.__name__ in text
    assert all(f"{name}: " in text for name in OTHERWISE[kind])


BETA: dict[Kind, Callable[[float], dict[str, Any]]] = {
    Nero: lambda beta: {"beta": beta},
    LAMB: lambda beta: {"betas": (0.9, beta)},
    Madam: lambda beta: {"beta": beta},
}


@EVERY_KIND
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_invalid_settings_raise_and_leave_optimiser_unchanged(kind: Kind, bad: float) -> None:
    params, added = parameters(), parameters(1)
    optimizer, before = kind(params), references.values(added)
    saved = copy.deepcopy(optimizer.state_dict())
    for message, settings in [
        ("lr", {"lr": bad}),
        ("lr", {"lr": torch.tensor(bad)}),
        ("Tensor lr must be 1-element", {"lr": torch.full((2,), 0.1)}),
        ("Tensor lr must be 1-element", {"lr": torch.ones(0)}),
        ("beta", BETA[kind](bad)),
        ("beta", BETA[kind](1.0)),
    ]:
        with pytest.raises(ValueError, match=message):
            kind(added, **settings)
        with pytest.raises(ValueError, match=message):
            optimizer.add_param_group({"params": added, **settings})
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], **settings}]})
        references.assert_same(added, before)
        assert len(optimizer.state) == len(params)
        assert optimizer.state_dict()["param_groups"] == saved["param_groups"]


# ---------------------------------------------------------------------------------------------------- parameters


@EVERY_KIND
def test_params_accepts_every_form_torch_optimisers_accept(kind: Kind) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": part.parameters()} for part in model.children() if list(part.parameters())]

    def named_groups(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [pair]} for pair in model.named_parameters()]

    models = []
    forms: list[Callable[[nn.Module], Any]] = [
        lambda model: list(model.parameters()),
        lambda model: model.parameters(),
        lambda model: (param for param in model.parameters()),
        lambda model: model.named_parameters(),
        groups,
        named_groups,
    ]
    for form in forms:
        models.append(references.network())
        optimizer = kind(form(models[-1]))
        references.train(models[-1], optimizer, range(2))
        references.assert_same(list(models[-1].parameters()), list(models[0].parameters()))
        if form in (forms[3], named_groups):
            names = [name for group in optimizer.param_groups for name in group["param_names"]]
            assert names == [name for name, _ in models[-1].named_parameters()]
            saved = [name for group in optimizer.state_dict()["param_groups"] for name in group["param_names"]]
            assert saved == names


@EVERY_KIND
def test_unsupported_parameters_raise_and_leave_optimiser_unchanged(kind: Kind) -> None:
    (weight, added) = references.draw(0, [(3, 4), (3, 4)])
    optimizer = kind([weight])
    before = references.values([weight, added])
    refused: list[tuple[Any, type[Exception], str]] = [
        ([added, torch.ones(3, dtype=torch.int64)], RuntimeError, "not torch.int64"),
        ([added, torch.ones(3, dtype=torch.complex64)], RuntimeError, "not torch.complex64"),
        ([added, torch.ones(3, requires_grad=True) * 2], ValueError, "non-leaf"),
        ([added, "weight"], TypeError, "str"),
        ({added}, TypeError, "ordered collections"),
    ]
    refused_next_to_others: list[tuple[Any, type[Exception], str]] = [
        ([added, weight], ValueError, "more than one parameter group"),
        ([("named", added)], ValueError, "with/without names"),
    ]
    for params, error, message in refused + refused_next_to_others:
        with pytest.raises(error, match=message):
            optimizer.add_param_group({"params": params})
        assert len(optimizer.param_groups) == len(optimizer.state) == 1
    for params, error, message in refused:
        with pytest.raises(error, match=message):
            kind([{"params": params}])
    references.assert_same([weight, added], before)
    with pytest.raises(ValueError, match="empty parameter list"):
        kind([])
    with pytest.raises(TypeError, match="iterable"):
        kind(weight)


@EVERY_KIND
@BOTH_PATHS
def test_duplicate_parameter_warns_and_is_stepped_once(kind: Kind, foreach: bool) -> None:
    (tied,), (single,) = references.draw(0, [(3, 4)]), references.draw(0, [(3, 4)])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = kind([("a", tied), ("b", tied)], foreach=foreach)
    expected = kind([single], foreach=foreach)
    for t in range(3):
        references.set_gradients([tied], seed=t)
        references.set_gradients([single], seed=t)
        optimizer.step()
        expected.step()
    references.assert_same([tied], [single])
    assert optimizer.state[tied]["step"] == 3
    assert len(optimizer.param_groups[0]["param_names"]) == 1


def test_nero_add_param_group_projects_only_the_new_group() -> None:
    params, later = parameters(0), parameters(1)
    optimizer = Nero(params)
    references.run(params, optimizer, range(3))
    weights, state = references.values(params), copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.add_param_group({"params": later})
    references.assert_same(params, weights)
    for number, entries in state.items():
        references.assert_same(list(optimizer.state[params[number]].values()), list(entries.values()))
    for weight in later:
        assert optimizer.state[weight]["step"] == 0
        if has_neurons(weight):
            torch.testing.assert_close(neuron_norm(weight), torch.ones(weight.shape[0]))
            torch.testing.assert_close(neuron_mean(weight), torch.zeros(weight.shape[0]))


@EVERY_KIND
@BOTH_PATHS
def test_unfrozen_parameter_first_step_matches_fresh_optimiser(kind: Kind, foreach: bool) -> None:
    model, fresh = references.network(), references.network()
    frozen = model[4].weight.requires_grad_(False)
    optimizer = kind(model.parameters(), foreach=foreach)
    before = frozen.detach().clone()
    references.train(model, optimizer, range(5))
    references.assert_same([frozen], [before])
    assert frozen not in optimizer.state
    assert optimizer.state[model[4].bias]["step"] == 5

    frozen.requires_grad_(True)
    fresh.load_state_dict(model.state_dict())
    references.train(model, optimizer, range(5, 6))
    references.loss_of(fresh, seed=5).backward()
    kind([fresh[4].weight], foreach=foreach).step()
    assert not torch.equal(frozen, before)
    torch.testing.assert_close(frozen, fresh[4].weight)
    assert optimizer.state[frozen]["step"] == 1


# -------------------------------------------------------------------------------------------------------- a step


@EVERY_OPTIMISER
@BOTH_PATHS
@pytest.mark.parametrize("shape", [(), (1,)])
def test_in_place_change_to_tensor_lr_takes_effect(make: Make, foreach: bool, shape: tuple[int, ...]) -> None:
    lr = torch.full(shape, 0.01)
    params, others = parameters(), parameters()
    optimizer, other = make(params, lr=lr, foreach=foreach), make(others, lr=0.01, foreach=foreach)
    for t, rate in enumerate((0.01, 0.04, 0.0)):
        lr.fill_(rate)
        other.param_groups[0]["lr"] = rate
        references.set_gradients(params, seed=t)
        references.set_gradients(others, seed=t)
        optimizer.step()
        other.step()
        references.assert_same(params, others)
        assert optimizer.param_groups[0]["lr"] is lr


@EVERY_OPTIMISER
def test_closure_runs_with_grad_enabled_and_step_returns_its_loss(make: Make) -> None:
    model, twin = references.network(), references.network()
    optimizer, expected = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    losses = []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        losses.append(references.loss_of(model, seed=3))
        losses[-1].backward()
        return losses[-1]

    with torch.no_grad():
        assert optimizer.step(closure) is losses[0]  # type: ignore[arg-type]
        assert not torch.is_grad_enabled()
    references.loss_of(twin, seed=3).backward()
    assert expected.step() is None
    references.assert_same(list(model.parameters()), list(twin.parameters()))
    assert len(losses) == 1


@EVERY_OPTIMISER
def test_step_pre_and_post_hooks_run_in_order(make: Make) -> None:
    params = parameters()
    optimizer = make(params, lr=0.01)
    seen: list[tuple[str, float]] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda which, args, kwargs: seen.append((name, float(which.state[params[0]]["step"])))

    handles = [
        optimizer.register_step_pre_hook(hook("before")),
        optimizer.register_step_post_hook(hook("after")),
        register_optimizer_step_pre_hook(hook("before any")),
        register_optimizer_step_post_hook(hook("after any")),
    ]
    try:
        references.run(params, optimizer, range(1))
    finally:
        for handle in handles:
            handle.remove()
    references.run(params, optimizer, range(1, 2))
    assert seen == [("before any", 0), ("before", 0), ("after", 1), ("after any", 1)]


@EVERY_KIND
@BOTH_PATHS
def test_zero_grad_sets_gradients_to_zero_or_none(kind: Kind, foreach: bool) -> None:
    params = parameters()
    optimizer = kind(params, foreach=foreach)
    references.set_gradients(params, seed=0)
    some = [param for param in params if param.grad is not None]
    optimizer.zero_grad(set_to_none=False)
    assert all(param.grad is not None and not param.grad.any() for param in some)
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


@EVERY_OPTIMISER
@BOTH_PATHS
def test_maximize_is_equivalent_to_minimising_negated_loss(make: Make, foreach: bool) -> None:
    up, down = references.network(), references.network()
    climb = make(up.parameters(), lr=0.02, maximize=True, foreach=foreach)
    descend = make(down.parameters(), lr=0.02, foreach=foreach)
    for t in range(4):
        for model, optimizer, sign in ((up, climb, 1), (down, descend, -1)):
            optimizer.zero_grad()
            (sign * references.loss_of(model, seed=t)).backward()
            optimizer.step()
    references.assert_same(list(up.parameters()), list(down.parameters()))
    assert references.loss_of(up, seed=4) > references.loss_of(references.network(), seed=4)


@EVERY_KIND
def test_sparse_gradient_raises_before_any_parameter_is_updated(kind: Kind) -> None:
    first, table = parameters(), nn.Embedding(4, 3, sparse=True)
    optimizer = kind([{"params": first}, {"params": table.parameters()}])
    references.set_gradients(first, seed=0)
    table(torch.tensor([1, 2])).sum().backward()
    before = references.values(first)
    with pytest.raises(RuntimeError, match=f"{kind.__name__} does not support sparse gradients"):
        optimizer.step()
    references.assert_same(first, before)
    assert all(state["step"] == 0 for state in optimizer.state.values())


@EVERY_KIND
def test_grad_scaler_skips_step_on_overflow(kind: Kind) -> None:
    model, twin = references.network(), references.network()
    optimizer, expected = kind(model.parameters()), kind(twin.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t, overflows in enumerate((False, True, False, False)):
        optimizer.zero_grad()
        scaler.scale(references.loss_of(model, seed=t) * (math.inf if overflows else 1)).backward()
        before = references.values(list(model.parameters()))
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            references.assert_same(list(model.parameters()), before)
        else:
            references.train(twin, expected, range(t, t + 1))
    references.assert_same(list(model.parameters()), list(twin.parameters()))
    assert optimizer.state[model[0].weight]["step"] == 3


# ------------------------------------------------------------------------------------------------ dtypes, layouts


@EVERY_KIND
@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_use_float32_arithmetic_and_state(
    kind: Kind, foreach: bool, dtype: torch.dtype
) -> None:
    # Sums of squares of these rows, about 70,000, exceed the range of float16, and its precision long before that.
    shapes = [(2, 70_000), (2, 70_000), (70_000,)]
    halves = references.draw(0, shapes, dtype)
    wholes = [tensor.float() for tensor in halves]
    optimizer, exact = kind(halves, lr=0.5, foreach=foreach), kind(wholes, lr=0.5, foreach=foreach)
    references.copy_into_(wholes, halves)  # Nero's projections differ by rounding
    for half, whole, grad in zip(halves, wholes, references.draw(1, shapes, dtype), strict=True):
        half.grad, whole.grad = grad, grad.float()
    optimizer.step()
    exact.step()
    for half, whole in zip(halves, wholes, strict=True):
        torch.testing.assert_close(half, whole.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
        for name, value in optimizer.state[half].items():
            assert value.dtype == torch.float32
            torch.testing.assert_close(value, exact.state[whole][name], rtol=1e-3 if name == "scale" else 1e-6, atol=0)


@EVERY_KIND
@BOTH_PATHS
def test_expanded_gradient_gives_same_step_as_dense_gradient(kind: Kind, foreach: bool) -> None:
    shapes = [(3, 4), (2, 3, 2, 2), (5,), ()]
    ours, theirs = references.parameters(shapes=shapes), references.parameters(shapes=shapes)
    optimizer, expected = kind(ours, foreach=foreach), kind(theirs, foreach=foreach)
    for a, b in zip(ours, theirs, strict=True):
        a.grad = torch.tensor(0.7).expand_as(a)
        b.grad = torch.full_like(b, 0.7)
    optimizer.step()
    expected.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@EVERY_KIND
@BOTH_PATHS
def test_step_is_independent_of_memory_layout(kind: Kind, foreach: bool) -> None:
    shape = (4, 3, 2, 2, 2)
    flat = torch.zeros(2 * 96)
    spread = torch.zeros(4, 3, 2, 2, 4)
    laid: list[Tensor] = [
        torch.zeros(shape),
        torch.zeros(shape).contiguous(memory_format=torch.channels_last_3d),
        torch.zeros(shape[::-1]).permute(4, 3, 2, 1, 0),
        flat[:96].view(shape),  # these two share their storage
        flat[96:].view(shape),
        spread[..., ::2],  # with gaps, which belong to no parameter
    ]
    (weight,) = references.draw(0, [shape])
    for tensor in laid:
        tensor.copy_(weight)
    optimizer = kind(laid, foreach=foreach)
    strides = [tensor.stride() for tensor in laid]
    for t in range(3):
        (grad,) = references.draw(10 + t, [shape])
        for i, tensor in enumerate(laid):
            tensor.grad = torch.empty_like(laid[(i + t) % 3]).copy_(grad)
        optimizer.step()
    for tensor, stride in zip(laid, strides, strict=True):
        assert tensor.stride() == stride
        torch.testing.assert_close(tensor, laid[0])
    assert not spread[..., 1::2].any()
    assert not torch.equal(laid[0], weight)


@EVERY_KIND
@BOTH_PATHS
def test_empty_parameters_can_be_stepped_and_checkpointed(kind: Kind, foreach: bool) -> None:
    shapes = [(0, 5), (5, 0), (0,), (2, 3)]
    params = references.parameters(shapes=shapes)
    optimizer = kind(params, foreach=foreach)
    other = kind(references.parameters(1, shapes=shapes), foreach=foreach)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    other.load_state_dict(references.on_disk(optimizer.state_dict()))
    for ours, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        references.assert_same(list(ours.values()), list(theirs.values()))
        assert ours["step"] == 1
        assert all(value.isfinite().all() for value in ours.values())


# ----------------------------------------------------------------------------------------------------- schedules

SCHEDULES: dict[type, Callable[[Optimizer], Any]] = {
    lr_scheduler.LambdaLR: partial(lr_scheduler.LambdaLR, lr_lambda=lambda t: 1 / (1 + t)),
    lr_scheduler.MultiplicativeLR: partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda t: 0.9),
    lr_scheduler.StepLR: partial(lr_scheduler.StepLR, step_size=2),
    lr_scheduler.MultiStepLR: partial(lr_scheduler.MultiStepLR, milestones=[1, 3]),
    lr_scheduler.ConstantLR: partial(lr_scheduler.ConstantLR, total_iters=2),
    lr_scheduler.LinearLR: partial(lr_scheduler.LinearLR, total_iters=3),
    lr_scheduler.ExponentialLR: partial(lr_scheduler.ExponentialLR, gamma=0.9),
    lr_scheduler.PolynomialLR: partial(lr_scheduler.PolynomialLR, total_iters=4, power=2),
    lr_scheduler.CosineAnnealingLR: partial(lr_scheduler.CosineAnnealingLR, T_max=4),
    lr_scheduler.CosineAnnealingWarmRestarts: partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    lr_scheduler.CyclicLR: partial(
        lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2, cycle_momentum=False
    ),
    lr_scheduler.OneCycleLR: partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=8, cycle_momentum=False),
    lr_scheduler.ReduceLROnPlateau: partial(lr_scheduler.ReduceLROnPlateau, patience=1),
    lr_scheduler.SequentialLR: lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.ExponentialLR(optimizer, gamma=0.5)],
        milestones=[2],
    ),
    lr_scheduler.ChainedScheduler: lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, total_iters=2), lr_scheduler.ExponentialLR(optimizer, gamma=0.5)]
    ),
    SWALR: partial(SWALR, swa_lr=0.001, anneal_epochs=3),
}


def scheduled(optimizer: Optimizer, schedule: Callable[[Optimizer], Any], params: list[Tensor]) -> Iterator[float]:
    """Take six steps under a schedule and yield the learning rate of each."""
    scheduler = schedule(optimizer)
    for t in range(6):
        references.set_gradients(params, seed=t)
        yield float(optimizer.param_groups[0]["lr"])
        optimizer.step()
        metric = [1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []
        scheduler.step(*metric)


def test_every_torch_lr_scheduler_is_covered() -> None:
    classes = [value for value in vars(lr_scheduler).values() if isinstance(value, type)]
    bases = {lr_scheduler.LRScheduler, lr_scheduler._LRScheduler}
    known = {value for value in classes if issubclass(value, lr_scheduler.LRScheduler)} - bases
    assert known | {SWALR} == SCHEDULES.keys()


@EVERY_KIND
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=[schedule.__name__ for schedule in SCHEDULES])
@pytest.mark.parametrize("in_tensor", [False, True])
def test_every_lr_scheduler_sets_the_learning_rate_of_each_step(
    kind: Kind, schedule: Callable[..., Any], in_tensor: bool
) -> None:
    shapes = [(3, 4), (5,)]
    (plain,), params, by_hand = references.draw(0, [()]), *(references.parameters(shapes=shapes) for _ in range(2))
    rates = list(scheduled(torch.optim.SGD([plain], lr=0.05), schedule, [plain]))
    assert len(set(rates)) > 1

    lr = torch.tensor(0.05) if in_tensor else 0.05
    optimizer, other = kind(params, lr=lr), kind(by_hand)
    assert list(scheduled(optimizer, schedule, params)) == pytest.approx(rates, rel=1e-6)
    for t, rate in enumerate(rates):
        other.param_groups[0]["lr"] = rate
        references.run(by_hand, other, range(t, t + 1))
    for ours, theirs in zip(params, by_hand, strict=True):
        torch.testing.assert_close(ours, theirs)
    if in_tensor:
        assert optimizer.param_groups[0]["lr"] is lr
