"""What the theory says of a network that a run has trained: balance, activations, robustness.

All is measured in full float32, whatever the run was trained in: a margin may be no larger than TF32's rounding.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nero.checkpoints.heads import head, measured
from nero.checkpoints.loading import Trained, find_run, load_trained
from nero.engine.precision import set_precision
from nero.runs.store import Store
from nero.tasks.base import NETWORK, Task
from nero.tasks.classification import Classification
from nero.theory.activations import measure_activations
from nero.theory.adversarial import adversarial_angle
from nero.theory.balance import balance
from nero.theory.certified import Perceptron, certified_angle
from nero.theory.random_rotations import error_curve, random_angle
from nero.theory.records import Record
from nero.theory.solutions import Solution
from nero.train.run import build_optimizers, task_of

Say = Callable[[str], None]
CURVE = tuple(round(0.001 * 10 ** (number / 4), 6) for number in range(13))
"""Angles of the curve of errors: from 0.001 to 1, four to a decade."""

WATCHED = 10_000
"""Training examples on which activations are measured."""


PARTS = ("activations", "robustness")
"""What is measured of classifiers beside their balance."""


def measure_run(
    name: str,
    store: Path | str,
    data_root: Path,
    device: str,
    say: Say = lambda line: None,
    parts: Collection[str] = PARTS,
) -> Record:
    """The record of a run that kept its checkpoint, by its directory or id; `Unusable` where that cannot be."""
    start = time.monotonic()
    trained = load_trained(name, store, Task, data_root, device)  # type: ignore[type-abstract]
    say(trained.describe())
    set_precision("fp32")
    run = find_run(name, Store(store))
    lines = run.read_metrics()
    before = started(trained)
    epochs = round(trained.epochs_done + trained.steps_done / trained.task.steps_per_epoch, 3)
    record = head(trained.run_id, trained.identity, trained.task, epochs)
    record["metrics"] = {key: value for key, value in (lines[-1] if lines else {}).items() if key != "trace"}
    for network in trained.task.networks().values():
        make_plain_(network)
    record["networks"] = {
        part: {"start": _balance(before.networks()[part]), "end": _balance(network)}
        for part, network in trained.task.networks().items()
    }
    record["activations"] = record["robustness"] = None
    if isinstance(before, Classification) and isinstance(trained.task, Classification):
        if "activations" in parts:
            found = {"start": activations(before), "end": activations(trained.task)}
            record["activations"] = found if all(found.values()) else None
        if "robustness" in parts:
            record["robustness"] = robustness(trained.task, say)
    record["measured"] = measured(trained.context.device, time.monotonic() - start)
    return record


def started(trained: Trained[Task]) -> Task:
    """The task as it was before its first step: Nero balances what it is given."""
    task = task_of(trained.identity, trained.context)
    build_optimizers(DictConfig(trained.identity["optim"]), task)
    for network in task.networks().values():
        make_plain_(network)
    return task


def make_plain_(network: nn.Module) -> None:
    """Where a network normalises its weights as it goes, put those in their place: the same function."""
    if callable(balance_ := getattr(network, "balance_", None)):
        balance_()


def _balance(network: nn.Module) -> list[Record]:
    return [layer.record() for layer in balance(network)]


def activations(task: Classification) -> list[Record]:
    """Of the first training examples, unaugmented; none for a network without modules that are layers."""
    images = task.training.images[:WATCHED]
    batches = (task.prepare(part) for part in images.split(1000))
    return [layer.record() for layer in measure_activations(task.network, batches)]


def robustness(task: Classification, say: Say = lambda line: None) -> Record:
    """Definition 6, from all sides, of the training examples that the network has fitted."""
    solution = Solution(task.network, task.training.images, task.training.labels, task.prepare)
    say(f"{solution.errors} of {solution.examples} training examples are wrong")
    record: Record = {
        "examples": solution.examples,
        "errors": solution.errors,
        "classes": solution.classes,
        "layers": [layer.record() for layer in solution.layers],
        "beyond": beyond(task.networks()[NETWORK]),
        "random": None,
        "curve": [],
        "adversarial": None,
        "certified": None,
    }
    if solution.errors == solution.examples:
        return record
    record["random"] = random_angle(solution, say=say).record()
    record["curve"] = [[angle, error] for angle, error in error_curve(solution, CURVE)]
    found = adversarial_angle(solution, say=say)
    record["adversarial"] = found and found.record()
    if (perceptron := as_perceptron(task.network)) is not None:
        record["certified"] = {"angle": certified_angle(solution, perceptron)}
        say(f"no rotation by up to {record['certified']['angle']:.3g} makes an error")
    return record


def as_perceptron(network: nn.Module) -> Perceptron | None:
    """The layers of a network that is nothing but linear ones with one activation between them, if it says so."""
    layers = getattr(network, "perceptron", None)
    if not callable(layers):
        return None
    names: list[str] = []
    biases: list[Tensor | None] = []
    by_identity = {id(parameter): name for name, parameter in network.named_parameters()}
    linear, activation, slope = layers()
    for weight, bias in linear:
        names.append(by_identity[id(weight)])
        biases.append(None if bias is None else bias.detach())
    return Perceptron(names, biases, activation, slope)


def beyond(network: nn.Module) -> list[str]:
    """What was learnt that is not a neuron's direction: Section 8's prior is over directions alone."""
    found = []
    if not all(layer.balanced for layer in balance(network)):
        found.append("norms")
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    of_norms = {id(parameter) for module in norms for parameter in module.parameters()}
    vectors = [p for p in network.parameters() if p.ndim < 2 and id(p) not in of_norms and bool(torch.any(p != 0))]
    if vectors:
        found.append("biases")
    if of_norms:
        found.append("gains")
    if any(module.track_running_stats for module in norms):
        found.append("running statistics")
    return found
