"""Training steps as CUDA graphs; all tests need a GPU."""

import pytest
import torch
from torch import Tensor

from nero.engine.capture import WARM_UP, CapturedStep

pytestmark = pytest.mark.gpu
STEPS = WARM_UP + 3


def batches(*lengths: int) -> list[tuple[Tensor, ...]]:
    """Slices of larger tensors, like the batches of tasks."""
    whole = torch.randn(len(lengths), 64, generator=torch.Generator().manual_seed(0)).cuda()
    return [(row[:length],) for row, length in zip(whole, lengths, strict=True)]


def test_every_batch_is_processed_once_for_any_order_of_shapes() -> None:
    total, expected = torch.zeros((), device="cuda"), 0.0
    step = CapturedStep(lambda batch: total.add_(batch[0].square().sum()))
    for batch in batches(*[16, 32, 32] * STEPS):
        step(batch)
        expected += float(batch[0].square().sum())
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert [shape.graph is not None for shape in step.shapes.values()] == [True, True]


def test_capture_reuses_input_tensors_of_warm_up_steps() -> None:
    seen = []
    step = CapturedStep(lambda batch: seen.append(batch[0]))
    for batch in batches(*[16] * STEPS):
        step(batch)
    assert len(seen) == WARM_UP + 1
    assert all(tensor is seen[0] for tensor in seen)


def test_batch_keeps_its_memory_format() -> None:
    seen = []
    step = CapturedStep(lambda batch: seen.append(batch[0]))
    step((torch.ones(2, 3, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last),))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_compiled_step_on_views_can_be_captured() -> None:
    compiled = torch.compile(lambda row: row.sin().sum(), dynamic=True)
    total = torch.zeros((), device="cuda")
    expected = sum(float(batch[0].sin().sum()) for batch in batches(*[16, 24] * STEPS))
    step = CapturedStep(lambda batch: total.add_(compiled(batch[0])))
    for batch in batches(*[16, 24] * STEPS):
        step(batch)
    assert total.item() == pytest.approx(expected, rel=1e-4)


def test_unreferenced_graph_does_not_break_next_capture() -> None:
    """Python's garbage collector runs after many allocations and would free the old graph during the next capture."""
    total = torch.zeros((), device="cuda")

    def step(batch: tuple[Tensor, ...]) -> None:
        total.add_(batch[0].sum())
        kept = [[] for _ in range(5000)]
        assert len(kept) == 5000

    for _ in range(3):
        captured = CapturedStep(step)
        captured.itself = captured  # type: ignore[attr-defined]  # a reference cycle, like that of the loop's step
        for batch in batches(*[16] * STEPS):
            captured(batch)
    expected = 3 * sum(float(batch[0].sum()) for batch in batches(*[16] * STEPS))
    assert total.item() == pytest.approx(expected, rel=1e-4)
