"""torch.compile for networks, and for optimiser steps that are not one kernel already."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nero.tasks.base import Batch

_kind: Hashable | None = None
_graphs: int | None = None


def compile_networks(networks: Mapping[str, nn.Module]) -> None:
    """Compile each network whole, or only the parts that its method `compiled_parts` lists, which may be none."""
    for network in networks.values():
        parts = _parts(network)
        if parts is None:
            network.compile(dynamic=False)  # batches have few shapes: each gets its own kernels
        for part in parts or ():
            part.compile(dynamic=True)  # such a network is large, and kernels for each shape would take minutes


def _parts(network: nn.Module) -> Sequence[nn.Module] | None:
    """None for a network that is compiled whole."""
    compiled_parts = getattr(network, "compiled_parts", None)
    return None if compiled_parts is None else compiled_parts()


def reuse_compiled_code(kind: Hashable | None) -> None:
    """Call before a run compiles. Code of the last run in this process is kept only if that run was of the same kind.

    Loading the same kernels again takes seconds, and GPU memory that is not freed. torch's guards check that the code
    fits. None is for runs whose code fits no other run.
    """
    global _kind, _graphs
    if kind is None or kind != _kind:
        torch.compiler.reset()
        _kind, _graphs = kind, None


def keep_compiled_code() -> None:
    """Call after a run that compiled: its code is kept for the next run, unless it turned out not to be reusable."""
    global _kind, _graphs
    graphs = _compiled_graphs()
    # If a run compiled again although there was code of its kind, entries would accumulate up to torch's recompile
    # limit, beyond which it runs eagerly.
    if _kind is None or (_graphs is not None and _graphs != graphs):
        torch.compiler.reset()
        _kind = None
    _graphs = graphs


def _compiled_graphs() -> int:
    """Graphs that this process has compiled. torch has no public counter: this is the one its own tests read."""
    from torch._dynamo.utils import counters  # takes a second to import

    return int(counters["stats"]["unique_graphs"])


class LargestShapeOnly:
    """Use compiled kernels for the largest batch shape so far, and run other shapes eagerly.

    Other shapes are as a rule the smaller last batch of an epoch: compiling for it can take a minute, running one step
    eagerly milliseconds. The first shape is no criterion, since a run may resume at the last batch.
    """

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self.applies = any(_parts(network) is None for network in networks.values())
        self.largest: list[torch.Size] = []

    def __call__(self, batch: Batch) -> AbstractContextManager[Any]:
        """The context for a step on this batch."""
        shapes = [tensor.shape for tensor in batch]
        if sum(shape.numel() for shape in shapes) > sum(shape.numel() for shape in self.largest):
            self.largest = shapes
        return torch.compiler.set_stance("force_eager") if self.applies and shapes != self.largest else nullcontext()


def step_functions(optimizers: Mapping[str, Optimizer], compiled: bool) -> dict[str, Callable[..., Any]]:
    """The `step` of each optimiser, compiled where that helps."""
    return {
        name: torch.compile(optimizer.step, dynamic=False) if compiled and not is_fused(optimizer) else optimizer.step
        for name, optimizer in optimizers.items()
    }


def is_fused(optimizer: Optimizer) -> bool:
    """Whether a step is one kernel already, which a compiler could only make slower.

    torch's optimisers have a param-group key `fused`; others an attribute `is_fused`. An optimiser with post-step
    hooks, such as a projection, is not fused.
    """
    if optimizer._optimizer_step_post_hooks:
        return False
    own = getattr(optimizer, "is_fused", None)
    return all(group.get("fused") for group in optimizer.param_groups) if own is None else bool(own)
