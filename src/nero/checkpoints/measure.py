"""Measure the theory on trained runs: balance, activations, robustness.

Everything is measured in full float32, whatever the precision of training: a margin may be below TF32's rounding.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nero.checkpoints.loading import Trained, find_run, load_trained
from nero.engine.precision import set_precision
from nero.plans.config import RunConfig, compose
from nero.plans.plan import Experiment, PlannedRun, survey
from nero.runs.provenance import code_version, versions
from nero.runs.store import Store
from nero.tasks.base import NETWORK, Task
from nero.tasks.classification import Classification
from nero.theory.activations import measure_activations
from nero.theory.balance import balance
from nero.theory.records import Record
from nero.theory.robustness import Perceptron, adversarial_angle, certified_angle, error_curve, random_angle
from nero.theory.solutions import Solution
from nero.train.build import build_optimizers, device_name, task_of

Log = Callable[[str], None]
ANGLES = tuple(round(0.001 * 10 ** (number / 4), 6) for number in range(13))
"""Angles of the error curve: from 0.001 to 1, four per decade."""

EXAMPLES = 10_000
"""Training examples on which activations are measured."""

PARTS = ("activations", "robustness")
"""Measurements of classifiers, besides balance."""


def measure_run(
    name: str,
    store: Path | str,
    data_root: Path,
    device: str,
    log: Log = lambda line: None,
    parts: Collection[str] = PARTS,
) -> Record:
    """Measure the run with this directory or id, which kept its checkpoint; raises `Unusable` if that is impossible."""
    start = time.monotonic()
    trained = load_trained(name, store, Task, data_root, device)  # type: ignore[type-abstract]
    log(trained.describe())
    set_precision("fp32")
    metrics = find_run(name, Store(store)).read_metrics()
    initial = initial_task(trained)
    epochs = round(trained.epochs_done + trained.steps_done / trained.task.steps_per_epoch, 3)
    record = record_header(trained.run_id, trained.identity, trained.task, epochs)
    record["metrics"] = {key: value for key, value in (metrics[-1] if metrics else {}).items() if key != "trace"}
    for network in trained.task.networks().values():
        apply_normalisation_(network)
    record["networks"] = {
        part: {"start": _balance(initial.networks()[part]), "end": _balance(network)}
        for part, network in trained.task.networks().items()
    }
    record["activations"] = record["robustness"] = None
    if isinstance(initial, Classification) and isinstance(trained.task, Classification):
        if "activations" in parts:
            found = {"start": _activations(initial), "end": _activations(trained.task)}
            record["activations"] = found if all(found.values()) else None
        if "robustness" in parts:
            record["robustness"] = _robustness(trained.task, log)
    record["measured"] = measured_on(trained.context.device, time.monotonic() - start)
    return record


def record_header(run_id: str, identity: Record, task: Task, epochs_done: float) -> Record:
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


def measured_on(device: torch.device, seconds: float) -> Record:
    """The code, device and torch version of a measurement, and its duration."""
    commit, dirty = code_version()
    return {
        "commit": f"{commit or 'unknown'}{' with changes' if dirty else ''}",
        "device": device_name(device),
        "torch": versions(("torch",)).get("torch"),
        "seconds": round(seconds, 1),
    }


def leading_runs(experiment: Experiment, store: Store) -> list[PlannedRun]:
    """The finished runs, of all seeds, at the leading learning rate of each cell; no run twice."""
    found: dict[str, PlannedRun] = {}
    summaries = store.summaries()
    for cell in experiment.cells:
        state = survey(cell, summaries)
        if state.leading_lr is None:
            continue
        for seed, summary in state.at_leading.items():
            if summary is not None:
                found.setdefault(summary["run_id"], cell.run(state.leading_lr, seed))
    return list(found.values())


def leading_configs(
    experiment: Experiment, store: Store, tasks: Collection[str], overrides: list[str]
) -> list[RunConfig]:
    """Configs, in float32, of the leading runs of these tasks that have the seed of the search."""
    seeds = {cell.search_seed for cell in experiment.cells}
    runs = [run for run in leading_runs(experiment, store) if run.task in tasks and run.seed in seeds]
    return [compose([*run.overrides, "precision=fp32", *overrides]) for run in runs]


def initial_task(trained: Trained[Task]) -> Task:
    """The task as it was before its first step, but after Nero balanced its weights."""
    task = task_of(trained.identity, trained.context)
    build_optimizers(DictConfig(trained.identity["optim"]), task)
    for network in task.networks().values():
        apply_normalisation_(network)
    return task


def apply_normalisation_(network: nn.Module) -> None:
    """If a network normalises its weights in the forward pass, normalise them in place: the function stays the same."""
    if callable(balance_ := getattr(network, "balance_", None)):
        balance_()


def _balance(network: nn.Module) -> list[Record]:
    return [layer.record() for layer in balance(network)]


def _activations(task: Classification) -> list[Record]:
    """Measured on the first training examples without augmentation; empty for a network without layer modules."""
    batches = (task.prepare(part) for part in task.training.images[:EXAMPLES].split(1000))
    return [layer.record() for layer in measure_activations(task.network, batches)]


def _robustness(task: Classification, log: Log) -> Record:
    """Definition 6 on the training examples that the network fits: random, adversarial and certified angles."""
    solution = Solution(task.network, task.training.images, task.training.labels, task.prepare)
    log(f"{solution.errors} of {solution.examples} training examples are wrong")
    record: Record = {
        "examples": solution.examples,
        "errors": solution.errors,
        "classes": solution.classes,
        "layers": [layer.record() for layer in solution.layers],
        "beyond": learned_beyond_directions(task.networks()[NETWORK]),
        "random": None,
        "curve": [],
        "adversarial": None,
        "certified": None,
    }
    if solution.errors == solution.examples:
        return record
    record["random"] = random_angle(solution, say=log).record()
    record["curve"] = [[angle, error] for angle, error in error_curve(solution, ANGLES)]
    found = adversarial_angle(solution, say=log)
    record["adversarial"] = found and found.record()
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
