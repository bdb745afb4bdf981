"""Behaviour common to all fused optimisers, on a GPU if there is one, otherwise in Triton's interpreter."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from nero.optim import LAMB, Madam, Nero
from support import references
from support.fused_steps import DEVICE, assert_steps_alike, make, set_gradients

pytest.importorskip("triton")
from triton import JITFunction

from nero.optim.triton import nero_kernels
from nero.optim.triton.compiled_launch import CompiledLaunch
from nero.optim.triton.pointer_tables import unavailable

Kind = type[Nero] | type[LAMB] | type[Madam]
EVERY_KIND: Any = pytest.mark.parametrize("kind", [Nero, LAMB, Madam])
ENTRY_BY_ENTRY: Any = pytest.mark.parametrize("kind", [LAMB, Madam])  # for Nero, with neurons: test_fused.py


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


@pytest.fixture(params=[Nero, LAMB, Madam])
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


@ENTRY_BY_ENTRY
def test_parameters_and_gradients_may_have_any_memory_layout(kind: Kind) -> None:
    ends = []
    for odd in (True, False):
        params = make([(8, 3, 3, 3), (6, 10), (4, 5)])
        if odd:
            params[0] = params[0].detach().contiguous(memory_format=torch.channels_last)
            params[1] = params[1].detach().t().contiguous().t()
        optimizer = kind(params, fused=odd)
        for t in range(3):
            set_gradients(params, t)
            if odd and t:
                for param in params:
                    assert param.grad is not None
                    param.grad = param.grad.transpose(0, 1).contiguous().transpose(0, 1)
            optimizer.step()
        ends.append(params)
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@ENTRY_BY_ENTRY
def test_unsupported_parameters_fall_back_to_unfused_path(kind: Kind) -> None:
    params = [
        *make([(4, 6), (3,)]),
        torch.randn(3, 4, dtype=torch.float64, device=DEVICE),
        torch.randn(8, device=DEVICE)[::2],
        torch.zeros(0, 4, device=DEVICE),
    ]
    twins = [param.detach().clone() for param in params]
    ours, theirs = kind(params, fused=True), kind(twins, foreach=False)
    for t in range(2):
        for some, optimizer in ((params, ours), (twins, theirs)):
            set_gradients(some, t)
            optimizer.step()
    for mine, other in zip(params, twins, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
    assert [len(tensors.params) for tensors in ours._fused[0].lists] == [2]
    assert {int(state["step"]) for state in ours.state.values()} == {2}


@ENTRY_BY_ENTRY
def test_parameter_without_gradient_keeps_value_and_step_count(kind: Kind) -> None:
    used, unused = make([(3, 40), (3, 40)])
    optimizer = kind([used, unused], fused=True)
    before = unused.detach().clone()
    used.grad = torch.ones_like(used)
    optimizer.step()
    optimizer.step()
    assert torch.equal(unused, before)
    assert (int(optimizer.state[used]["step"]), int(optimizer.state[unused]["step"])) == (2, 0)
    # Its first step, although later, equals the first step of a fresh optimiser.
    fresh = before.clone()
    unused.grad = fresh.grad = references.draw(1, [(3, 40)])[0].to(DEVICE)
    optimizer.step()
    kind([fresh], fused=True).step()
    assert torch.equal(unused, fresh)
    assert not torch.equal(unused, before)
    assert (int(optimizer.state[used]["step"]), int(optimizer.state[unused]["step"])) == (3, 1)


@EVERY_KIND
def test_foreach_and_fused_together_raise(kind: Kind) -> None:
    with pytest.raises(ValueError, match="both"):
        kind(make([(3, 4)]), foreach=True, fused=True)


def test_kernels_are_unavailable_for_meta_tensors() -> None:
    assert "meta" in (unavailable(torch.device("meta")) or "")
    assert unavailable(torch.device(DEVICE)) is None


def no_kernel() -> None:
    """What Triton compiles on a GPU."""


@pytest.mark.parametrize(
    ("hip", "capability", "available"), [(None, (6, 1), False), (None, (7, 0), True), ("6.4", (0, 0), True)]
)
def test_kernels_need_a_gpu_that_triton_supports(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: tuple[int, int], available: bool
) -> None:
    monkeypatch.setattr(nero_kernels, "nero_kernel", JITFunction(no_kernel))  # compiled, not interpreted
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (unavailable.__wrapped__(torch.device("cuda")) is None) == available
    assert unavailable.__wrapped__(torch.device("cpu")) is not None


def test_register_limit_is_left_out_on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    for hip, expected in ((None, {"num_warps": 4, "maxnreg": 56}), ("6.4", {"num_warps": 4})):
        monkeypatch.setattr(torch.version, "hip", hip)
        assert CompiledLaunch(None, 1, num_warps=4, maxnreg=56).options == expected


@pytest.mark.gpu
@EVERY_KIND
def test_captured_step_keeps_its_gradient_addresses(kind: Kind) -> None:
    """A graph replays with the addresses of its capture, whatever eager steps are taken in between."""
    ends = []
    for capture in (False, True):
        params = make([(5, 30), (6,), (2, 3000), (2, 9000)])
        optimizer = kind(params, lr=torch.tensor(0.02, device="cuda"), fused=True)
        grads: list[Any] = []
        graphs: list[Any] = []
        for t in range(2):  # gradients that are known when the step is captured, and new ones
            set_gradients(params, t)
            optimizer.step()
            if t == 1:
                set_gradients(params, t)
            grads.append([param.grad for param in params])
            graphs.append(torch.cuda.CUDAGraph())
            if capture:
                with torch.cuda.graph(graphs[-1]):
                    optimizer.step()
        for t in range(2, 5):
            set_gradients(params, t)
            optimizer.step()
            for some, graph in zip(grads, graphs, strict=True):
                for param, grad in zip(params, some, strict=True):
                    param.grad = grad
                if capture:
                    graph.replay()
                else:
                    optimizer.step()
        ends.append([param.detach().clone() for param in params])
        assert {int(state["step"]) for state in optimizer.state.values()} == {2 + 3 * 3}
    references.assert_same(*ends)
