"""torch.compile compiles the complete step of each optimiser, and only once."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.optim import Optimizer

from conftest import slow_after
from nero.optim import LAMB, Madam, Nero
from optim.test_every_optimiser import BOTH_PATHS, EVERY_KIND, Kind, Make, balanced
from support import references

SHAPES: list[tuple[int, ...]] = [(3, 4), (3, 4), (2, 1, 2, 2), (5,)]
COMPILED: dict[str, Make] = {
    "nero": Nero,
    "nero with a penalty": partial(Nero, gain_penalty=0.1),
    "lamb": LAMB,
    "lamb with debias": partial(LAMB, betas=(0.0, 0.999), debias=True),
    "madam": Madam,
    "constrained madam": balanced(Madam),
}


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
@BOTH_PATHS
@pytest.mark.parametrize("in_tensor", slow_after(1, [False, True]))
def test_compiled_step_matches_eager_and_compiles_once(make: Make, foreach: bool, in_tensor: bool) -> None:
    models = [references.parameters(shapes=SHAPES) for _ in range(2)]
    rates: list[Any] = [torch.tensor(0.02) if in_tensor else 0.02 for _ in models]
    optimizers = [make(params, lr=lr, foreach=foreach) for params, lr in zip(models, rates, strict=True)]
    counter = CompileCounter()
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend=counter)]
    saved = copy.deepcopy(optimizers[1].state_dict())
    for t in range(5):
        for params, lr, step in zip(models, rates, steps, strict=True):
            if in_tensor:
                lr.fill_(0.02 / (t + 1))
            for param, grad in zip(params, references.draw(t, SHAPES), strict=True):
                param.grad = grad
            step()
        assert counter.frame_count == 1
    for ours, theirs in zip(*models, strict=True):
        torch.testing.assert_close(theirs, ours)
    # Loading a checkpoint causes no recompilation either: its values are copied into the existing tensors.
    optimizers[1].load_state_dict(saved)
    steps[1]()
    assert counter.frame_count == 1
    assert optimizers[1].state[models[1][0]]["step"] == 1


@pytest.mark.usefixtures("_fresh_compiler")
@EVERY_KIND
def test_compiled_training_step_matches_eager_and_compiles_once(kind: Kind) -> None:
    models = [references.network(), references.network()]
    counter = CompileCounter()
    optimizers = [kind(model.parameters(), lr=torch.tensor(0.02)) for model in models]

    def training_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor) -> None:
        (model(inputs) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = torch.compile(training_step, backend=counter)
    for t in range(6):
        inputs = references.draw(t, [(4, 1, 3, 3)])[0]
        training_step(models[0], optimizers[0], inputs)
        compiled(models[1], optimizers[1], inputs)
        if t == 1:
            frames = counter.frame_count  # the second call may recompile, because it may see gradients of the first
    assert counter.frame_count == frames
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_compiler")
@EVERY_KIND
@BOTH_PATHS
def test_step_compiled_by_inductor_on_cpu_matches_eager(kind: Kind, foreach: bool) -> None:
    assert_compiles(kind, foreach, "cpu")


@pytest.mark.gpu
@pytest.mark.usefixtures("_fresh_compiler")
@EVERY_KIND
@pytest.mark.parametrize("foreach", [None, False])
def test_step_compiled_by_inductor_on_gpu_matches_eager(kind: Kind, foreach: bool | None) -> None:
    assert_compiles(kind, foreach, "cuda")


def assert_compiles(kind: Kind, foreach: bool | None, device: str) -> None:
    """Assert that a step compiled by Inductor matches the eager step and is compiled only once."""
    models = [references.parameters(shapes=SHAPES, device=device) for _ in range(2)]
    rates = [torch.tensor(0.02, device=device) for _ in models]
    optimizers = [kind(params, lr=lr, foreach=foreach) for params, lr in zip(models, rates, strict=True)]
    steps: list[Callable[[], Any]] = [optimizers[0].step, torch.compile(optimizers[1].step)]
    for t in range(4):
        for params, lr, step in zip(models, rates, steps, strict=True):
            lr.fill_(0.02 / (t + 1))
            for param, grad in zip(params, references.draw(t, SHAPES), strict=True):
                param.grad = torch.empty_like(param).copy_(grad).detach()
            with torch._dynamo.config.patch(error_on_recompile=t > 0):
                step()
    for ours, theirs in zip(*models, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-6)
