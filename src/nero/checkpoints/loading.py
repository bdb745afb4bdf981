"""A trained run: found by its directory or id, its task built anew, and the weights of its checkpoint in it."""

import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import yaml
from hydra.utils import get_class

from nero.engine.precision import autocast, set_precision
from nero.plans.config import ConfigError
from nero.runs.store import Record, RunDirectory, Store
from nero.tasks.base import Context, Task
from nero.train.run import choose_device, context_of, task_of

T = TypeVar("T", bound=Task)
NEEDED = ("task_name", "task", "seed", "data", "precision")  # of a config.yaml


class Unusable(ValueError):
    """What was asked cannot be done with this run, on this machine; the message is one line."""


@dataclass(frozen=True)
class Trained(Generic[T]):
    """A task whose networks are as a checkpoint has them.

    identity:     what the run is: its config.yaml
    epochs_done:  whole epochs that the weights were trained for
    steps_done:   and steps of the next one
    """

    run_id: str
    identity: Record
    context: Context
    task: T
    epochs_done: int
    steps_done: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """The task's own."""
        settings: dict[str, Any] = self.identity["task"]
        return settings

    def arithmetic(self) -> AbstractContextManager[Any]:
        """The context of forward passes, so that they are as in the run's own evaluation."""
        return autocast(self.identity["precision"], self.context.device)

    def describe(self) -> str:
        return f"{self.run_id}: after {self.epochs_done} of {self.task.epochs} epochs, {self.identity['data']} data"


def load_trained(name: str, store: Path | str, kind: type[T], data_root: Path, device: str) -> Trained[T]:
    """The run of that directory or id, which must be of this kind of task; Unusable, ConfigError or MissingData if not.

    store:   where an id is looked up
    device:  auto, cpu or cuda
    """
    run = find_run(name, Store(store))
    identity = _identity(run)
    if not issubclass(_task_class(run, identity), kind):
        raise Unusable(f"{run.run_id} is a run of {identity['task_name']}, not of a {kind.__name__} task")
    state = _checkpoint(run)
    context = context_of(identity, data_root.expanduser(), _device(device))
    set_precision(identity["precision"])
    task = task_of(identity, context)
    assert isinstance(task, kind)
    try:
        for part, network in task.networks().items():
            network.load_state_dict(state["networks"][part])
            network.eval()
        epochs, steps = (int(state["position"][unit]) for unit in ("epoch", "step"))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        # torch lists what does not fit over many lines.
        raise Unusable(f"{run.run_id}: its checkpoint does not fit its config.yaml with this code and data") from error
    if not all(p.isfinite().all() for network in task.networks().values() for p in network.parameters()):
        raise Unusable(f"{run.run_id}: its checkpoint has weights that are not finite")
    return Trained(run.run_id, identity, context, task, epochs, steps)


def find_run(name: str, store: Store) -> RunDirectory:
    """By its directory, or by its id in the store."""
    if (Path(name) / "config.yaml").is_file():
        return RunDirectory(Path(name).resolve())
    folders = [path / name for path in sorted(store.root.glob("*"))]
    for folder in folders:
        if (folder / "config.yaml").is_file():
            return RunDirectory(folder)
    raise Unusable(f"no such run: {name!r} is neither a run's directory nor an id in {store.root}")


def _identity(run: RunDirectory) -> Record:
    try:
        identity = run.read_config()
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Unusable(f"{run.path / 'config.yaml'} cannot be read") from error
    if not isinstance(identity, dict) or not all(key in identity for key in NEEDED):
        raise Unusable(f"{run.path / 'config.yaml'} is no run's: it should have {', '.join(NEEDED)}")
    return identity


def _task_class(run: RunDirectory, identity: Record) -> type:
    # Asked before the task is built: that would want its data.
    try:
        return get_class(identity["task"]["_target_"])
    except Exception as error:  # a name that is not there may fail in any way while it is imported
        raise Unusable(f"{run.run_id}: no task in this code is the one in its config.yaml") from error


def _checkpoint(run: RunDirectory) -> dict[str, Any]:
    damaged = Unusable(f"{run.run_id}: its checkpoint is damaged")
    data = run.load_checkpoint()
    if data is None:
        if any(run.path.glob("checkpoint*")):
            raise damaged
        raise Unusable(f"{run.run_id} kept no checkpoint; train with machine.keep_checkpoint=true")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises all kinds for bytes that are not its own
        raise damaged from error
    if not isinstance(state, dict):
        raise damaged
    return state


def _device(name: str) -> torch.device:
    try:
        return choose_device(name)
    except ConfigError as error:
        raise Unusable(f"--device {name}: torch sees no CUDA GPU here; use --device cpu") from error
