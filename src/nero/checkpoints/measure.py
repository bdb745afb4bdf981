"""Measure the theory on trained runs (balance, activations, robustness) and along a training (Definitions 3 to 5).

Everything is measured in full float32, whatever the precision of a run's training: a margin may be below TF32's
rounding.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nero.checkpoints.loading import load_trained
from nero.checkpoints.options import Retraining
from nero.engine.loop import Loop
from nero.engine.precision import autocast, set_precision
from nero.engine.seeding import global_state, restore_global_state
from nero.plans.config import ConfigError, RunConfig, compose
from nero.plans.plan import Experiment, PlannedRun, survey
from nero.runs.provenance import code_version, versions
from nero.runs.store import NullRunDirectory, Store
from nero.runs.targets import GROUPS
from nero.tasks.base import NETWORK, Batch, Task
from nero.tasks.classification import Classification
from nero.theory.activations import measure_activations
from nero.theory.balance import balance
from nero.theory.records import Record
from nero.theory.robustness import Perceptron, adversarial_angle, certified_angle, error_curve, random_angle
from nero.theory.solutions import Solution
from nero.theory.steps import StepMeter
from nero.theory.trust import StepTrust, measure_step
from nero.train.build import (
    build_loop,
    build_optimizers,
    build_task,
    choose_device,
    device_name,
    loop_settings,
    task_of,
)

Log = Callable[[str], None]
# Angles of the error curve: from 0.001 to 1, four per decade.
ANGLES = tuple(round(0.001 * 10 ** (number / 4), 6) for number in range(13))
EXAMPLES = 10_000  # training examples on which activations are measured
PARTS = ("activations", "robustness")  # measurements of classifiers, besides balance
# Default number of measured steps, and the most layers that a record should have over all of them.
PROBES, LAYERS = 60, 1500


def leading_runs(experiment: Experiment, store: Store) -> list[PlannedRun]:
    """The finished runs, of all seeds, at the leading learning rate of each cell; no run twice."""
    found: dict[str, PlannedRun] = {}
    summaries = store.summaries()
    for cell in experiment.cells:
        state = survey(cell, summaries)
        for seed, summary in state.at_leading.items():
            if state.leading_lr is not None and summary is not None:
                found.setdefault(summary["run_id"], cell.run(state.leading_lr, seed))
    return list(found.values())


def leading_configs(
    experiment: Experiment, store: Store, tasks: Collection[str], overrides: list[str]
) -> list[RunConfig]:
    """Configs, in float32, of the leading runs of these tasks that have the seed of the search."""
    seeds = {cell.search_seed for cell in experiment.cells}
    runs = [run for run in leading_runs(experiment, store) if run.task in tasks and run.seed in seeds]
    return [compose([*run.overrides, "precision=fp32", *overrides]) for run in runs]


def _record_header(run_id: str, identity: Record, task: Task, epochs_done: float) -> Record:
    """The fields that identify a run in a record; `identity` is its config.yaml."""
    return {
        "run_id": run_id,
        "task": identity["task_name"],
        "optim": identity["optim_name"],
        "lr": identity["optim"]["lr"],
        "seed": identity["seed"],
        "settings": identity["task"],
        "data": identity["data"],
        "precision": identity["precision"],
        "epochs_done": epochs_done,
        "epochs": task.epochs,
        "metric": task.metric.as_dict(),
    }


def _measured_on(device: torch.device, start: float) -> Record:
    """The code, device and torch version of a measurement, and its duration."""
    commit, dirty = code_version()
    return {
        "commit": f"{commit or 'unknown'}{' with changes' if dirty else ''}",
        "device": device_name(device),
        "torch": versions(("torch",)).get("torch"),
        "seconds": round(time.monotonic() - start, 1),
    }


# Trained runs


def measure_run(
    name: str,
    store: Path | str,
    data_root: Path,
    device: str,
    log: Log = lambda line: None,
    parts: Collection[str] = PARTS,
    retraining: Retraining | None = None,
    trust: Collection[str] = (),
) -> Record:
    """Measure the run with this directory or id; see `load_trained`. Raises `Unusable` if that is impossible."""
    start = time.monotonic()
    trained = load_trained(name, store, Task, data_root, device, retraining, trust, GROUPS)  # type: ignore[type-abstract]
    log(trained.describe())
    set_precision("fp32")
    task = trained.task
    # The task as it was before its first step, but after Nero balanced its weights.
    initial = task_of(trained.identity, trained.context)
    build_optimizers(DictConfig(trained.identity["optim"]), initial)
    for network in (*initial.networks().values(), *task.networks().values()):
        apply_normalisation_(network)

    epochs = round(trained.epochs_done + trained.steps_done / task.steps_per_epoch, 3)
    record = _record_header(trained.run_id, trained.identity, task, epochs)
    metrics = trained.run.read_metrics()
    record["metrics"] = {key: value for key, value in (metrics[-1] if metrics else {}).items() if key != "trace"}
    stages = {"start": initial, "end": task}
    record["networks"] = {
        part: {when: [asdict(layer) for layer in balance(at.networks()[part])] for when, at in stages.items()}
        for part in task.networks()
    }
    record["activations"] = record["robustness"] = None
    if isinstance(task, Classification):
        if "activations" in parts:
            found = {when: _activations(at) for when, at in stages.items()}
            record["activations"] = found if all(found.values()) else None
        if "robustness" in parts:
            record["robustness"] = _robustness(task, log)
    record["measured"] = _measured_on(trained.context.device, start)
    return record


def apply_normalisation_(network: nn.Module) -> None:
    """If a network normalises its weights in the forward pass, normalise them in place: the function stays the same."""
    if callable(balance_ := getattr(network, "balance_", None)):
        balance_()


def _activations(task: Any) -> list[Record]:
    """Measured on the first training examples without augmentation; empty for a network without layer modules."""
    batches = (task.prepare(part) for part in task.training.images[:EXAMPLES].split(1000))
    return [asdict(layer) for layer in measure_activations(task.network, batches)]


def _robustness(task: Classification, log: Log) -> Record:
    """Definition 6 on the training examples that the network fits: random, adversarial and certified angles."""
    solution = Solution(task.network, task.training.images, task.training.labels, task.prepare)
    log(f"{solution.errors} of {solution.examples} training examples are wrong")
    record: Record = {
        "examples": solution.examples,
        "errors": solution.errors,
        "classes": solution.classes,
        "layers": [
            {key: getattr(layer, key) for key in ("name", "neurons", "fan_in", "dim")} for layer in solution.layers
        ],
        "beyond": learned_beyond_directions(task.networks()[NETWORK]),
        "random": None,
        "curve": [],
        "adversarial": None,
        "certified": None,
    }
    if solution.errors == solution.examples:
        return record
    record["random"] = asdict(random_angle(solution, say=log))
    record["curve"] = error_curve(solution, ANGLES)
    if found := adversarial_angle(solution, say=log):
        record["adversarial"] = {key: value for key, value in vars(found).items() if key != "witness"}
    if (perceptron := as_perceptron(task.network)) is not None:
        record["certified"] = {"angle": certified_angle(solution, perceptron)}
        log(f"no rotation by up to {record['certified']['angle']:.3g} causes an error")
    return record


def as_perceptron(network: nn.Module) -> Perceptron | None:
    """Names and biases of the layers of a network with a `perceptron` method: linear layers and one activation."""
    layers = getattr(network, "perceptron", None)
    if not callable(layers):
        return None
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    linear, activation, slope = layers()
    biases: list[Tensor | None] = [None if bias is None else bias.detach() for _, bias in linear]
    return Perceptron([names[id(weight)] for weight, _ in linear], biases, activation, slope)


def learned_beyond_directions(network: nn.Module) -> list[str]:
    """What a network learned besides the directions of its neurons, over which alone Section 8 has a prior."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    of_norms = {id(parameter) for module in norms for parameter in module.parameters()}
    biases = [p for p in network.parameters() if p.ndim < 2 and id(p) not in of_norms and bool(torch.any(p != 0))]
    learned = {
        "norms": not all(layer.balanced for layer in balance(network)),
        "biases": bool(biases),
        "gains": bool(of_norms),
        "running statistics": any(module.track_running_stats for module in norms),
    }
    return [name for name, is_learned in learned.items() if is_learned]


# Along a training


def probed_steps(total: int, probes: int) -> list[int]:
    """Choose among steps 0 to total - 1: half of them linearly spaced, half geometrically, to cover the start."""
    half = probes // 2
    linear = {round(number * (total - 1) / max(probes - half - 1, 1)) for number in range(probes - half)}
    geometric = {round(total ** ((number + 1) / (half + 1))) - 1 for number in range(half)}
    return sorted({0, *linear, *geometric, total - 1} if probes > 3 else {0, total - 1})


def measure_along(
    config: RunConfig, epochs: int | None = None, probes: int | None = None, log: Log = lambda line: None
) -> Record:
    """Train with this config, by the loop of any run but without CUDA graphs, and measure some of the steps.

    Nothing of the training is stored.

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
    weights: dict[str, Tensor] = dict(network.named_parameters())
    epochs = min(epochs or task.epochs, task.epochs)
    layers = sum(weight.ndim >= 2 for weight in weights.values())
    probes = probes or min(PROBES, max(LAYERS // max(layers, 1), 2))
    probed = set(probed_steps(epochs * task.steps_per_epoch, probes))
    run = NullRunDirectory(Path(config.run_id))
    loop = build_loop(config, task, run, loop_settings(config, device, capture=False))
    loop.begin()
    steps = []
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
                moved = {layer.name: asdict(layer) for layer in meter.layers}
                steps.append(
                    {
                        "step": step,
                        "epoch": step / task.steps_per_epoch,
                        "lr": loop.rates.current(),
                        "loss": trust.loss,
                        "loss_after": trust.loss_after,
                        "trust": trust.trust,
                        "stable": trust.stable,
                        "layers": [{**asdict(layer), **moved[layer.name]} for layer in trust.layers],
                    }
                )
            if not all(weight.isfinite().all() for weight in weights.values()):
                log(f"{config.run_id}: weights are no longer finite after epoch {epoch + 1}")
                break
            log(f"{config.run_id}: epoch {epoch + 1} of {epochs}, {len(steps)} steps measured")
    record = _record_header(config.run_id, config.identity, task, epochs)
    batch_size = getattr(task, "training", None) and task.training.batch_size  # type: ignore[attr-defined]
    return {**record, "measured": _measured_on(device, start), "batch": batch_size, "steps": steps}


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
