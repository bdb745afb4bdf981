"""One training step: forward, backward and optimiser step for each loss of a task, in a CUDA graph where possible."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nero.engine.capture import CapturedAtRate, CapturedStep, allow_capture
from nero.engine.compilation import LargestShapeOnly, compile_networks, is_fused, reuse_compiled_code, step_functions
from nero.engine.distributed import ALONE, Ranks
from nero.engine.interrupt import NO_LIMITS
from nero.engine.optimizers import Capturable, capturable, parts_of, requires_closure, takes_loss
from nero.engine.precision import autocast
from nero.runs.slots import OtherRuns, no_other_runs
from nero.runs.stopping import Limits
from nero.tasks.base import Batch, Task


@dataclass(frozen=True)
class Settings:
    """How a run is executed.

    kind:        equal for runs whose networks compile to the same code; None if unknown
    other_runs:  counts the other runs on this GPU
    """

    device: torch.device
    precision: str = "fp32"
    capture: bool = False
    compile: bool = False
    kind: Hashable | None = None
    checkpoint_seconds: float = 300.0
    limits: Limits = NO_LIMITS
    ranks: Ranks = ALONE
    other_runs: OtherRuns = no_other_runs


class TrainingStep:
    """Steps on batches, and what has to be known about all of them.

    captures_optimizers:  whether the steps of the optimisers are in the CUDA graph, so that learning rates are tensors
    captures_gradients:   whether at least all before that is
    remark:               a line for the user on an optimiser that is not in the graph
    steps_done:           number of steps
    first_bad:            the first step with a loss that is not finite (-1: none)
    """

    def __init__(self, task: Task, optimizers: Mapping[str, Optimizer], settings: Settings) -> None:
        self.task, self.optimizers, self.settings = task, optimizers, settings
        self.with_closure = {name for name, optimizer in optimizers.items() if requires_closure(optimizer)}
        self.with_loss = {name for name, optimizer in optimizers.items() if takes_loss(optimizer)}
        found = self._capturable()
        self.captures_optimizers = settings.capture and found.at_any_rate
        self.captures_gradients = settings.capture and len(optimizers) == 1 and not self.with_closure
        self.at_one_rate = found.at_one_rate and not self.with_loss
        self.remark = self._describe(found.reason) if found.reason else None
        # Outside a capture learning rates are numbers, and a compiled step would be compiled again for each.
        self.optimizer_steps = step_functions(optimizers, settings.compile and self.captures_optimizers)
        self.compiled_context: Callable[[Batch], AbstractContextManager[Any]] = lambda batch: nullcontext()
        if settings.compile:
            # A compiled optimiser step is for its own parameters: no other run can reuse it.
            reusable = not self.captures_optimizers or all(map(is_fused, optimizers.values()))
            kind = (settings.kind, settings.precision, settings.capture, self.captures_optimizers, settings.device)
            reuse_compiled_code(kind if reusable and settings.kind is not None else None)
            compile_networks(task.networks())
            self.compiled_context = LargestShapeOnly(task.networks())
        # On the device, so that no step waits.
        self.steps_done = torch.zeros((), dtype=torch.int64, device=settings.device)
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=settings.device)
        self.loss = torch.zeros((), device=settings.device)  # of a step whose gradients alone are captured

    def _capturable(self) -> Capturable:
        """What holds for all optimisers."""
        if not self.settings.capture:
            return Capturable(False, False)
        for optimizer in self.optimizers.values():
            for part in parts_of(optimizer):
                allow_capture(part)
        found = [capturable(optimizer) for optimizer in self.optimizers.values()]
        reason = next((each.reason for each in found if each.reason), "")
        return Capturable(all(each.at_any_rate for each in found), all(each.at_one_rate for each in found), reason)

    def _describe(self, reason: str) -> str:
        if not self.captures_gradients:
            return f"no CUDA graph, which is slower, because of the optimiser: {reason}"
        if self.at_one_rate:
            return f"the optimiser has a CUDA graph of its own for each learning rate: {reason}"
        return f"the optimiser runs outside the CUDA graph: {reason}"

    def start(self) -> Callable[[Batch], None]:
        """The function that takes a step on a batch."""
        if self.captures_optimizers:
            return CapturedStep(self._whole_step)
        if not self.captures_gradients:
            return self._whole_step
        gradients = CapturedStep(self._gradients)
        [(name, optimizer)] = self.optimizers.items()
        if self.at_one_rate:
            self.optimizer_steps[name] = CapturedAtRate(optimizer, optimizer.step)

        def step(batch: Batch) -> None:
            gradients(batch)
            self._step_optimizer(name, self.loss)

        return step

    def _whole_step(self, batch: Batch) -> None:
        with self.compiled_context(batch):
            for name, loss in self._losses(batch):
                if name in self.with_closure:
                    self.optimizers[name].step(self._closure(name, loss, batch))
                else:
                    self.optimizers[name].zero_grad(set_to_none=True)
                    loss.backward()
                    self._step_optimizer(name, loss)
                self._check(loss)
        self.steps_done += 1

    def _gradients(self, batch: Batch) -> None:
        """A step up to the gradients of its only loss: the same tensors for all shapes of batches."""
        with self.compiled_context(batch):
            [(name, loss)] = self._losses(batch)
            self.optimizers[name].zero_grad(set_to_none=False)
            loss.backward()
            self._check(loss)
        self.loss.copy_(loss.detach())
        self.steps_done += 1

    def _losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """The task's losses, computed in the run's precision; what is done between them is not."""
        losses = self.task.losses(batch)
        while True:
            with autocast(self.settings.precision, self.settings.device):
                pair = next(losses, None)
            if pair is None:
                return
            yield pair

    def _step_optimizer(self, name: str, loss: Tensor) -> None:
        if name in self.with_loss:
            self.optimizer_steps[name](loss=loss.detach())
        else:
            self.optimizer_steps[name]()

    def _closure(self, name: str, first: Tensor, batch: Batch) -> Callable[[], Any]:
        """Computes the loss and its gradients, as often as the optimiser asks; `first` is what it is now."""
        known = [first]

        def closure() -> Any:
            self.optimizers[name].zero_grad(set_to_none=True)
            with torch.enable_grad():
                if known:
                    loss = known.pop()
                else:
                    with self.task.meters.paused():
                        loss = next(self._losses(batch))[1]
                loss.backward()
            return loss.detach()

        return closure

    def _check(self, loss: Tensor) -> None:
        newly_bad = ~torch.isfinite(loss.detach()) & (self.first_bad < 0)
        self.first_bad.copy_(torch.where(newly_bad, self.steps_done, self.first_bad))
