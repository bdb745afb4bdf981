"""Behaviour common to all fused optimisers, on a GPU if there is one, otherwise in Triton's interpreter."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from nero.optim import LAMB, Nero
from support import references
from support.fused_steps import DEVICE, assert_steps_alike, make

pytest.importorskip("triton")
Kind = type[Nero] | type[LAMB]
EVERY_KIND: Any = pytest.mark.parametrize("kind", [Nero, LAMB])


@EVERY_KIND
@pytest.mark.parametrize("offset", [1, 2, 4])
def test_parameters_and_gradients_may_have_any_storage_offset(kind: Kind, offset: int) -> None:
    shapes: list[Any] = [(6, 64), (5, 33), (40,), (4100,)]
    ends = []
    for shift in (offset, 0):
        params = []
        for tensor in references.draw(0, shapes):
            buffer = torch.zeros(tensor.numel() + shift, device=DEVICE)
            params.append(buffer[shift:].view(tensor.shape).copy_(tensor))
        optimizer = kind(params, fused=True)
        for t in range(3):
            for param, grad in zip(params, references.draw(t, shapes), strict=True):
                # The gradient's offset changes with each step.
                buffer = torch.zeros(grad.numel() + 4, device=DEVICE)
                param.grad = buffer[t : t + grad.numel()].view(grad.shape).copy_(grad)
            optimizer.step()
        ends.append(params)
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.fixture(params=[Nero, LAMB])
def stepped(request: pytest.FixtureRequest) -> tuple[Optimizer, Optimizer]:
    """Two identical optimisers after two steps."""
    shapes: list[Any] = [(5, 30), (6,), (2, 3000), (2, 9000)]
    ours, theirs = request.param(make(shapes), fused=True), request.param(make(shapes), fused=True)
    assert_steps_alike(ours, theirs, range(2))
    return ours, theirs


def test_reallocated_parameters_are_followed(stepped: tuple[Optimizer, Optimizer]) -> None:
    ours, theirs = stepped
    for param in ours.param_groups[0]["params"]:
        param.data = param.data.clone()
    assert_steps_alike(ours, theirs, range(2, 4))


def test_reallocated_state_is_followed(stepped: tuple[Optimizer, Optimizer]) -> None:
    ours, theirs = stepped
    for state in ours.state.values():
        for key in state:
            state[key] = state[key].clone()
    assert_steps_alike(ours, theirs, range(2, 4))
    assert {int(state["step"]) for state in ours.state.values()} == {4}


@pytest.mark.slow
def test_copies_and_pickles_step_independently(stepped: tuple[Optimizer, Optimizer]) -> None:
    ours, theirs = stepped
    copied, loaded = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))
    assert_steps_alike(copied, loaded, range(2, 4))
    assert_steps_alike(ours, theirs, range(2, 4))  # the copies have not changed the original
    assert_steps_alike(ours, copied, range(4, 6))


@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensor_learning_rate_matches_float(kind: Kind, dtype: torch.dtype) -> None:
    numbers, tensors = make([(3, 20), (4,)]), make([(3, 20), (4,)])
    rate = torch.tensor([0.25], dtype=dtype, device=DEVICE)
    ours, theirs = kind(numbers, lr=0.25, fused=True), kind(tensors, lr=rate, fused=True)
    assert_steps_alike(ours, theirs, range(2))
    rate.fill_(0.5)
    ours.param_groups[0]["lr"] = 0.5
    assert_steps_alike(ours, theirs, range(2, 4))


@EVERY_KIND
def test_foreach_and_fused_together_raise(kind: Kind) -> None:
    with pytest.raises(ValueError, match="both"):
        kind(make([(3, 4)]), foreach=True, fused=True)
