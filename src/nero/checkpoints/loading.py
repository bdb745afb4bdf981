"""Load a trained run: find it by its directory, id or hash, build its task and load the weights of its checkpoint."""

import argparse
import io
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from hydra.utils import get_object

from nero.checkpoints.options import Retraining, Unusable, find_run
from nero.checkpoints.retraining import run_with_checkpoint
from nero.checkpoints.trust import check_config
from nero.engine.precision import autocast, set_precision
from nero.plans.config import ConfigError
from nero.runs.store import Record, RunDirectory, Store
from nero.runs.validation import printable
from nero.tasks.base import Context, Task
from nero.train.build import choose_device, context_of, task_of

T = TypeVar("T", bound=Task)
REQUIRED_KEYS = ("task_name", "task", "seed", "data", "precision")  # in config.yaml


@dataclass(frozen=True)
class Trained(Generic[T]):
    """A task whose networks have the weights of a checkpoint.

    run:          the directory of the checkpoint
    identity:     the run's config.yaml
    epochs_done:  completed epochs of training
    steps_done:   steps of the next epoch
    """

    run: RunDirectory
    identity: Record
    context: Context
    task: T
    epochs_done: int
    steps_done: int = 0

    @property
    def run_id(self) -> str:
        return self.run.run_id

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes in the run's precision, as in its own evaluation."""
        return autocast(self.identity["precision"], self.context.device)

    def describe(self) -> str:
        return f"{self.run_id}: after {self.epochs_done} of {self.task.epochs} epochs, {self.identity['data']} data"


def load_trained(
    name: str,
    store: Path | str,
    kind: type[T],
    data_root: Path,
    device: str,
    retraining: Retraining | None = None,
    trust: Collection[str] = (),
    needs: Collection[str] = ("task",),
) -> Trained[T]:
    """Load the run with this directory or id. Its task must be of this kind.

    Args:
        store: where ids are looked up
        device: auto, cpu or cuda
        retraining: how to train it again if it has no checkpoint; None: look for it in the local store
        trust: packages of the user's own that its config.yaml may name
        needs: groups of its config that the caller builds

    Raises:
        Unusable, ConfigError, MissingData
    """
    run = find_run(name, Store(store))
    identity = run.find_config()
    if identity is None:
        raise Unusable(f"{run.path / 'config.yaml'} cannot be read")
    if not all(key in identity for key in REQUIRED_KEYS):
        raise Unusable(f"{run.path / 'config.yaml'} is not the config of a run: it needs {', '.join(REQUIRED_KEYS)}")
    check_config(run.run_id, identity, needs, trust)
    if "_target_" not in identity["task"]:
        raise Unusable(f"{run.path / 'config.yaml'} names no task")
    task_class = get_object(identity["task"]["_target_"])  # before the task is built, which needs its data
    if not isinstance(task_class, type) or not issubclass(task_class, kind):
        raise Unusable(f"{run.run_id} is a run of {identity['task_name']}, not of a {kind.__name__} task")
    try:
        context = context_of(identity, data_root.expanduser(), choose_device(device))
    except ConfigError as error:
        raise Unusable(f"--device {device}: torch sees no CUDA GPU here; use --device cpu") from error
    run = run_with_checkpoint(run, identity, data_root, retraining, trust)
    state = _read_checkpoint(run)
    set_precision(identity["precision"])
    task = task_of(identity, context)
    assert isinstance(task, kind)
    try:
        for part, network in task.networks().items():
            network.load_state_dict(state["networks"][part])
            network.eval()
        epochs, steps = (int(state["position"][unit]) for unit in ("epoch", "step"))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # torch's own message has many lines
        raise Unusable(f"{run.run_id}: its checkpoint does not fit its config.yaml with this code and data") from error
    if not all(p.isfinite().all() for network in task.networks().values() for p in network.parameters()):
        raise Unusable(f"{run.run_id}: its checkpoint has weights that are not finite")
    return Trained(run, identity, context, task, epochs, steps)


def _read_checkpoint(run: RunDirectory) -> dict[str, Any]:
    data = run.load_checkpoint()
    try:
        state = torch.load(io.BytesIO(data or b""), map_location="cpu", weights_only=True)
    except Exception:  # torch raises many types for bytes it did not write
        state = None
    if not isinstance(state, dict):
        raise Unusable(f"{run.run_id}: its checkpoint is damaged")
    return state


def run_command(
    options: argparse.Namespace,
    kind: type[T],
    act: Callable[[Trained[T], argparse.Namespace], None],
) -> int:
    """Load the run, and `act` on it. An error is printed in one line; gives the exit status."""
    try:
        where = options.data_root, options.device
        trained = load_trained(options.run, options.store, kind, *where, options.retraining, options.trust)
        print(trained.describe(), file=sys.stderr)
        act(trained, options)
    except (ValueError, OSError) as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    return 0
