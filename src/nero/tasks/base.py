"""The contract between a learning problem and the engine.

A task has its data, its networks, its losses and its metric. The engine runs the loop: it asks for batches, steps the
optimiser of each network that a loss is yielded for, evaluates once per epoch, checkpoints and resumes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")

# Tensors on the device. A step is captured once per combination of shapes, so there should be few.
Batch = tuple[Tensor, ...]
Work = Callable[[Batch], None]  # work on the device that changes state in place
NETWORK = "network"  # the name of the network of a task that has only one


class BadSetting(ValueError):
    """A task was given an invalid setting; the message is one line."""


def check_positive(**settings: object) -> None:
    """Raise unless each setting is a positive integer."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadSetting(f"{name} must be a positive integer, not {value!r}")


def check_range(least: float, most: float, **settings: object) -> None:
    """Raise unless each setting is a number from `least` to `most`, which may be infinite."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value == inf:
            allowed = f"from {least:g} to {most:g}" if most < inf else f"of at least {least:g}"
            raise BadSetting(f"{name} must be a number {allowed}, not {value!r}")


def check_examples(wanted: int | None, available: int | None = None) -> None:
    """Raise unless `train_examples` is None or a positive integer, at most the number of available examples."""
    if wanted is not None:
        check_positive(train_examples=wanted)
        if available is not None and wanted > available:
            raise BadSetting(f"train_examples must be at most {available}, not {wanted}")


def build_network(network: Callable[..., nn.Module], *sizes: int, **named: int) -> nn.Module:
    """The network for sizes that its task knows; its errors become one-line BadSettings."""
    try:
        return network(*sizes, **named)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadSetting(f"network: {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class Metric:
    """What tables report of a task: the value of `key` at the end of training."""

    key: str
    goal: Literal["min", "max"]
    label: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class Streams(Protocol):
    """Random streams named by purpose and epoch, so that resuming at an epoch needs no saved loader state."""

    def number(self, purpose: str, epoch: int = 0) -> int: ...
    def generator(self, purpose: str, epoch: int = 0) -> torch.Generator: ...


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, each on its part of every batch; by default this one alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor of each rank by the sum over all ranks."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor)


ALONE = Ranks()


@dataclass(frozen=True)
class Machine:
    """How a task uses the machine; none of it is part of a run's identity."""

    workers: int | None = None  # processes that read image files; None chooses by the machine
    decode: str = "auto"  # where image files are decoded: "cpu" (by the workers), "gpu" or "auto"
    channels_last: bool = True  # memory format of images and convolutions


@dataclass(frozen=True)
class Context:
    """What a task gets besides its own settings: device, random streams, data."""

    device: torch.device
    streams: Streams
    data: str  # "real" or "embedded"
    data_root: Path
    inception: Path | None = None  # Inception's weights, if not under the data root
    ranks: Ranks = ALONE
    machine: Machine = Machine()


class Prefetch(Generic[T]):
    """The data of an epoch, `make(epoch)`, made while the device still computes the epoch before. `len` counts those.

    When the host has issued all batches of an epoch, a GPU has yet to compute the last ones: host work is then free.
    """

    def __init__(self, make: Callable[[int], T], epochs: int) -> None:
        self.make, self.epochs = make, epochs
        self._made: dict[int, T] = {}

    def take(self, epoch: int) -> T:
        return self._made.pop(epoch) if epoch in self._made else self.make(epoch)

    def prepare_after(self, epoch: int) -> None:
        """Make the data of the next epoch, unless this is the last."""
        self._made.clear()
        if epoch + 1 < self.epochs:
            self._made[epoch + 1] = self.make(epoch + 1)

    def __len__(self) -> int:
        return len(self._made)


class Meters:
    """Sums and traces over the epochs of a log line, accumulated on the device and read once.

    Tensors are allocated once and changed in place, so that updates can be part of a captured step. With `ranks`, each
    rank adds up its own values, and reading or saving sums over all ranks: all of them must do it together.
    """

    def __init__(
        self,
        device: torch.device,
        sums: tuple[str, ...] = (),
        traces: Mapping[str, int] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        if traces and ranks.size > 1:
            raise ValueError("traces need a single process")
        self._ranks = ranks
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in sums}
        self._traces = {name: torch.zeros(steps, device=device) for name, steps in (traces or {}).items()}
        self._places = {name: torch.zeros(1, dtype=torch.int64, device=device) for name in self._traces}
        groups = {"sum": self._sums, "trace": self._traces, "place": self._places}
        self._is_paused = False
        self._state = {f"{kind}/{name}": tensor for kind, group in groups.items() for name, tensor in group.items()}

    def add_(self, name: str, value: Tensor | float) -> None:
        """Add to a sum."""
        if self._is_paused:
            return
        self._sums[name].add_(value.detach() if isinstance(value, Tensor) else value)

    def append_(self, name: str, value: Tensor) -> None:
        """Append a value to a trace, one per step."""
        if self._is_paused:
            return
        place = self._places[name]
        self._traces[name].index_copy_(0, place, value.detach().reshape(1).to(torch.float32))
        place.add_(1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Add and append nothing: a loss is computed that is not one of training's steps."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def read(self) -> dict[str, float]:
        """The sums, in one transfer from the device."""
        return dict(zip(self._sums, self._totals().tolist(), strict=True))

    def _totals(self) -> Tensor:
        totals = torch.stack(list(self._sums.values()))
        self._ranks.sum_(totals)
        return totals

    def trace_rooms(self) -> dict[str, int]:
        """The capacity of each trace."""
        return {name: len(trace) for name, trace in self._traces.items()}

    def read_traces(self) -> dict[str, list[float]]:
        return {name: trace[: int(self._places[name])].tolist() for name, trace in self._traces.items()}

    def reset_(self) -> None:
        for tensor in self._state.values():
            tensor.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        if self._ranks.size == 1:
            return dict(self._state)
        return {f"sum/{name}": total for name, total in zip(self._sums, self._totals(), strict=True)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._state.items():
            if self._ranks.rank == 0:  # which holds the sum over all ranks
                tensor.copy_(state[name])
            else:
                tensor.zero_()


class Task(ABC):
    """One learning problem. A new task is a module with a subclass of this and a YAML in configs/task."""

    metric: Metric
    network: nn.Module
    epochs: int
    steps_per_epoch: int
    meters: Meters

    resumes_within_epoch: bool = True  # whether `batches` can start in mid-epoch; else checkpoints wait for its end
    log_every: int = 1  # epochs per line of the log, for tasks of many short epochs; the last line may have fewer
    clip_norm: float | None = None  # bound of the joint norm of a network's gradients, unless its optimiser has one
    remarks: tuple[str, ...] = ()  # notes for the reader of a run, one line each, such as missing measurements
    threads: int | None = None  # CPU threads of torch that suit the task, unless the machine's settings have them

    splits_over_ranks: bool = False
    """Whether several processes can train it together. Each then has its part of every batch, the mean over ranks of
    the yielded losses is the loss of the whole batch, `meters` are made with the context's ranks, and `evaluate`, which
    all ranks call, returns the same on each."""

    def networks(self) -> dict[str, nn.Module]:
        """The networks by name, if there are several; each gets an optimiser of its own."""
        return {NETWORK: self.network}

    def spread(self, over_ranks: Callable[[nn.Module], nn.Module]) -> None:
        """Called once, before optimisers are made. Training must call `over_ranks(network)` instead of the network."""
        raise NotImplementedError

    def before_training(self, as_step: Callable[[Work], Work]) -> None:
        """Called once. Work wrapped by `as_step` runs in the precision of a step and is captured where steps are."""
        return

    def after_training(self) -> None:
        """Called once when training has ended in any way, for instance to stop worker processes."""
        return

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch (both count from 0), from number `start` on."""

    @abstractmethod
    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """(network, loss) pairs. The engine steps that network before it asks for the next pair."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics of the last `log_every` epochs, such as "train/loss" and "val/error".

        Expensive ones may be measured only in some epochs and the last. A run whose last line lacks its metric is
        measured again when it is next requested.
        """

    def pictures(self) -> dict[str, bytes]:
        """Files by name that show what `evaluate` has just measured; they are stored with the run."""
        return {}

    def traces(self) -> dict[str, list[float]]:
        """Values per step of metrics of `evaluate`, for figures over iterations."""
        return self.meters.read_traces()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides networks and optimisers."""
        return {"meters": self.meters.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.meters.load_state_dict(state["meters"])
