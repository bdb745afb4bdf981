"""What the engine asks of optimisers that it does not know: modes, closures, and whether a step can be captured."""

import copy
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from nero.tasks.base import Batch, Task

PROBE_STEPS = 3  # lazy state is allocated in the first; the last two are compared
BATCH_NORM_BATCHES = 50  # over which the statistics of batch norm are measured again for averaged weights


def parts_of(optimizer: Optimizer) -> list[Optimizer]:
    """The optimisers that an optimiser such as `nero.optim.Split` consists of; else itself."""
    return getattr(optimizer, "parts", None) or [optimizer]


def requires_closure(optimizer: Optimizer) -> bool:
    """Whether `step` has to be called with a closure, as that of L-BFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def takes_loss(optimizer: Optimizer) -> bool:
    """Whether `step` has an argument `loss`."""
    return "loss" in inspect.signature(optimizer.step).parameters


def set_mode(optimizers: Iterable[Optimizer], mode: str) -> bool:
    """Call `train()` or `eval()` of the optimisers that have it, as schedule-free ones. Whether there are any."""
    switches = [switch for optimizer in optimizers if callable(switch := getattr(optimizer, mode, None))]
    for switch in switches:
        switch()
    return bool(switches)


@torch.no_grad()
def measure_batch_norm(task: Task, batches: Iterable[Batch]) -> None:
    """Measure the statistics of batch norm again: those of training belong to other weights than an average of them."""
    networks = list(task.networks().values())
    layers = [layer for layer in networks[0].modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    if not layers or len(networks) > 1:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
    devices = {param.device for param in networks[0].parameters() if param.device.type == "cuda"}
    with task.meters.paused(), torch.random.fork_rng(devices):
        for batch in islice(batches, BATCH_NORM_BATCHES):
            next(task.losses(batch))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


class Capturable(NamedTuple):
    """How far a CUDA graph can hold an optimiser's step.

    A graph repeats what a step does on the device. A step that counts in Python would repeat the count of its capture,
    and one that waits for a value cannot be captured.
    """

    at_any_rate: bool  # with its learning rate in a tensor on the device
    at_one_rate: bool  # with its learning rate as a number, until that changes
    reason: str = ""  # why not at any rate


def capturable(optimizer: Optimizer) -> Capturable:
    """Find out, from a few steps of a copy of an optimiser that nothing is known about."""
    if requires_closure(optimizer):
        return Capturable(False, False, "it needs a closure")
    unknown = [part for part in parts_of(optimizer) if not _has_capturable_step(part)]
    reasons = list(filter(None, (_probe(part, as_tensor=True) for part in unknown)))
    at_one_rate = not any(_probe(part, as_tensor=False) for part in unknown) if reasons else True
    return Capturable(not reasons, at_one_rate, *reasons[:1])


def _has_capturable_step(optimizer: Optimizer) -> bool:
    """Those of torch that `allow_capture` has prepared, and those that have kernels of their own."""
    prepared = all(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    return prepared or hasattr(optimizer, "is_fused")


def _probe(optimizer: Optimizer, as_tensor: bool) -> str | None:
    """Why a step cannot be captured with this kind of learning rate, or None."""
    device = optimizer.param_groups[0]["params"][0].device
    on_gpu = device.type == "cuda"
    try:
        probe: Any = _copy(optimizer)
        set_mode([probe], "train")
        loss = {"loss": torch.ones((), device=device)} if takes_loss(probe) else {}
        before: list[tuple[str, Any]] = []
        after: list[tuple[str, Any]] = []
        syncs: list[str] = []
        with torch.random.fork_rng([device] if on_gpu else []):
            for group in probe.param_groups:
                group["lr"] = torch.tensor(float(group["lr"]), device=device) if as_tensor else float(group["lr"])
            for _ in range(PROBE_STEPS):
                for param in (param for group in probe.param_groups for param in group["params"]):
                    param.grad = torch.randn_like(param)
                with _synchronisations(on_gpu) as syncs:
                    probe.step(**loss)
                before, after = after, list(_host_values(vars(probe), device))
    except Exception as error:
        return f"its step does not take a learning rate on the GPU ({' '.join(str(error).split())[:100]})"
    changed = [now[0] for now, then in zip_longest(after, before, fillvalue=("state", None)) if now != then]
    if changed:
        return f"its step changes {changed[0]!r} on the host"
    return "its step waits for a value on the GPU" if syncs else None


def _copy(optimizer: Optimizer) -> Optimizer:
    """A copy with all attributes and without hooks; torch's own copy has neither."""
    made = object.__new__(type(optimizer))
    hooks = {name: OrderedDict[int, Any]() for name in vars(optimizer) if name.endswith("_hooks")}
    others = {name: value for name, value in vars(optimizer).items() if name not in hooks}
    made.__dict__.update(copy.deepcopy(others) | hooks)
    return made


@contextmanager
def _synchronisations(on_gpu: bool) -> Iterator[list[str]]:
    """Collect torch's warnings about operations that wait for the GPU."""
    found: list[str] = []
    if not on_gpu:
        yield found
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    found += [str(each.message) for each in caught if "synchroniz" in str(each.message)]


def _host_values(value: Any, device: torch.device, name: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers, and the values of tensors on another device, each with its name."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key not in ("params", "lr"):
                yield from _host_values(entry, device, key if isinstance(key, str) else name)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _host_values(entry, device, name)
    elif isinstance(value, int | float):
        yield name, value
    elif isinstance(value, Tensor) and value.device != device:
        yield name, value.tolist()
