"""One training step as a CUDA graph: captured once per batch shape, then replayed."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.optim import Optimizer

from nero.tasks.base import Batch

# Eager steps per shape before its capture: libraries and optimisers allocate lazily. They are real training steps.
WARM_UP = 2
# Param-group keys by which torch's optimisers choose how to compute a step, not what.
IMPLEMENTATION_KEYS = ("foreach", "fused", "capturable")


class CaptureError(RuntimeError):
    """The step does something that a CUDA graph cannot hold."""


def allow_capture(optimizer: Optimizer) -> None:
    """Choose an implementation of torch's own optimisers that reads the learning rate from a device tensor.

    Fused kernels only where there is no other: torch's fused Adam for CUDA turns a squared gradient that overflows into
    NaN, where its other implementations leave the entry unchanged. `+optim.fused=true` asks for it all the same.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif type(optimizer).__module__.startswith("torch.optim") and group.get("fused", False) is None:
            group["fused"] = True


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Postpone Python's garbage collection: freeing an earlier run's graph during a capture would break the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all captures of a process: cuBLAS keeps a workspace of tens of megabytes per stream."""
    return torch.cuda.Stream(device)


@dataclass
class _Shape:
    inputs: Batch  # the tensors that the graph reads
    eager_steps: int = 0
    graph: "torch.cuda.CUDAGraph | None" = None


class CapturedStep:
    """Calls `step(batch)`, from a graph once there is one. `step` must change state in place and return nothing.

    Every batch is copied into the same tensors of its shape, also before the capture: a compiler distinguishes views
    from copies, and would compile again during the capture, which is not allowed.
    """

    def __init__(self, step: Callable[[Batch], None]) -> None:
        self.step = step
        self.shapes: dict[tuple[object, ...], _Shape] = {}
        self.stream = _side_stream(torch.cuda.current_device())
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> None:
        key = tuple((t.shape, t.dtype) for t in batch)
        if key not in self.shapes:
            self.shapes[key] = _Shape(tuple(t.clone() for t in batch))
        shape = self.shapes[key]
        for static, tensor in zip(shape.inputs, batch, strict=True):
            static.copy_(tensor)
        if shape.eager_steps < WARM_UP:
            shape.eager_steps += 1
            run_on(self.stream, partial(self.step, shape.inputs))
            return
        if shape.graph is None:
            shape.graph = captured(partial(self.step, shape.inputs), self.stream, self.pool)
        shape.graph.replay()


class CapturedAtRate:
    """Calls an optimiser's step, from a graph as long as its learning rates stay the same numbers."""

    def __init__(self, optimizer: Optimizer, step: Callable[[], object]) -> None:
        self.optimizer, self.step = optimizer, step
        self.rates: list[float] = []
        self.eager_steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = _side_stream(torch.cuda.current_device())

    def __call__(self) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if rates != self.rates:
            self.rates, self.eager_steps, self.graph = rates, 0, None
        if self.eager_steps < WARM_UP:
            self.eager_steps += 1
            run_on(self.stream, self.step)
            return
        if self.graph is None:
            self.graph = captured(self.step, self.stream)
        self.graph.replay()


def run_on(stream: torch.cuda.Stream, work: Callable[[], object]) -> None:
    """Not captured, but on the stream of captures: autograd's buffers must belong to one that graphs may use."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


def captured(work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # Only this thread's work belongs to the graph: others may be moving the next batch to the device.
    capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    try:
        with no_garbage_collection(), capture:
            work()
    except RuntimeError as error:
        raise CaptureError(
            "the training step could not be captured as a CUDA graph; an optimiser or task that synchronises with "
            f"the host runs with machine.capture=false ({str(error).splitlines()[0]})"
        ) from error
    return graph
