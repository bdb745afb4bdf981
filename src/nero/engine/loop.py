"""The only training loop."""

import io
import math
import pickle
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from nero.engine import seeding
from nero.engine.capture import IMPLEMENTATION_KEYS, CapturedStep
from nero.engine.distributed import average_buffers_, gather_shards, is_lost_connection, shard_like
from nero.engine.energy import EnergyCounter
from nero.engine.interrupt import stop_reason
from nero.engine.optimizers import measure_batch_norm, set_mode
from nero.engine.precision import autocast, set_precision
from nero.engine.schedules import LearningRates, Schedule
from nero.engine.step import Settings, TrainingStep
from nero.runs.store import RunDirectory, Status
from nero.runs.tracking import Tracker
from nero.tasks.base import Batch, Task, Work

# Steps between two checks that the loss is finite. A check waits for the device.
CHECK_EVERY = 50
METER_EVERY = 5.0  # seconds between two readings of the GPU's counters, each of which takes milliseconds
AGREE_EVERY = 10  # steps between two exchanges among ranks on whether to checkpoint or to stop


@dataclass
class Position:
    """Where training stands: whole epochs, steps within the current epoch, and the cost so far.

    epoch_seconds:  since the last line of the log
    joules:         used by the GPU meanwhile; NaN once any part of it is unknown
    processes:      most processes seen on that GPU, including this one; 0 if unknown
    beside:         most other runs seen on that GPU, by what they are bound by; {} if unknown
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
    """How the loop ended. `status` is None if it was asked to stop (`reason`), with a checkpoint to resume from."""

    status: Status | None
    position: Position
    diverged_at: dict[str, int] | None = None
    reason: str | None = None


class UnusableCheckpoint(RuntimeError):
    """An intact checkpoint that this code cannot load; the message is one line that says what to do."""


class Loop:
    """Trains a task from its checkpoint, or from the start, to its last epoch."""

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
        _check_trace_lengths(task)
        device = settings.device
        set_precision(settings.precision)
        torch.backends.cudnn.benchmark = True  # batches have few shapes: measure once which algorithm is fastest
        self.training_step = TrainingStep(task, self.optimizers, settings)
        self.pause_every = AGREE_EVERY if settings.ranks.size > 1 else 1
        self.position = Position(joules=0.0)
        self.energy = EnergyCounter(device)

    def begin(self) -> None:
        """Prepare to take steps: afterwards `step` takes one on a batch."""
        if self.training_step.remark and self.settings.ranks.is_main:
            self._print(self.training_step.remark)
        if self.position.epoch < self.task.epochs:
            set_mode(self.optimizers.values(), "train")
        self.rates = LearningRates(self.optimizers, self.settings.device, self.training_step.captures_optimizers)
        self.step = self.training_step.start()
        self.task.before_training(self._as_step)
        self.checkpointed = self.clock = self.metered = time.monotonic()
        self.joules = self.energy.joules()

    def run(self) -> Ending:
        """Train to the end, to divergence, or to a request to stop."""
        position, task = self.position, self.task
        self.begin()
        if reason := self._agree()[0]:
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
            if ending := self._check_divergence():
                return ending
            self._end_epoch()
            if position.epoch < task.epochs and (ending := self._pause()):
                return ending
        set_mode(self.optimizers.values(), "eval")  # a checkpoint of a finished run has the weights that were measured
        return Ending(Status.DONE, position)

    def _as_step(self, work: Work) -> Work:
        """The task's own work, in the precision of a step and captured like one."""

        def with_autocast(batch: Batch) -> None:
            with autocast(self.settings.precision, self.settings.device):
                work(batch)

        return CapturedStep(with_autocast) if self.settings.capture else with_autocast

    def _between_steps(self) -> Ending | None:
        position, task = self.position, self.task
        if position.step % CHECK_EVERY == 0:
            for tracker in self.trackers:
                tracker.step(position.epoch, position.step, task.steps_per_epoch)
            if ending := self._check_divergence():
                return ending
        may_pause = task.resumes_within_epoch and position.step < task.steps_per_epoch
        return self._pause() if may_pause and position.step % self.pause_every == 0 else None

    def _pause(self) -> Ending | None:
        """Checkpoint if it is due, and end if asked to."""
        reason, is_due = self._agree()
        if reason or is_due:
            self.checkpoint()
        return Ending(None, self.position, reason=reason) if reason else None

    def _agree(self) -> tuple[str | None, bool]:
        """Why to stop, if any rank has to, and whether a checkpoint is due: the same on all ranks."""
        reason = stop_reason(self.settings.limits)
        is_due = time.monotonic() - self.checkpointed > self.settings.checkpoint_seconds
        running, fresh = self.settings.ranks.minimum(not reason, not is_due)
        return (reason or "another rank was asked to") if not running else None, not fresh

    def _check_divergence(self) -> Ending | None:
        own = int(self.training_step.first_bad)
        # Gradients are shared: what is not finite on one rank will be on all, but not at the same step.
        [first] = self.settings.ranks.minimum(own if own >= 0 else math.inf)
        if first == math.inf:
            return None
        self._count_costs()
        where = {"epoch": int(first) // self.task.steps_per_epoch + 1, "step": int(first) + 1}
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
        costs = {"seconds": round(position.epoch_seconds, 4), "lr": self.rates.current()}
        record = {"epoch": position.epoch, "step": position.total_steps, **costs, **metrics}
        if task.log_every > 1:
            record["epochs"] = (position.epoch - 1) % task.log_every + 1  # number of epochs in this line
        if traces:
            record["trace"] = traces
        self.run_directory.append_metrics(record)
        for tracker in self.trackers:
            tracker.epoch(record)
        position.epoch_seconds = 0.0

    def _evaluate(self) -> dict[str, Any]:
        """The task's metrics; its images go to the run directory."""
        # Not compiled: once per epoch, in another mode and on other shapes, that would cost more than it saves.
        with autocast(self.settings.precision, self.settings.device), torch.compiler.set_stance("force_eager"):
            if set_mode(self.optimizers.values(), "eval"):  # the weights to be measured may be other ones
                measure_batch_norm(self.task, self.task.batches(self.position.epoch - 1))
            average_buffers_(self.task.networks(), self.settings.ranks)
            metrics = self.task.evaluate()
        for name, data in self.task.pictures().items():
            self.run_directory.write_picture(name, self.position.epoch, data)
        if self.position.epoch < self.task.epochs:
            set_mode(self.optimizers.values(), "train")
        return dict(metrics)

    def _measure_again(self) -> None:
        """Training has ended before: add what could not be measured then to the last line of the log."""
        lines = self.run_directory.read_metrics()
        last = self.settings.ranks.broadcast(lines[-1] if lines else {})
        if self.task.metric.key not in last and last.get("epoch") == self.position.epoch:
            self.run_directory.replace_last_metrics({**self._evaluate(), **last})

    def _count_costs(self, metered: bool = True) -> None:
        """Add up time, and the GPU's counters: those only every METER_EVERY seconds unless `metered`."""
        position, now = self.position, time.monotonic()
        position.seconds += now - self.clock
        position.epoch_seconds += now - self.clock
        self.clock = now
        if not metered and now - self.metered < METER_EVERY:
            return
        self.metered, joules = now, self.energy.joules()
        # Each rank knows its own card only.
        position.joules += joules - self.joules if self.settings.ranks.size == 1 else math.nan
        position.processes = max(position.processes, self.energy.processes())
        others = self.settings.other_runs()
        position.beside |= {kind: max(count, position.beside.get(kind, 0)) for kind, count in others.items()}
        self.joules = joules

    def checkpoint(self) -> None:
        """Save the whole state, so that `restore` continues bit-exactly, on any number of ranks."""
        self._count_costs()
        position, ranks = self.position, self.settings.ranks
        average_buffers_(self.task.networks(), ranks)
        state = {
            "position": vars(position),
            "networks": {name: network.state_dict() for name, network in self.task.networks().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "task": self.task.state_dict(),
            "rng": seeding.global_state(self.settings.device),
            "steps_done": self.training_step.steps_done,
            "first_bad": self.training_step.first_bad,
        }
        if ranks.size > 1:
            state = gather_shards(state)
        if ranks.is_main:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            self.run_directory.save_checkpoint(buffer.getvalue(), {"epoch": position.epoch, "step": position.step})
        self.checkpointed = time.monotonic()

    def restore(self) -> bool:
        """Load the newest intact checkpoint and drop later metrics. False if there is none."""
        run = self.run_directory
        found = run.resumable_checkpoint(self._print)
        data = self.settings.ranks.broadcast(found[1] if found else None)
        if data is None:
            run.truncate_metrics(epochs=0)
            return False
        try:
            self._load_state(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, pickle.UnpicklingError) as error:
            if isinstance(error, torch.OutOfMemoryError) or is_lost_connection(error):
                raise
            path = found[0] if found else run.path
            cause = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise UnusableCheckpoint(
                f"{path} is a checkpoint of another version of the code or of its libraries ({cause}); resume with that"
                f" version, or move {path.parent / 'checkpoint.json'} away to start over"
            ) from error
        run.truncate_metrics(epochs=self.position.epoch)
        return True

    def _print(self, line: str) -> None:
        print(f"{self.run_directory.run_id}  {line}", file=sys.stderr, flush=True)

    def _load_state(self, state: dict[str, Any]) -> None:
        for name, network in self.task.networks().items():
            own, saved = network.state_dict(), state["networks"][name]
            saved.update({key: shard_like(own[key], value) for key, value in saved.items() if key in own})
            network.load_state_dict(saved)
        for name, optimizer in self.optimizers.items():
            saved = state["optimizers"][name]
            for old, new in zip(saved["param_groups"], optimizer.param_groups, strict=True):
                # The implementation of a step depends on this machine, not on the one that wrote the state.
                old.update({key: new[key] for key in IMPLEMENTATION_KEYS if key in new})
            params = [param for group in optimizer.param_groups for param in group["params"]]
            for number, values in saved["state"].items():
                values.update({key: shard_like(params[number], value) for key, value in values.items()})
            optimizer.load_state_dict(saved)
        self.task.load_state_dict(state["task"])
        self.training_step.steps_done.copy_(state["steps_done"])
        self.training_step.first_bad.copy_(state["first_bad"])
        self.position = Position(**state["position"])
        if self.settings.ranks.is_main:
            seeding.restore_global_state(state["rng"], self.settings.device)
        else:
            # Only rank 0's generator state is saved: the others get a new seed.
            torch.manual_seed(torch.initial_seed() + self.position.total_steps)


def _check_trace_lengths(task: Task) -> None:
    """A trace that is too short would end in an error that names neither trace nor, on a GPU, step."""
    steps = task.steps_per_epoch * min(task.log_every, task.epochs)
    for name, room in task.meters.trace_rooms().items():
        if room < steps:
            raise ValueError(f"the trace {name!r} has room for {room} steps, and a line of the log stands for {steps}")
