"""What optimisers refuse at construction, and learning rates that are set later."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from nero.optim import LAMB, Madam, Nero, Split, constrained
from support.references import NoHostReads

KINDS: Any = {"nero": Nero, "lamb": LAMB, "madam": Madam}
EVERY_KIND: Any = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
FLAGS = [
    *((kind, name) for kind in KINDS.values() for name in ("maximize", "capturable")),
    *((Nero, name) for name in ("mean", "norm", "stochastic_rounding", "differentiable")),
    (LAMB, "debias"),
]
NUMBERS = [
    *((kind, "lr") for kind in KINDS.values()),
    *((Nero, name) for name in ("beta", "sigma_b", "gain_penalty", "weight_decay")),
    *((LAMB, name) for name in ("eps", "clamp_value")),
    *((Madam, name) for name in ("beta", "g_bound", "p_scale")),
]
RATES = [math.nan, math.inf, -math.inf, -0.1, True, False, "0.1", "", None, 1j, [0.1], torch.ones(2)]


def params() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (5, 3), (4,))]


def refused(kind: Callable[..., Optimizer], message: str, name: str, value: object) -> None:
    """As an argument, in a param group, and in one that is added, and nothing may have changed."""
    given, before = params(), params()
    with pytest.raises(ValueError, match=message):
        kind(given, **{name: value})
    with pytest.raises(ValueError, match=message):
        kind([{"params": given[:1]}, {"params": given[1:], name: value}])
    assert all(map(torch.equal, given, before))
    optimizer = kind(given[:1])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": given[1:], name: value})
    assert len(optimizer.param_groups) == 1
    assert all(map(torch.equal, given[1:], before[1:]))


@pytest.mark.parametrize(("kind", "name"), FLAGS)
@pytest.mark.parametrize("value", ["no", "off", "False", 0, 1, 1.0, [], np.True_, torch.tensor(True)], ids=repr)
def test_flags_are_booleans(kind: Callable[..., Optimizer], name: str, value: object) -> None:
    refused(kind, f"^{name} must be True(,| or) False.*, not ", name, value)


@pytest.mark.parametrize(("norm", "means"), [(True, [True, False, True]), ("initial", [False, False, False])])
def test_mean_of_none_depends_on_the_norm_in_groups_too(norm: Any, means: list[bool]) -> None:
    first, second, third = params()
    groups = [{"params": first, "mean": None}, {"params": second, "mean": None, "norm": "initial"}, {"params": third}]
    assert [group["mean"] for group in Nero(groups, norm=norm).param_groups] == means


@EVERY_KIND
@pytest.mark.parametrize("name", ["foreach", "fused"])
def test_choice_of_a_path_is_a_boolean_or_none(kind: Callable[..., Optimizer], name: str) -> None:
    refused(kind, f"^{name} must be None, True or False, not 'yes'", name, "yes")
    refused(kind, f"^{name} must be None, True or False, not 0", name, 0)
    kind(params(), **{name: None})


@pytest.mark.parametrize("name", ["mean", "norm", "project_at_start"])
@pytest.mark.parametrize("value", ["off", 0, None], ids=repr)
def test_flags_of_constrained_are_booleans(name: str, value: object) -> None:
    given = params()
    with pytest.raises(ValueError, match=f"^{name} must be True or False, not {value!r}"):
        constrained(given, torch.optim.SGD, lr=0.1, **{name: value})  # type: ignore[arg-type]
    assert all(map(torch.equal, given, params()))


def test_flag_of_a_part_is_a_boolean() -> None:
    part = {"optim": torch.optim.SGD, "as_matrices": "no"}
    with pytest.raises(ValueError, match=r"^as_matrices of part 1 must be True or False, not 'no'"):
        Split(nn.Linear(2, 3), [part], lr=0.1)


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, -0.1, True, "0.1", None], ids=repr)
def test_numbers_are_in_their_ranges(kind: Callable[..., Optimizer], name: str, value: object) -> None:
    refused(kind, f"^{name} must be .*, not {value!r}", name, value)


@pytest.mark.parametrize("value", RATES, ids=repr)
@EVERY_KIND
def test_learning_rates_are_refused_at_construction(kind: Callable[..., Optimizer], value: object) -> None:
    refused(kind, "lr must be ", "lr", value)


@pytest.mark.parametrize("betas", [("0.9", 0.99), (0.9, True), (0.9, math.nan), (0.9,)], ids=repr)
def test_betas_are_numbers(betas: object) -> None:
    refused(LAMB, r"^betas(\[[01]\])? must be ", "betas", betas)


@pytest.mark.parametrize("value", [value for value in RATES if not isinstance(value, Tensor)], ids=repr)
@EVERY_KIND
def test_learning_rate_that_is_set_later_is_refused_before_anything_changes(
    kind: Callable[..., Optimizer], value: object
) -> None:
    given = params()
    optimizer = kind([{"params": given[:1]}, {"params": given[1:]}])
    for param in given:
        param.grad = torch.ones_like(param)
    optimizer.step()
    before = [param.detach().clone() for param in given]
    optimizer.param_groups[1]["lr"] = value
    with pytest.raises(ValueError, match=r"^lr must be finite and not negative, not "):
        optimizer.step()
    assert all(map(torch.equal, given, before))
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}
    optimizer.param_groups[1]["lr"] = 0.1
    optimizer.step()
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}


@pytest.mark.parametrize("rate", [0, 1, 0.0, np.float32(0.5), np.float64(0.5)], ids=repr)
@EVERY_KIND
def test_any_kind_of_number_is_a_learning_rate(kind: Callable[..., Optimizer], rate: float) -> None:
    given = params()
    optimizer = kind(given, lr=rate)
    optimizer.param_groups[0]["lr"] = rate
    given[0].grad = torch.ones_like(given[0])
    before = given[0].detach().clone()
    optimizer.step()
    assert torch.equal(before, given[0]) == (rate == 0)


@EVERY_KIND
def test_tensor_learning_rate_is_not_read(kind: Callable[..., Optimizer]) -> None:
    """Reading one of a GPU would wait for it."""
    given, rate = params(), torch.tensor(0.1)
    optimizer = kind(given, lr=rate)
    rate.fill_(math.nan)
    for param in given:
        param.grad = torch.ones_like(param)
    with NoHostReads():
        optimizer.step()


@given(
    st.sampled_from(list(KINDS.values())),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_weight_that_is_not_finite_is_refused(
    kind: Any, value: float, number: int, entry: int, named: bool, grouped: bool, dtype: torch.dtype
) -> None:
    given = [nn.Parameter(param.detach().to(dtype)) for param in params()]
    with torch.no_grad():
        given[number].view(-1)[entry] = value
    before = [param.detach().clone() for param in given]
    members: list[Any] = [(f"layer{i}.weight", param) for i, param in enumerate(given)] if named else given
    groups: list[Any] = [{"params": [member]} for member in members] if grouped else members
    name = f"'layer{number}.weight'" if named else str(0 if grouped else number)
    place = rf"parameter {name} of group {number if grouped else 0}, shape \({given[number].shape[0]},.*\)"
    with pytest.raises(ValueError, match=f"^weights must be finite, and 1 of {place} are not"):
        kind(groups)
    assert all(torch.equal(old.nan_to_num(), new.nan_to_num()) for old, new in zip(before, given, strict=True))


@EVERY_KIND
def test_weight_of_an_added_group_is_refused(kind: Callable[..., Optimizer]) -> None:
    given = params()
    optimizer = kind(given[:1])
    before = given[0].detach().clone()
    with torch.no_grad():
        given[1][2, 1] = math.nan
    with pytest.raises(ValueError, match=r"1 of parameter 0 of group 1, shape \(5, 3\) are not"):
        optimizer.add_param_group({"params": given[1:]})
    assert len(optimizer.param_groups) == len(optimizer.state) == 1
    assert torch.equal(given[0], before)
    assert torch.equal(given[2], params()[2])


@EVERY_KIND
def test_frozen_empty_and_meta_parameters_may_hold_anything(kind: Callable[..., Optimizer]) -> None:
    frozen = nn.Parameter(torch.full((2, 3), -math.inf), requires_grad=False)
    kind([*params(), frozen, nn.Parameter(torch.empty(0, 3))])
    kind([nn.Parameter(torch.empty(4, 3, device="meta"))])


def test_constrained_refuses_a_weight_that_is_not_finite() -> None:
    given = params()
    with torch.no_grad():
        given[1][0, 0] = math.inf
    before = [param.detach().clone() for param in given]
    with pytest.raises(ValueError, match=r"^weights must be finite, and 1 of parameter 1, shape \(5, 3\) are not"):
        constrained(given, torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"^weights must be finite, and 1 of parameter 'b', shape \(5, 3\) are not"):
        constrained([{"params": [("a", given[0])]}, {"params": [("b", given[1])]}], torch.optim.SGD, lr=0.1)
    assert all(map(torch.equal, given, before))
