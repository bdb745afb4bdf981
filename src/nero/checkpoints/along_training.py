"""Stable steps, deep relative trust and relative steps (Definitions 3 to 5) at chosen steps of a real training.

The training is done for this purpose alone, in full float32 and without CUDA graphs, by the same loop as any run; it
leaves no run behind.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nero.checkpoints.heads import head, measured
from nero.engine.loop import Loop
from nero.engine.precision import autocast
from nero.engine.seeding import global_state, restore_global_state
from nero.plans.config import ConfigError, RunConfig
from nero.runs.store import Store
from nero.tasks.base import Batch
from nero.theory.records import Record
from nero.theory.steps import StepMeter
from nero.theory.trust import StepTrust, look_at_step
from nero.train.run import build_loop, build_task, choose_device

PROBES, LAYERS = 60, 1500
"""Steps that are looked at, by default, and how many layers over all of them a record should not exceed."""


def chosen_steps(total: int, probes: int) -> list[int]:
    """Of steps 0 to total - 1: half of them evenly spread, half by ratio, so that the first ones are seen as well."""
    half = probes // 2
    even = {round(number * (total - 1) / max(probes - half - 1, 1)) for number in range(probes - half)}
    by_ratio = {round(total ** ((number + 1) / (half + 1))) - 1 for number in range(half)}
    return sorted({0, *even, *by_ratio, total - 1} if probes > 3 else {0, total - 1})


def measure_along(
    config: RunConfig,
    epochs: int | None = None,
    probes: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """Train as the config says, for as many `epochs` of its schedule, and look at some steps on the way.

    probes: how many; by default 60, and fewer of a network with more than 25 layers

    ConfigError for a task of several networks: their steps change each other's losses.
    """
    begun = time.monotonic()
    device = choose_device(config.cfg.machine.device)
    task = build_task(config, device)
    if len(task.networks()) != 1:
        raise ConfigError(f"task={config.task_name} has several networks, whose steps cannot be told apart")
    [(part, network)] = task.networks().items()
    epochs = min(epochs or task.epochs, task.epochs)
    layers = sum(parameter.ndim >= 2 for parameter in network.parameters())
    probes = probes or min(PROBES, max(LAYERS // max(layers, 1), 2))
    chosen = set(chosen_steps(epochs * task.steps_per_epoch, probes))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = Store(folder).run(config.task_name, config.run_id)
        loop = build_loop(config, task, run, device, capture=False, trackers=[])
        loop.begin()
        weights: dict[str, Tensor] = dict(network.named_parameters())
        with StepMeter(loop.optimizers[part], weights) as meter:
            for epoch in range(epochs):
                for number, batch in enumerate(task.batches(epoch)):
                    step = epoch * task.steps_per_epoch + number
                    loop.rates.set(loop.schedule(epoch + number / task.steps_per_epoch))
                    if step not in chosen:
                        loop.step(batch)
                        continue
                    meter.arm()
                    seen = _look(loop, batch, weights)
                    place = {"step": step, "epoch": step / task.steps_per_epoch, "lr": loop.rates.current()}
                    found.append({**place, **_seen(seen, meter)})
                if not torch.isfinite(torch.stack([weight.detach().abs().max() for weight in weights.values()])).all():
                    say(f"{config.run_id}: weights are no longer finite after epoch {epoch + 1}")
                    break
                say(f"{config.run_id}: epoch {epoch + 1} of {epochs}, {len(found)} steps looked at")
    record = head(config.run_id, config.identity, task, epochs)
    batch_size = getattr(task, "training", None) and task.training.batch_size  # type: ignore[attr-defined]
    return {**record, "measured": measured(device, time.monotonic() - begun), "batch": batch_size, "steps": found}


def _seen(seen: StepTrust, meter: StepMeter) -> Record:
    """What is kept of a step."""
    steps = {layer.name: layer.record() for layer in meter.layers}
    return {
        "loss": seen.loss,
        "loss_after": seen.loss_after,
        "trust": seen.trust,
        "stable": seen.stable,
        "layers": [{**asdict(layer), **steps[layer.name]} for layer in seen.layers],
        "biases": [bias.record() for bias in meter.biases],
    }


def _look(loop: Loop, batch: Batch, weights: Mapping[str, Tensor]) -> StepTrust:
    """A step of the loop, seen; training goes on as if nobody had looked.

    Dropout draws the same before, in and after the step: the loss is one function of the weights.
    """
    device, precision = loop.settings.device, loop.settings.precision
    before = global_state(device)
    after: dict[str, Any] = {}

    def loss() -> Tensor:
        restore_global_state(before, device)
        with autocast(precision, device):
            return next(loop.task.losses(batch))[1]

    def take() -> None:
        restore_global_state(before, device)
        loop.step(batch)
        after.update(global_state(device))

    seen = look_at_step(loss, weights, take)
    restore_global_state(after, device)
    return seen
