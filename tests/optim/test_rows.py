"""Many tensors stepped by few operations: the projection of a step, and what is kept between steps."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nero.optim import Nero, neuron_mean, neuron_norm, project
from nero.optim import rows as rows_module
from nero.optim.balance import project_turned_, row_moments, slack
from support import references

SETTINGS = settings(max_examples=60)
WIDTHS = (3, 40, 700)


def in_a_step(matrices: list[Tensor], mean: bool, dtype: torch.dtype, lengths: Tensor | None = None) -> list[Tensor]:
    """Matrices projected together, as a step does it."""
    turned = [matrix.clone() for matrix in matrices]
    roots = torch.cat([matrix.new_full((len(matrix),), math.sqrt(matrix.shape[1])) for matrix in matrices])
    moments = [row_moments(matrix, mean) for matrix in turned]
    project_turned_(turned, moments, roots, slack(dtype), lengths)
    return turned


def drawn(data: st.DataObject, dtype: torch.dtype) -> list[Tensor]:
    """Matrices of three fan-ins, with rows of many kinds: turned a little or a lot, sparse, constant, zero."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    matrices = []
    for width in WIDTHS:
        noise = torch.randn(7, width, generator=generator, dtype=torch.float64)
        rows = project(torch.randn(7, width, generator=generator, dtype=torch.float64))
        rows += 10 ** data.draw(st.floats(-6, 3), label="turn") * noise / math.sqrt(width)
        rows[1] = project(noise[1])
        rows[2] = data.draw(st.floats(0.01, 100), label="constant")
        rows[3] = 0
        rows[4, 1:] = 0
        rows[5] += data.draw(st.floats(-1, 1), label="mean")
        matrices.append(rows.to(dtype))
    return matrices


@SETTINGS
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64]), mean=st.booleans(), bounded=st.booleans())
def test_projection_in_a_step_is_the_projection(
    data: st.DataObject, dtype: torch.dtype, mean: bool, bounded: bool
) -> None:
    matrices = drawn(data, dtype)
    lengths = [None] * len(matrices)
    if bounded:
        sizes = [data.draw(st.lists(st.floats(0.1, 3), min_size=7, max_size=7)) for _ in matrices]
        lengths = [torch.tensor(size, dtype=dtype) * torch.tensor([1, -1, 1, -1, 1, -1, 1]) for size in sizes]
    together = None if lengths[0] is None else torch.cat([some for some in lengths if some is not None])
    for matrix, own, turned in zip(matrices, lengths, in_a_step(matrices, mean, dtype, together), strict=True):
        expected = project(matrix, mean, lengths=own)
        size = neuron_norm(expected).clamp(min=1e-3).unsqueeze(1)
        torch.testing.assert_close(turned / size, expected / size, rtol=0, atol=4 * slack(dtype))


@SETTINGS
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), mean=st.booleans())
def test_balanced_rows_stay_bit_for_bit(data: st.DataObject, dtype: torch.dtype, mean: bool) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    balanced = [project(matrix, mean).to(wide) for matrix in drawn(data, dtype)]
    references.assert_same(in_a_step(balanced, mean, dtype), balanced)


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"norm": False}, {"norm": "initial"}, {"gain_penalty": 0.1}])
def test_number_of_operations_does_not_depend_on_number_of_tensors(settings: dict[str, Any]) -> None:
    counts = []
    for number in (2, 30):
        params = references.parameters(shapes=[(4, 7), (5, 9), (6,)] * number)
        optimizer = Nero(params, foreach=True, **settings)
        for _ in range(2):
            for param in params:
                param.grad = torch.ones_like(param)
            with Operations() as operations:
                optimizer.step()
        counts.append(operations.counts)
    assert counts[0] == counts[1]


def gain_memory_order(params: list[Tensor], optimizer: Nero) -> None:
    for param in params:
        if param.ndim == 4:
            param.data = param.data.contiguous(memory_format=torch.channels_last)


def move_parameters(params: list[Tensor], optimizer: Nero) -> None:
    for param in params:
        param.data = param.data.clone()


def move_state(params: list[Tensor], optimizer: Nero) -> None:
    for state in optimizer.state.values():
        for key, value in state.items():
            state[key] = value.clone()


def load_state(params: list[Tensor], optimizer: Nero) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def load_norms(params: list[Tensor], optimizer: Nero) -> None:
    """Load state with a `norm` for one tensor in the middle."""
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][1]["norm"] = torch.full((5,), 2.0)
    optimizer.load_state_dict(saved)


def change_foreach(params: list[Tensor], optimizer: Nero) -> None:
    optimizer.param_groups[0]["foreach"] = not optimizer.param_groups[0]["foreach"]


CHANGES = [gain_memory_order, move_parameters, move_state, load_state, load_norms, change_foreach]


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_stale_is_kept_between_steps(
    change: Callable[[list[Tensor], Nero], None], foreach: bool | None
) -> None:
    ends = []
    for forgetful in (False, True):
        params = references.parameters()
        optimizer = Nero(params, lr=0.05, foreach=foreach)
        for t in range(8):  # at each, other parameters have no gradient
            if t in (3, 5):
                change(params, optimizer)
            if forgetful:
                optimizer._rows.clear()
            references.run(params, optimizer, range(t, t + 1))
        ends.append(params + [value for state in optimizer.state.values() for value in state.values()])
    references.assert_same(*ends)


def test_copy_of_optimiser_steps_its_own_parameters() -> None:
    params = references.parameters()
    optimizer = Nero(params, lr=0.05)
    references.run(params, optimizer, range(2))
    twins, twin = copy.deepcopy((params, optimizer))
    before = references.values(params)
    references.run(twins, twin, range(2, 4))
    references.assert_same(params, before)
    references.run(params, optimizer, range(2, 4))
    references.assert_same(params, twins)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_tensors_with_gaps_match_dense_ones(foreach: bool | None) -> None:
    def with_gaps(shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(*(2 * length for length in shape))[tuple(slice(None, None, 2) for _ in shape)]

    shapes = [(4, 3, 5), (6, 7), (5,), (4, 3, 5), (2, 3, 3, 2), (3, 1, 1)]
    ends = []
    for make in (with_gaps, torch.zeros):
        params = [make(shape).copy_(value) for shape, value in zip(shapes, references.draw(0, shapes), strict=True)]
        optimizer = Nero(params, lr=0.05, foreach=foreach)
        references.run(params, optimizer, range(4))
        ends.append([param.clone(memory_format=torch.contiguous_format) for param in params])
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_large_and_small_tensors_without_neurons_match(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for large in (0, 2**16):
        monkeypatch.setattr(rows_module, "LARGE", large)
        params = references.parameters()
        optimizer = Nero(params, lr=0.05, neuron_dim=None, gain_penalty=0.1)
        references.run(params, optimizer, range(5))
        ends.append(params)
    references.assert_same(*ends)


def test_dtypes_of_one_group_are_stepped_apart() -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    mixed = [param for dtype in dtypes for param in references.parameters(dtype=dtype)]
    apart = [references.parameters(dtype=dtype) for dtype in dtypes]
    together = Nero(mixed, lr=0.05)
    for param, grad in zip(mixed, references.draw(1) * 3, strict=True):
        param.grad = grad.to(param.dtype)
    together.step()
    for params in apart:
        optimizer = Nero(params, lr=0.05)
        for param, grad in zip(params, references.draw(1), strict=True):
            param.grad = grad.to(param.dtype)
        optimizer.step()
    references.assert_same(mixed, [param for params in apart for param in params])


@pytest.mark.parametrize("lr", [1.0, 1e3, 1e9])
def test_neurons_stay_balanced_at_any_learning_rate(lr: float) -> None:
    params = [param for param in references.parameters() if param.ndim >= 2 and param.shape != (4, 1)]
    references.run(params, Nero(params, lr=lr), range(20))
    for param in params:
        torch.testing.assert_close(neuron_norm(param), torch.ones(len(param)))
        torch.testing.assert_close(neuron_mean(param), torch.zeros(len(param)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("foreach", [False, True])
def test_matches_algorithm_1_on_gpu_without_kernels(dtype: torch.dtype, foreach: bool) -> None:
    params = references.parameters(dtype=dtype, device="cuda")
    reference = references.Nero(references.as_arrays(params), 0.03, 0.999)
    references.assert_follows(params, reference, Nero(params, lr=0.03, foreach=foreach))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [2, 700, 5000])
def test_projection_in_a_step_on_gpu(width: int) -> None:
    rows = torch.randn(50, width, generator=torch.Generator().manual_seed(0))
    rows[1] = 3.0
    rows[2, 1:] *= 1e-3
    rows[3] = 1.0 + 0.1 * rows[3]
    [turned] = in_a_step([rows.cuda()], True, torch.float32)
    torch.testing.assert_close(turned.cpu(), project(rows), rtol=0, atol=2e-5)
    references.assert_same(in_a_step([turned], True, torch.float32), [turned])
