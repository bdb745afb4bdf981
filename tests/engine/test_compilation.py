"""What the engine compiles: networks for the largest batch shape, and optimiser steps that are not fused."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.optim import SGD, Adam, Optimizer

from nero.engine.capture import allow_capture
from nero.engine.compilation import (
    LargestShapeOnly,
    compile_networks,
    is_fused,
    keep_compiled_code,
    reuse_compiled_code,
    step_functions,
)
from nero.models import mlp
from nero.optim import LAMB, Nero, constrained
from nero.plans.config import compose
from nero.train.run import train
from support.fused_steps import DEVICE


def parameters(device: str = "cpu") -> list[torch.Tensor]:
    return [torch.ones(4, 3, device=device).requires_grad_(), torch.ones(4, device=device).requires_grad_()]


def test_is_fused_reflects_fused_setting_or_attribute() -> None:
    class Own(SGD):
        is_fused = True

    assert not is_fused(Adam(parameters()))
    assert not is_fused(SGD(parameters()))
    assert not is_fused(LAMB(parameters()))
    assert not is_fused(Nero(parameters()))  # on a CPU
    assert is_fused(SGD(parameters(), fused=True))
    assert is_fused(Own(parameters()))


def test_constrained_optimiser_is_not_fused() -> None:
    assert not is_fused(constrained(parameters(), SGD, lr=0.1, fused=True))


@pytest.mark.parametrize("fused", [False, True])
def test_lamb_is_fused_only_if_requested(fused: bool) -> None:
    pytest.importorskip("triton")
    assert is_fused(LAMB(parameters(DEVICE), fused=fused)) == fused


def test_is_fused_requires_all_groups_to_be_fused() -> None:
    first, second = parameters()
    assert not is_fused(SGD([{"params": [first], "fused": True}, {"params": [second], "fused": False}]))


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", [Nero, LAMB])
def test_nero_and_lamb_are_fused_by_default_on_gpu(optimiser: type[Nero] | type[LAMB]) -> None:
    assert is_fused(optimiser(parameters("cuda")))
    assert not is_fused(optimiser(parameters("cuda"), foreach=True))
    assert not is_fused(optimiser(parameters("cuda"), fused=False))


@pytest.mark.gpu
def test_captured_sgd_is_fused_on_gpu() -> None:
    captured = SGD(parameters("cuda"))
    allow_capture(captured)
    assert is_fused(captured)


@pytest.mark.parametrize("compiled", [False, True])
def test_step_functions_compile_only_unfused_optimisers(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(function, dynamic):
        asked.append((function.__self__, dynamic))
        return function

    monkeypatch.setattr(torch, "compile", spy)
    optimizers: dict[str, Optimizer] = {"a": Adam(parameters()), "b": SGD(parameters(), fused=True)}
    for name, step in step_functions(optimizers, compiled).items():
        before = [param.detach().clone() for param in optimizers[name].param_groups[0]["params"]]
        for param in optimizers[name].param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        step()
        for old, new in zip(before, optimizers[name].param_groups[0]["params"], strict=True):
            assert not torch.equal(old, new)
    assert asked == ([(optimizers["a"], False)] if compiled else [])


class Own(nn.Module):
    """A user-defined layer: torch.compile skips torch's own layers when they are called directly."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


class InParts(Own):
    """A network that is compiled in parts, whose kernels work for any shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Own()

    def compiled_parts(self) -> list[nn.Module]:
        return [self.linear]


class ByItself(Own):
    """A network with kernels of its own, which is not compiled."""

    def compiled_parts(self) -> list[nn.Module]:
        return []


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Counts compiled frames and runs them eagerly."""
    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    yield counter
    torch._dynamo.reset()


def run_on(networks: dict[str, nn.Module], sizes: list[int]) -> list[Tensor]:
    """Outputs of the networks, called in turn, for batches of these sizes."""
    context = LargestShapeOnly(networks)
    found = []
    for size in sizes:
        batch = torch.linspace(-1, 1, 4 * size).reshape(size, 4)
        with context((batch,)):
            found += [network(batch) for network in networks.values()]
    return found


def test_network_is_compiled_for_largest_shape_and_eager_for_others(counter: CompileCounter) -> None:
    networks: dict[str, nn.Module] = {"a": Own(), "b": Own(3)}
    sizes = [8, 8, 3, 8, 5, 3, 8]
    plain = run_on(networks, sizes)
    compile_networks(networks)
    found = run_on(networks, sizes)
    assert counter.frame_count == 2, "each network once"
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.equal(ours, theirs)


def test_resuming_at_smaller_batch_still_compiles_for_full_batches(
    counter: CompileCounter,
) -> None:
    networks: dict[str, nn.Module] = {"a": Own()}
    compile_networks(networks)
    context = LargestShapeOnly(networks)
    stances = []
    for size in (3, 8, 3, 8, 5):
        with context((torch.ones(size, 4),)):
            stances.append(torch._dynamo.eval_frame._stance.stance)
            networks["a"](torch.ones(size, 4))
    assert stances == ["default", "default", "force_eager", "default", "force_eager"]
    assert counter.frame_count == 2


def test_every_shape_is_compiled_without_largest_shape_limit(counter: CompileCounter) -> None:
    network = Own()
    compile_networks({"a": network})
    for size in (8, 3, 8, 5):
        network(torch.ones(size, 4))
    assert counter.frame_count == 3


def test_shape_includes_every_tensor_of_batch() -> None:
    context = LargestShapeOnly({"a": Own()})
    one, other = torch.ones(8, 4), torch.ones(8, 5)
    for batch, compiled in [((one, other), True), ((one, one), False), ((one, other), True), ((one,), False)]:
        with context(batch):
            assert (torch._dynamo.eval_frame._stance.stance == "default") is compiled


def test_network_compiled_in_parts_is_not_limited_to_largest_shape(counter: CompileCounter) -> None:
    networks: dict[str, nn.Module] = {"a": InParts()}
    compile_networks(networks)
    run_on(networks, [8, 3, 5, 7])
    assert counter.frame_count == 1, "one kernel, made for any shape"
    context = LargestShapeOnly(networks)
    for size in (8, 3):
        with context((torch.ones(size, 4),)):
            assert torch._dynamo.eval_frame._stance.stance == "default"


def test_limit_applies_if_any_network_is_compiled_whole(counter: CompileCounter) -> None:
    networks: dict[str, nn.Module] = {"parts": InParts(), "whole": Own(3)}
    compile_networks(networks)
    run_on(networks, [8, 3, 8])
    assert counter.frame_count == 2


def test_network_with_no_compiled_parts_is_not_compiled(counter: CompileCounter) -> None:
    networks: dict[str, nn.Module] = {"a": ByItself()}
    compile_networks(networks)
    run_on(networks, [8, 3])
    assert counter.frame_count == 0
    assert not LargestShapeOnly(networks).applies


def test_mlp_is_compiled_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    network = mlp.MLP(3, 8, 2)
    assert network.compiled_parts() is None
    monkeypatch.setattr(mlp, "_has_kernels", lambda device: True)
    assert network.compiled_parts() is None, "they are a GPU's"


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "whole"), [("high", False), ("highest", True)])
def test_mlp_is_compiled_on_gpu_unless_its_kernels_are_used(precision: str, whole: bool) -> None:
    network = mlp.MLP(3, 8, 2).cuda()
    if not mlp._has_kernels(next(network.parameters()).device):
        pytest.skip("needs a GPU that has these kernels")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert (network.compiled_parts() is None) is whole
    finally:
        torch.set_float32_matmul_precision(before)


def compiled_by(counter: CompileCounter, kind: object, outputs: int = 2) -> int:
    """Number of frames compiled by a run of this kind whose network has `outputs` outputs."""
    before = counter.frame_count
    reuse_compiled_code(kind)
    network = Own(outputs)
    compile_networks({"a": network})
    network(torch.ones(3, 4))
    keep_compiled_code()
    return counter.frame_count - before


def test_run_reuses_compiled_code_of_last_run_of_same_kind(counter: CompileCounter) -> None:
    assert [compiled_by(counter, kind) for kind in ("a", "a", "a", "b", "b", "a")] == [1, 0, 0, 1, 0, 1]


def test_compiled_code_without_kind_is_not_kept(counter: CompileCounter) -> None:
    assert [compiled_by(counter, kind) for kind in ("a", None, None, "a")] == [1, 1, 1, 1]


def test_mismatched_compiled_code_does_not_accumulate(counter: CompileCounter) -> None:
    """Beyond its recompile limit of eight torch runs eagerly; twenty runs must not reach it."""
    assert [compiled_by(counter, "a", outputs=3 + number) for number in range(20)] == [1] * 20
    assert compiled_by(counter, "a", outputs=3) == 1, "the third run of a kind starts anew"


@pytest.mark.slow
def test_sweep_compiles_same_network_once(counter: CompileCounter, tmp_path: Path) -> None:
    def compiled(*words: str) -> int:
        before = counter.frame_count
        settings = ["task=mnist_mlp100", "task.epochs=1", "task.train_examples=200", f"store={tmp_path}", *words]
        outcome = train(compose([*settings, "data=embedded", "machine=cpu", "machine.compile=true"]))
        assert outcome["status"] == "done"
        return counter.frame_count - before

    assert compiled("optim=nero", "task.depth=3") == 1
    assert compiled("optim=nero", "task.depth=3", "seed=1", "optim.lr=0.02") == 0
    assert compiled("optim=adam", "task.depth=3") == 0, "its steps are its own, and not compiled here"
    assert compiled("optim=adam", "task.depth=4") == 1
    assert compiled("optim=adam", "task.depth=3", "seed=1") == 1, "only what the last run left is there"
