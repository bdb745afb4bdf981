"""The contract between a learning problem and the engine.

A task owns its data, its networks, its losses and its metric. The engine owns time: it asks for batches, steps the
optimiser of each network that a loss is yielded for, evaluates once per epoch, checkpoints and resumes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
"""Tensors on the device. A step is captured once per combination of shapes, so there should be few."""

Work = Callable[[Batch], None]
"""Work on the device, which changes state in place."""


NETWORK = "network"
"""What a task with a single network calls it."""


class BadSetting(ValueError):
    """A task was given a setting that it cannot have; the message is one line."""


def check_whole(name: str, value: object) -> None:
    """Raise unless it is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadSetting(f"{name} must be a whole number from 1, not {value!r}")


@dataclass(frozen=True)
class Metric:
    """What a table reports of a task: the value of `key` at the end of training."""

    key: str
    goal: Literal["min", "max"]
    label: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class Streams(Protocol):
    """Random streams named by purpose and epoch, so that resuming at an epoch needs no saved loader state."""

    def number(self, purpose: str, epoch: int = 0) -> int: ...
    def generator(self, purpose: str, epoch: int = 0) -> torch.Generator: ...


class Ranks(Protocol):
    """The processes that train together, each on its part of every batch, and this one's place among them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_size(self) -> int:
        """How many of them share this machine."""

    def sum_(self, tensor: Tensor) -> None:
        """Put the sum over all ranks in the place of each one's tensor."""


@dataclass(frozen=True)
class Alone:
    """One process, as most tasks are trained by."""

    rank: int = 0
    size: int = 1
    local_size: int = 1

    def sum_(self, tensor: Tensor) -> None:
        return


ALONE = Alone()


@dataclass(frozen=True)
class Machine:
    """How a task makes use of the machine; none of it changes what a run is.

    workers:        processes that read images, where a task reads them from files; None for what suits the machine
    decode:         where such images are decoded: "cpu" (by the workers), "gpu", "dali", or "auto"
    channels_last:  whether the channels of a pixel lie together in memory
    """

    workers: int | None = None
    decode: str = "auto"
    channels_last: bool = True


@dataclass(frozen=True)
class Context:
    """What a task is given beside its own settings: where it runs, its randomness, its data."""

    device: torch.device
    streams: Streams
    data: str  # "real" or "embedded"
    data_root: Path
    inception: Path | None = None  # Inception's weights, where they are not under the data root
    ranks: Ranks = ALONE
    machine: Machine = Machine()


class Meters:
    """Sums and traces over the epochs of a line of the log, kept on the device and read once at their end.

    Everything is allocated here and only ever changed in place, so that updates can be part of a captured step. With
    `ranks`, each adds up its own, and what is read or saved is the sum over all: they do either together.
    """

    def __init__(
        self,
        device: torch.device,
        sums: tuple[str, ...] = (),
        traces: Mapping[str, int] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        if traces and ranks.size > 1:
            raise ValueError("traces are of a process alone")
        self._ranks = ranks
        self._sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in sums}
        self._traces = {name: torch.zeros(steps, device=device) for name, steps in (traces or {}).items()}
        self._places = {name: torch.zeros(1, dtype=torch.int64, device=device) for name in self._traces}

    def add_(self, name: str, value: Tensor | float) -> None:
        """Add to a sum."""
        self._sums[name].add_(value.detach() if isinstance(value, Tensor) else value)

    def append_(self, name: str, value: Tensor) -> None:
        """Put the next value of a trace, one per step; there is room for as many as were asked for."""
        place = self._places[name]
        self._traces[name].index_copy_(0, place, value.detach().reshape(1).to(torch.float32))
        place.add_(1)

    def read(self) -> dict[str, float]:
        """The sums, in one transfer from the device."""
        values: list[float] = self._totals().tolist()
        return dict(zip(self._sums, values, strict=True))

    def _totals(self) -> Tensor:
        """Over all ranks, in the order of the sums."""
        totals = torch.stack(list(self._sums.values()))
        self._ranks.sum_(totals)
        return totals

    def trace_rooms(self) -> dict[str, int]:
        """Values that each trace has room for."""
        return {name: len(trace) for name, trace in self._traces.items()}

    def read_traces(self) -> dict[str, list[float]]:
        return {name: trace[: int(self._places[name])].tolist() for name, trace in self._traces.items()}

    def reset_(self) -> None:
        for tensor in self._named().values():
            tensor.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        state = self._named()
        if self._ranks.size > 1:
            state |= {f"sum/{name}": total for name, total in zip(self._sums, self._totals(), strict=True)}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if self._ranks.rank > 0:
            self.reset_()  # the first has the sum of all
            return
        for name, tensor in self._named().items():
            tensor.copy_(state[name])

    def _named(self) -> dict[str, Tensor]:
        named = {"sum": self._sums, "trace": self._traces, "place": self._places}
        return {f"{kind}/{name}": tensor for kind, group in named.items() for name, tensor in group.items()}


class Task(ABC):
    """One learning problem. A new one is a module with a subclass of this and a YAML in configs/task."""

    metric: Metric
    epochs: int
    steps_per_epoch: int
    meters: Meters

    resumes_within_epoch: bool = True
    """Whether `batches(epoch, start)` can take up an epoch in its middle; else checkpoints wait for its end."""

    log_every: int = 1
    """Epochs that a line of the log stands for: more for a task of many short ones. The last line may have fewer."""

    clip_norm: float | None = None
    """The most that the gradients of a network together may measure, where an optimiser's settings do not say."""

    remarks: tuple[str, ...] = ()
    """What whoever looks at the run should know, a line each, such as what it goes without."""

    threads: int | None = None
    """CPU threads of torch that suit the task, where the machine's settings do not say."""

    splits_over_ranks: bool = False
    """Whether several processes can train it together. Each then has its part of every batch, `losses` yields such
    that their mean over ranks is the whole batch's loss, `meters` are made with the context's ranks, and `evaluate`,
    which all of them call, measures the same on each."""

    @abstractmethod
    def networks(self) -> dict[str, nn.Module]:
        """The networks by name; each gets an optimiser of its own."""

    def spread(self, over_ranks: Callable[[nn.Module], nn.Module]) -> None:
        """Told once, before there are optimisers, how to have a network trained by all ranks.

        In training, forward passes go through what `over_ranks` gives for a network.
        """
        raise NotImplementedError

    def before_training(self, as_step: Callable[[Work], Work]) -> None:
        """Told once how to make work of its own between batches as quick as a step.

        What goes through `as_step` runs in the same arithmetic as a step and is captured where steps are.
        """
        return

    def after_training(self) -> None:
        """Told once that no more batches will be asked for, however training ended: such as to end its processes."""
        return

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches (counted from 0) from number `start` on."""

    @abstractmethod
    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """(network, loss) pairs. The engine steps that network before it asks for the next pair."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics of the epoch, or of all `log_every` epochs, that have just ended: "train/loss", "val/error".

        What takes long may be measured now and then only, and in the last epoch. A run whose last line lacks the metric
        itself is measured anew when it is next asked for.
        """

    def pictures(self) -> dict[str, bytes]:
        """Files that show what `evaluate` has just measured, by their names with a suffix; kept with the run."""
        return {}

    def traces(self) -> dict[str, list[float]]:
        """Values per step of what `evaluate` has metrics of, for figures that are drawn against iterations."""
        return self.meters.read_traces()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside networks and optimisers."""
        return {"meters": self.meters.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.meters.load_state_dict(state["meters"])
