"""torch.compile by a key: of networks, and of optimisers' steps that are not one kernel already."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nero.tasks.base import Batch


def compile_networks(networks: Mapping[str, nn.Module]) -> None:
    """Whole, or in the parts that a network names by a method `compiled_parts`; that may name none."""
    for network in networks.values():
        parts = _parts(network)
        if parts is None:
            network.compile(dynamic=False)  # batches have few shapes: each gets kernels of its own
            continue
        for part in parts:
            part.compile(dynamic=True)  # such a network is large, and kernels for each shape would take minutes


_kind: Hashable | None = None
_graphs: int | None = None


def reuse_compiled_code(kind: Hashable | None) -> None:
    """Call before a run compiles: code of the last run in this process is reused if that was of the same kind.

    To load the same kernels from disk again takes seconds, and memory on the GPU that is not freed. torch's guards
    check that code fits. None is for runs whose code fits no other run.
    """
    global _kind, _graphs
    if kind is None or kind != _kind:
        torch.compiler.reset()
        _kind, _graphs = kind, None


def keep_compiled_code() -> None:
    """Call after a run that compiled: its code is kept for the next run, unless it cannot be reused."""
    from torch._dynamo.utils import counters  # which takes a second to load

    global _kind, _graphs
    graphs = counters["stats"]["unique_graphs"]
    # A run that compiled again although code of its kind was there: entries would accumulate up to torch's recompile
    # limit, beyond which it runs eagerly.
    if _kind is None or (_graphs is not None and _graphs != graphs):
        torch.compiler.reset()
        _kind = None
    _graphs = graphs


def _parts(network: nn.Module) -> Sequence[nn.Module] | None:
    """None for a network that is compiled whole."""
    named = getattr(network, "compiled_parts", None)
    return None if named is None else named()


class LargestShapeOnly:
    """Where kernels are made for one shape, they are for the largest that has come.

    Others, as a rule the last and smaller batch of an epoch, go without: to compile for them can take a minute, and to
    run one step of an epoch by other kernels costs milliseconds. Not for the first, since a run may be taken up there.
    """

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self.applies = any(_parts(network) is None for network in networks.values())
        self.largest: list[torch.Size] = []

    def __call__(self, batch: Batch) -> AbstractContextManager[Any]:
        """The context in which a step on this batch is taken."""
        shapes = [tensor.shape for tensor in batch]
        if sum(shape.numel() for shape in shapes) > sum(shape.numel() for shape in self.largest):
            self.largest = shapes
        return torch.compiler.set_stance("force_eager") if self.applies and shapes != self.largest else nullcontext()


def steps(optimizers: Mapping[str, Optimizer], compiled: bool) -> dict[str, Callable[[], Any]]:
    """What takes a step of each optimiser."""
    return {
        name: torch.compile(optimizer.step, dynamic=False) if compiled and not is_fused(optimizer) else optimizer.step
        for name, optimizer in optimizers.items()
    }


def is_fused(optimizer: Optimizer) -> bool:
    """Whether a step is one kernel as it is, which a compiler could only make slower.

    An optimiser of torch's is if it has been told to be; any other says so by an attribute `is_fused`. None is that has
    something to do after its step, such as to project.
    """
    if optimizer._optimizer_step_post_hooks:
        return False
    said = getattr(optimizer, "is_fused", None)
    return all(group.get("fused") for group in optimizer.param_groups) if said is None else bool(said)
