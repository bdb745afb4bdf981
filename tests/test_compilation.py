"""Which steps the engine compiles: those that are not one kernel already."""

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer

from fused_steps import DEVICE
from nero.engine.capture import allow_capture
from nero.engine.compilation import is_fused, steps
from nero.optim import LAMB, Nero, constrained


def parameters(device: str = "cpu") -> list[torch.Tensor]:
    return [torch.ones(4, 3, device=device).requires_grad_(), torch.ones(4, device=device).requires_grad_()]


def test_an_optimiser_is_fused_if_told_to_be_or_if_it_says_so() -> None:
    class Own(SGD):
        is_fused = True

    assert not is_fused(Adam(parameters()))
    assert not is_fused(SGD(parameters()))
    assert not is_fused(LAMB(parameters()))
    assert not is_fused(Nero(parameters()))  # on a CPU
    assert is_fused(SGD(parameters(), fused=True))
    assert is_fused(Own(parameters()))


def test_what_follows_a_step_is_compiled_with_it() -> None:
    assert not is_fused(constrained(parameters(), SGD, lr=0.1, fused=True))


@pytest.mark.parametrize("fused", [False, True])
def test_lamb_is_fused_if_told_to_be(fused: bool) -> None:
    pytest.importorskip("triton")
    assert is_fused(LAMB(parameters(DEVICE), fused=fused)) == fused


def test_one_group_that_is_not_fused_is_enough_to_compile() -> None:
    first, second = parameters()
    assert not is_fused(SGD([{"params": [first], "fused": True}, {"params": [second], "fused": False}]))


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", [Nero, LAMB])
def test_on_a_gpu_ours_are_fused_unless_told_otherwise(optimiser: type[Nero] | type[LAMB]) -> None:
    assert is_fused(optimiser(parameters("cuda")))
    assert not is_fused(optimiser(parameters("cuda"), foreach=True))
    assert not is_fused(optimiser(parameters("cuda"), fused=False))


@pytest.mark.gpu
def test_on_a_gpu_captured_sgd_is_fused() -> None:
    captured = SGD(parameters("cuda"))
    allow_capture(captured)
    assert is_fused(captured)


@pytest.mark.parametrize("compiled", [False, True])
def test_steps_are_those_of_each_optimiser(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(function, dynamic):
        asked.append((function.__self__, dynamic))
        return function

    monkeypatch.setattr(torch, "compile", spy)
    optimizers: dict[str, Optimizer] = {"a": Adam(parameters()), "b": SGD(parameters(), fused=True)}
    for name, step in steps(optimizers, compiled).items():
        before = [param.detach().clone() for param in optimizers[name].param_groups[0]["params"]]
        for param in optimizers[name].param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        step()
        for old, new in zip(before, optimizers[name].param_groups[0]["params"], strict=True):
            assert not torch.equal(old, new)
    assert asked == ([(optimizers["a"], False)] if compiled else [])
