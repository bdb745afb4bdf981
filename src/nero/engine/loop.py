"""The only training loop."""

import io
import math
import pickle
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nero.engine import seeding
from nero.engine.capture import IMPLEMENTATION_KEYS, CapturedStep, allow_capture
from nero.engine.compilation import LargestShapeOnly, compile_networks, is_fused, reuse_compiled_code, steps
from nero.engine.distributed import ALONE, Ranks, average_buffers_, is_lost_connection, shard_like, whole
from nero.engine.energy import EnergyCounter
from nero.engine.interrupt import NO_LIMITS, stop_reason
from nero.engine.precision import autocast, set_precision
from nero.engine.schedules import Schedule
from nero.runs.slots import Neighbours, nobody
from nero.runs.stopping import Limits
from nero.runs.store import RunDirectory, Status
from nero.runs.tracking import Tracker
from nero.tasks.base import Batch, Task, Work

CHECK_EVERY = 50
"""Steps between two looks at whether the loss is still finite. A look waits for the device, so it is not free."""

METER_EVERY = 5.0
"""Seconds between two looks at the GPU's counters, which keep it waiting for milliseconds between two epochs."""

AGREE_EVERY = 10
"""Steps after which several ranks ask each other whether to checkpoint or to stop."""


@dataclass(frozen=True)
class Settings:
    """How a run is carried out, as far as the loop cares.

    kind:  equal for runs whose networks are compiled to the same code, in this precision; None where that is unknown
    """

    device: torch.device
    precision: str = "fp32"
    capture: bool = False
    compile: bool = False
    kind: Hashable | None = None
    checkpoint_seconds: float = 300.0
    limits: Limits = NO_LIMITS
    ranks: Ranks = ALONE
    neighbours: Neighbours = nobody


@dataclass
class Position:
    """Where training stands: whole epochs done, steps done in the current one, and what it took.

    epoch_seconds:  since the last line of the log
    joules:         used by the GPU meanwhile; NaN where that is unknown, for good: of a part there is no telling
    processes:      the most that were seen to compute on that GPU, this one included; 0 where unknown
    beside:         the most other runs that were seen on that GPU, by what they are bound by; {} where unknown
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    joules: float = math.nan
    processes: int = 0
    beside: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How the loop ended. `status` is None when it was asked to stop (`reason`) and left a checkpoint to go on from."""

    status: Status | None
    position: Position
    diverged_at: dict[str, int] | None = None
    reason: str | None = None


class UnusableCheckpoint(RuntimeError):
    """A whole checkpoint that is none of this code's for this run; in one line that says what to do."""


class LearningRates:
    """Sets every optimiser's learning rate to its initial value times the schedule's factor.

    Inside a captured step the learning rate must be a device tensor; elsewhere it is a plain number, so that any
    optimiser will do.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], device: torch.device, as_tensors: bool) -> None:
        self.groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        self.factor: float | None = None
        for group in self.groups:
            group.setdefault("initial_lr", float(group["lr"]))
            group["lr"] = torch.tensor(group["initial_lr"], device=device) if as_tensors else group["initial_lr"]

    def set(self, factor: float) -> None:
        if factor == self.factor:
            return
        self.factor = factor
        for group in self.groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial_lr"] * factor)
            else:
                group["lr"] = group["initial_lr"] * factor

    def current(self) -> float:
        return float(self.groups[0]["initial_lr"]) * (1.0 if self.factor is None else self.factor)


class Loop:
    """Trains a task from wherever its run directory stands to its last epoch."""

    def __init__(
        self,
        task: Task,
        optimizers: Mapping[str, Optimizer],
        schedule: Schedule,
        run: RunDirectory,
        trackers: list[Tracker],
        settings: Settings,
    ) -> None:
        self.task, self.optimizers, self.schedule = task, dict(optimizers), schedule
        self.run_directory, self.trackers, self.settings = run, trackers, settings
        _check_rooms(task)
        device = settings.device
        set_precision(settings.precision)
        torch.backends.cudnn.benchmark = True  # batches have few shapes: measure once which algorithm is fastest
        if settings.capture:
            for optimizer in self.optimizers.values():
                allow_capture(optimizer)
        self.by_compiled_kernels: Callable[[Batch], AbstractContextManager[Any]] = lambda batch: nullcontext()
        # Outside of a capture learning rates are numbers, and a compiled step would be compiled anew for each.
        self.steps = steps(self.optimizers, settings.compile and settings.capture)
        if settings.compile:
            # A compiled step is for its own optimiser's parameters: no other run can reuse it.
            reusable = not settings.capture or all(map(is_fused, self.optimizers.values()))
            kind = (settings.kind, settings.precision, settings.capture, device)
            reuse_compiled_code(kind if reusable and settings.kind is not None else None)
            compile_networks(task.networks())
            self.by_compiled_kernels = LargestShapeOnly(task.networks())
        self.look_every = AGREE_EVERY if settings.ranks.size > 1 else 1
        self.position = Position(joules=0.0)
        self.energy = EnergyCounter(device)
        # The number of the step, and of the first one whose loss was not finite (-1: none): on the device, so that a
        # step never has to ask the host.
        self.steps_done = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Get ready to take steps, wherever training stands: `step` takes one on a batch."""
        self.rates = LearningRates(self.optimizers, self.settings.device, self.settings.capture)
        self.step = CapturedStep(self._step) if self.settings.capture else self._step
        self.task.before_training(self._as_step)
        self.checkpointed = self.clock = self.metered = time.monotonic()
        self.joules = self.energy.joules()

    def run(self) -> Ending:
        """Go on to the end, to divergence, or to a request to stop."""
        position, task = self.position, self.task
        self.begin()
        if reason := self._agreed()[0]:
            return Ending(None, position, reason=reason)
        if position.epoch == task.epochs:
            self._measure_again()
        while position.epoch < task.epochs:
            for batch in task.batches(position.epoch, position.step):
                self.rates.set(self.schedule(position.epoch + position.step / task.steps_per_epoch))
                self.step(batch)
                position.step += 1
                position.total_steps += 1
                if ending := self._between_steps():
                    return ending
            if ending := self._diverged():
                return ending
            self._end_epoch()
            if position.epoch < task.epochs and (ending := self._pause()):
                return ending
        return Ending(Status.DONE, position)

    def _step(self, batch: Batch) -> None:
        """What is captured: for each loss that the task yields, one backward pass and one step of that network."""
        with self.by_compiled_kernels(batch):
            self._step_by_losses(self.task.losses(batch))
        self.steps_done += 1

    def _step_by_losses(self, losses: Iterator[tuple[str, Tensor]]) -> None:
        while True:
            with autocast(self.settings.precision, self.settings.device):
                pair = next(losses, None)
            if pair is None:
                break
            name, loss = pair
            self.optimizers[name].zero_grad(set_to_none=True)
            loss.backward()
            self.steps[name]()
            newly_bad = ~torch.isfinite(loss.detach()) & (self.first_bad < 0)
            self.first_bad.copy_(torch.where(newly_bad, self.steps_done, self.first_bad))

    def _as_step(self, work: Work) -> Work:
        """Work of the task's own, in the arithmetic of a step and captured like one."""

        def in_arithmetic(batch: Batch) -> None:
            with autocast(self.settings.precision, self.settings.device):
                work(batch)

        return CapturedStep(in_arithmetic) if self.settings.capture else in_arithmetic

    def _between_steps(self) -> Ending | None:
        position, task = self.position, self.task
        if position.step % CHECK_EVERY == 0:
            for tracker in self.trackers:
                tracker.step(position.epoch, position.step, task.steps_per_epoch)
            if ending := self._diverged():
                return ending
        may_pause = task.resumes_within_epoch and position.step < task.steps_per_epoch
        return self._pause() if may_pause and position.step % self.look_every == 0 else None

    def _pause(self) -> Ending | None:
        """Checkpoint if it is time to, and end if asked to."""
        reason, due = self._agreed()
        if reason or due:
            self.checkpoint()
        return Ending(None, self.position, reason=reason) if reason else None

    def _agreed(self) -> tuple[str | None, bool]:
        """Why to stop, if any rank has to, and whether it is time for a checkpoint: the same on all ranks."""
        reason = stop_reason(self.settings.limits)
        due = time.monotonic() - self.checkpointed > self.settings.checkpoint_seconds
        running, fresh = self.settings.ranks.least(not reason, not due)
        return (reason or "another rank was asked to") if not running else None, not fresh

    def _diverged(self) -> Ending | None:
        own = int(self.first_bad)
        # Gradients are shared: what is not finite on one rank will be on all, but not at the same step.
        [first] = self.settings.ranks.least(own if own >= 0 else math.inf)
        if not math.isfinite(first):
            return None
        first_bad = int(first)
        self._count_costs()
        where = {"epoch": first_bad // self.task.steps_per_epoch + 1, "step": first_bad + 1}
        return Ending(Status.DIVERGED, self.position, diverged_at=where)

    def _end_epoch(self) -> None:
        position, task = self.position, self.task
        position.epoch, position.step = position.epoch + 1, 0
        if position.epoch % task.log_every and position.epoch < task.epochs:
            return
        metrics = self._evaluate()
        traces = task.traces()
        task.meters.reset_()
        self._count_costs(metered=position.epoch == task.epochs)
        record: dict[str, Any] = {
            "epoch": position.epoch,
            "step": position.total_steps,
            "seconds": round(position.epoch_seconds, 4),
            "lr": self.rates.current(),
            **metrics,
        }
        if task.log_every > 1:
            record["epochs"] = (position.epoch - 1) % task.log_every + 1  # that this line stands for
        if traces:
            record["trace"] = traces
        self.run_directory.append_metrics(record)
        for tracker in self.trackers:
            tracker.epoch(record)
        position.epoch_seconds = 0.0

    def _evaluate(self) -> dict[str, float]:
        """The task's metrics; its pictures go to the run directory."""
        average_buffers_(self.task.networks(), self.settings.ranks)
        # Not compiled: once per epoch, in another mode and on other shapes, that would cost more than it saves.
        with autocast(self.settings.precision, self.settings.device), torch.compiler.set_stance("force_eager"):
            metrics = self.task.evaluate()
        for name, data in self.task.pictures().items():
            self.run_directory.write_picture(name, self.position.epoch, data)
        return metrics

    def _measure_again(self) -> None:
        """Training has ended before: add to its last line what could not be measured then."""
        lines = self.run_directory.read_metrics()
        last = self.settings.ranks.from_first(lines[-1] if lines else {})
        if self.task.metric.key not in last and last.get("epoch") == self.position.epoch:
            self.run_directory.replace_last_metrics({**self._evaluate(), **last})

    def _count_costs(self, metered: bool = True) -> None:
        """Time, and what the GPU's counters say: that only now and then unless `metered`."""
        position, now = self.position, time.monotonic()
        position.seconds += now - self.clock
        position.epoch_seconds += now - self.clock
        self.clock = now
        if not metered and now - self.metered < METER_EVERY:
            return
        self.metered, joules = now, self.energy.joules()
        # Of several ranks' cards each rank knows one.
        position.joules += joules - self.joules if self.settings.ranks.size == 1 else math.nan
        position.processes = max(position.processes, self.energy.processes())
        others = self.settings.neighbours()
        position.beside |= {kind: max(count, position.beside.get(kind, 0)) for kind, count in others.items()}
        self.joules = joules

    # checkpoints

    def checkpoint(self) -> None:
        """Write the whole state, so that `restore` goes on as if nothing had happened, on any number of ranks."""
        self._count_costs()
        position, ranks = self.position, self.settings.ranks
        average_buffers_(self.task.networks(), ranks)
        state = {
            "position": vars(position),
            "networks": {name: network.state_dict() for name, network in self.task.networks().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "task": self.task.state_dict(),
            "rng": seeding.global_state(self.settings.device),
            "steps_done": self.steps_done,
            "first_bad": self.first_bad,
        }
        if ranks.size > 1:
            state = whole(state)
        if ranks.leads:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            self.run_directory.save_checkpoint(buffer.getvalue(), {"epoch": position.epoch, "step": position.step})
        self.checkpointed = time.monotonic()

    def restore(self) -> bool:
        """Take up the newest whole checkpoint, and drop the metrics that come after it. False where there is none.

        UnusableCheckpoint for one of another layout: it is neither taken for what it is not, nor overwritten.
        """
        found = self.run_directory.checkpoint_to_go_on_from(self._say)
        data = self.settings.ranks.bytes_from_first(found[1] if found else None)
        if data is None:
            self.run_directory.keep_metrics(epochs=0)
            return False
        try:
            self._take_up(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, pickle.UnpicklingError) as error:
            if isinstance(error, torch.OutOfMemoryError) or is_lost_connection(error):
                raise
            where = found[0] if found else self.run_directory.path
            said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise UnusableCheckpoint(
                f"{where} is a checkpoint of another version of the code or of its libraries ({said}); go on with that"
                f" version, or move {where.parent / 'checkpoint.json'} away to start anew"
            ) from error
        self.run_directory.keep_metrics(epochs=self.position.epoch)
        return True

    def _take_up(self, state: dict[str, Any]) -> None:
        """The state that `checkpoint` wrote."""
        ranks = self.settings.ranks
        for name, network in self.task.networks().items():
            network.load_state_dict(_sharded_like(network, state["networks"][name]))
        for name, optimizer in self.optimizers.items():
            saved = state["optimizers"][name]
            for old, new in zip(saved["param_groups"], optimizer.param_groups, strict=True):
                # How a step is carried out depends on the machine that does it, not on the one that wrote the state.
                old.update({key: new[key] for key in IMPLEMENTATION_KEYS if key in new})
            params = [param for group in optimizer.param_groups for param in group["params"]]
            for number, values in saved["state"].items():
                values.update({key: shard_like(params[number], value) for key, value in values.items()})
            optimizer.load_state_dict(saved)
        self.task.load_state_dict(state["task"])
        self.steps_done.copy_(state["steps_done"])
        self.first_bad.copy_(state["first_bad"])
        self.position = Position(**state["position"])
        if ranks.leads:
            seeding.restore_global_state(state["rng"], self.settings.device)
        else:
            # Only the first rank's draws are kept: the others go on with new ones.
            seeding.seed_global(torch.initial_seed() + self.position.total_steps)

    def _say(self, remark: str) -> None:
        print(f"{self.run_directory.run_id}  {remark}", file=sys.stderr, flush=True)


def _sharded_like(network: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Of a network's whole state, what this rank holds; the very same where nothing is sharded."""
    own = network.state_dict()
    state.update({key: shard_like(own[key], value) for key, value in state.items() if key in own})
    return state


def _check_rooms(task: Task) -> None:
    """A trace that is too short would end a run in an error that names no trace, and on a GPU no step either."""
    steps = task.steps_per_epoch * min(task.log_every, task.epochs)
    for name, room in task.meters.trace_rooms().items():
        if room < steps:
            raise ValueError(f"the trace {name!r} has room for {room} steps, and a line of the log stands for {steps}")
