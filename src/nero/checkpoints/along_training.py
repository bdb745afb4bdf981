"""Measure stable steps, deep relative trust and relative steps (Definitions 3 to 5) at some steps of a training.

The training uses the same loop as any run, in full float32 and without CUDA graphs, and leaves no run behind.
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nero.checkpoints.measure import Log, measured_on, record_header
from nero.engine.loop import Loop
from nero.engine.precision import autocast
from nero.engine.seeding import global_state, restore_global_state
from nero.plans.config import ConfigError, RunConfig
from nero.runs.store import Store
from nero.tasks.base import Batch
from nero.theory.records import Record
from nero.theory.steps import StepMeter
from nero.theory.trust import StepTrust, measure_step
from nero.train.build import build_loop, build_task, choose_device, loop_settings

PROBES, LAYERS = 60, 1500
"""Default number of measured steps, and the most layers that a record should have over all of them."""


def probed_steps(total: int, probes: int) -> list[int]:
    """Choose among steps 0 to total - 1: half of them linearly spaced, half geometrically, to cover the start."""
    half = probes // 2
    linear = {round(number * (total - 1) / max(probes - half - 1, 1)) for number in range(probes - half)}
    geometric = {round(total ** ((number + 1) / (half + 1))) - 1 for number in range(half)}
    return sorted({0, *linear, *geometric, total - 1} if probes > 3 else {0, total - 1})


def measure_along(
    config: RunConfig, epochs: int | None = None, probes: int | None = None, log: Log = lambda line: None
) -> Record:
    """Train with this config and measure some of the steps.

    Args:
        epochs: how many epochs of the schedule to train; default: all
        probes: number of measured steps; default: 60, fewer for a network of more than 25 layers

    Raises:
        ConfigError: the task has several networks, whose steps change each other's losses
    """
    start = time.monotonic()
    device = choose_device(config.cfg.machine.device)
    task = build_task(config, device)
    if len(task.networks()) != 1:
        raise ConfigError(f"task={config.task_name} has several networks, whose steps cannot be separated")
    [(part, network)] = task.networks().items()
    epochs = min(epochs or task.epochs, task.epochs)
    layers = sum(parameter.ndim >= 2 for parameter in network.parameters())
    probes = probes or min(PROBES, max(LAYERS // max(layers, 1), 2))
    probed = set(probed_steps(epochs * task.steps_per_epoch, probes))
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        run = Store(folder).run(config.task_name, config.run_id)
        loop = build_loop(config, task, run, loop_settings(config, device, capture=False))
        loop.begin()
        weights: dict[str, Tensor] = dict(network.named_parameters())
        with StepMeter(loop.optimizers[part], weights) as meter:
            for epoch in range(epochs):
                for number, batch in enumerate(task.batches(epoch)):
                    step = epoch * task.steps_per_epoch + number
                    loop.rates.set(loop.schedule(epoch + number / task.steps_per_epoch))
                    if step not in probed:
                        loop.step(batch)
                        continue
                    meter.arm()
                    trust = _measure_step(loop, batch, weights)
                    position = {"step": step, "epoch": step / task.steps_per_epoch, "lr": loop.rates.current()}
                    steps.append({**position, **_step_record(trust, meter)})
                if not torch.isfinite(torch.stack([weight.detach().abs().max() for weight in weights.values()])).all():
                    log(f"{config.run_id}: weights are no longer finite after epoch {epoch + 1}")
                    break
                log(f"{config.run_id}: epoch {epoch + 1} of {epochs}, {len(steps)} steps measured")
    record = record_header(config.run_id, config.identity, task, epochs)
    batch_size = getattr(task, "training", None) and task.training.batch_size  # type: ignore[attr-defined]
    return {**record, "measured": measured_on(device, time.monotonic() - start), "batch": batch_size, "steps": steps}


def _step_record(trust: StepTrust, meter: StepMeter) -> Record:
    steps = {layer.name: layer.record() for layer in meter.layers}
    return {
        "loss": trust.loss,
        "loss_after": trust.loss_after,
        "trust": trust.trust,
        "stable": trust.stable,
        "layers": [{**asdict(layer), **steps[layer.name]} for layer in trust.layers],
        "biases": [bias.record() for bias in meter.biases],
    }


def _measure_step(loop: Loop, batch: Batch, weights: Mapping[str, Tensor]) -> StepTrust:
    """Take and measure a step of the loop; training continues as if the step had not been measured.

    Dropout draws the same before, in and after the step, so that the loss is one function of the weights.
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

    trust = measure_step(loss, weights, take)
    restore_global_state(after, device)
    return trust
