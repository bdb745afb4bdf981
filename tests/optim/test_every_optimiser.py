"""Behaviour common to all optimisers of the package, with and without balanced neurons."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from nero.optim import LAMB, Madam, Nero, constrained
from support import references

Make = Callable[..., Optimizer]
Kind = type[Nero] | type[LAMB] | type[Madam]
EVERY_KIND: Any = pytest.mark.parametrize("kind", [Nero, LAMB, Madam])


def balanced(base: Make) -> Make:
    return lambda params, **settings: constrained(params, base, **settings)


EVERY: dict[str, Make] = {
    "nero": Nero,
    "lamb": LAMB,
    "lamb without momentum": partial(LAMB, betas=(0.0, 0.999)),
    "madam": Madam,
    "constrained lamb": balanced(LAMB),
    "constrained madam": balanced(Madam),
}
EVERY_OPTIMISER: Any = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
BOTH_PATHS: Any = pytest.mark.parametrize("foreach", [False, True])


@EVERY_OPTIMISER
@BOTH_PATHS
@pytest.mark.parametrize("shape", [(), (1,)])
def test_tensor_learning_rate_matches_float(make: Make, foreach: bool, shape: tuple[int, ...]) -> None:
    numbers, tensors = references.parameters(), references.parameters()
    references.run(numbers, make(numbers, lr=0.03, foreach=foreach), range(5))
    references.run(tensors, make(tensors, lr=torch.full(shape, 0.03), foreach=foreach), range(5))
    references.assert_same(numbers, tensors)


@EVERY_OPTIMISER
@BOTH_PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumes_bit_for_bit(make: Make, foreach: bool, dtype: torch.dtype) -> None:
    references.assert_resumes(lambda params: make(params, lr=0.02, foreach=foreach), dtype)


@EVERY_OPTIMISER
@BOTH_PATHS
def test_step_makes_no_host_reads(make: Make, foreach: bool) -> None:
    references.assert_reads_nothing(lambda params, lr: make(params, lr=lr, foreach=foreach))


@pytest.mark.gpu
@EVERY_OPTIMISER
@pytest.mark.parametrize("foreach", [None, False])
def test_step_can_be_captured_in_cuda_graph(make: Make, foreach: bool | None) -> None:
    references.assert_captures(lambda params, lr: make(params, lr=lr, foreach=foreach))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("base", "needs"), [(torch.optim.SGD, {"fused": True}), (torch.optim.Adam, {"capturable": True})]
)
def test_constrained_torch_optimiser_can_be_captured_in_cuda_graph(base: Make, needs: dict[str, bool]) -> None:
    # Without `needs`, torch would read a tensor learning rate on the host.
    references.assert_captures(lambda params, lr: constrained(params, base, lr=lr, **needs))
