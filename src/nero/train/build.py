"""Build the parts of a run from its config: device, task, optimisers, loop."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from nero.engine.distributed import ALONE, Ranks, distribute, join, rank_device
from nero.engine.interrupt import NO_LIMITS
from nero.engine.loop import Loop
from nero.engine.optimizers import requires_closure
from nero.engine.schedules import Schedule, constant
from nero.engine.seeding import SeedStreams
from nero.engine.step import Settings
from nero.plans.config import RunConfig, current_names, digest, limits_of
from nero.plans.schema import ConfigError
from nero.runs.stopping import Limits
from nero.runs.store import RunDirectory
from nero.runs.tracking import Progress, Tracker
from nero.tasks.base import BadSetting, Context, Machine, Task

# Keys of an optimiser's config that its class does not get.
NOT_OF_CLASS = ("clip_norm", "networks", "schedule", "display_name", "code")


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("machine=gpu needs a CUDA GPU and torch sees none here; use machine=cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def join_ranks(machine: DictConfig, device: torch.device) -> Ranks:
    """Connect the processes that this one was started with."""
    try:
        return join(device, machine.backend)
    except ValueError as error:
        raise ConfigError(f"machine: {error}") from error


def choose_capture(wanted: bool | str, device: torch.device, ranks: Ranks = ALONE) -> bool:
    """Whether steps are captured as CUDA graphs; `auto` where they can be."""
    if wanted is True and device.type != "cuda":
        raise ConfigError("machine.capture=true needs a CUDA GPU")
    if wanted is True and ranks.size > 1:
        raise ConfigError("machine.capture=true is for one process: messages between ranks are not captured")
    return device.type == "cuda" and bool(wanted) and ranks.size == 1


def choose_machine(machine: DictConfig, device: torch.device) -> Machine:
    """The settings of the machine that tasks use."""
    if machine.decode == "gpu" and device.type != "cuda":
        raise ConfigError("machine.decode=gpu needs a CUDA GPU")
    return Machine(machine.workers, machine.decode, machine.channels_last)


def device_name(device: torch.device, ranks: Ranks = ALONE) -> str:
    """The device's name for reports; with several ranks, that of rank 0 and their number."""
    own = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{ranks.size} x {own}" if ranks.size > 1 else own


def run_settings(config: RunConfig) -> Settings:
    """Choose the device, connect the ranks, and set the limits of a run."""
    machine = config.cfg.machine
    device = choose_device(machine.device)
    ranks = join_ranks(machine, device)
    return loop_settings(config, rank_device(device, ranks), ranks=ranks, limits=limits_of(machine))


def loop_settings(
    config: RunConfig,
    device: torch.device,
    capture: bool | str | None = None,
    ranks: Ranks = ALONE,
    limits: Limits = NO_LIMITS,
) -> Settings:
    """How the loop executes a run on this device. `capture` overrides the config."""
    machine = config.cfg.machine
    return Settings(
        device=device,
        precision=config.cfg.precision,
        capture=choose_capture(machine.capture if capture is None else capture, device, ranks),
        compile=machine.compile,
        kind=None if ranks.size > 1 else (digest(config.identity["task"]), choose_machine(machine, device)),
        checkpoint_seconds=machine.checkpoint_seconds,
        limits=limits,
        ranks=ranks,
    )


def build_trackers(config: RunConfig, settings: Settings, progress: Progress | None) -> list[Tracker]:
    """The progress line, and the mirror if there is one; none on ranks other than 0."""
    if not settings.ranks.is_main:
        return []
    mirror = config.cfg.tracking.mirror
    return [progress or Progress(), *([build_part("tracking.mirror", mirror)] if mirror is not None else [])]


def build_loop(
    config: RunConfig, task: Task, run: RunDirectory, settings: Settings, trackers: list[Tracker] | None = None
) -> Loop:
    """The loop that trains a task, seeded, ready to be restored or started."""
    machine, ranks = config.cfg.machine, settings.ranks
    if ranks.size > 1 and not task.splits_over_ranks:
        raise ConfigError(f"task={config.task_name} is trained by one process, and here are {ranks.size}")
    distribute(task, ranks, machine.parallel, settings.device)
    if (threads := machine.threads or task.threads) is not None:
        torch.set_num_threads(threads)
    optimizers = build_optimizers(config.cfg.optim, task)
    stream = "training" if ranks.is_main else f"training of rank {ranks.rank}"
    torch.manual_seed(SeedStreams(config.seed).number(stream))
    schedule = build_schedule(config.cfg)
    return Loop(task, optimizers, schedule, run, trackers or [], settings)


def build_schedule(cfg: DictConfig) -> Schedule:
    """The task's schedule, or that of the optimiser if it has one: `none` for a constant learning rate."""
    own = cfg.optim.get("schedule")
    if own is None:
        return build_part("task.schedule", cfg.task.schedule)
    return constant() if own == "none" else build_part("optim.schedule", own)


def build_task(config: RunConfig, device: torch.device, ranks: Ranks = ALONE) -> Task:
    """The task with freshly initialised networks: the same on every device and rank."""
    cfg = config.cfg
    inception = Path(cfg.inception).expanduser() if cfg.inception else None
    context = context_of(config.identity, Path(cfg.data_root).expanduser(), device, inception)
    return task_of(config.identity, replace(context, ranks=ranks, machine=choose_machine(cfg.machine, device)))


def context_of(
    identity: Mapping[str, Any], data_root: Path, device: torch.device, inception: Path | None = None
) -> Context:
    """What a run's task gets besides its settings; `identity` is the content of config.yaml."""
    return Context(device, SeedStreams(identity["seed"]), identity["data"], data_root, inception)


def task_of(identity: Mapping[str, Any], context: Context) -> Task:
    """The task of a run's config.yaml, with networks as they were before training."""
    settings = {key: value for key, value in current_names(identity)["task"].items() if key != "schedule"}
    torch.manual_seed(context.streams.number("initialisation"))
    # Called outside `instantiate`, which would wrap whatever the task raises, such as MissingData.
    make_task = build_part("task", settings, context, _partial_=True)
    arguments = {key: value for key, value in settings.items() if not key.startswith("_")}
    try:  # a TypeError of the call itself, not one from within the task
        inspect.signature(get_object(settings["_target_"])).bind(context, **arguments)
    except TypeError as error:
        raise ConfigError(f"task: {error}") from error
    try:
        task = make_task()
    except BadSetting as error:
        raise ConfigError(f"task: {error}") from error
    assert isinstance(task, Task)
    return task


def build_optimizers(cfg: DictConfig, task: Task) -> dict[str, Optimizer]:
    """One optimiser per network, with the same settings except for those that `networks` has under its name.

    It is called with the network if its first parameter is called `model`, else with the network's parameters.

    `clip_norm` is the largest joint norm of all gradients; it overrides the task's.
    """
    settings = {key: value for key, value in cfg.items() if key not in NOT_OF_CLASS}
    own = cfg.get("networks") or {}
    networks = task.networks()
    if unknown := [name for name in own if name not in networks]:
        raise ConfigError(f"optim.networks: there is no network {unknown[0]!r}; there are: {', '.join(networks)}")
    # Plain lists and dicts: an optimiser may keep them in its state, which is saved.
    makers = {name: build_part("optim", {**settings, **own.get(name, {})}, _convert_="all") for name in networks}
    try:
        optimizers = {name: _make_optimizer(makers[name], network) for name, network in networks.items()}
        norm = cfg.get("clip_norm", task.clip_norm)
        for name, optimizer in optimizers.items():
            needs_closure = requires_closure(optimizer)
            if needs_closure and len(networks) > 1:
                raise ValueError(f"{type(optimizer).__name__} needs a closure, and the task has several networks")
            if norm is not None:
                if needs_closure:
                    raise ValueError(f"{type(optimizer).__name__} needs a closure: gradients cannot be clipped before")
                clip_before_step(optimizer, norm, list(networks[name].parameters()))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"optim: {' '.join(str(error).split())}") from error
    return optimizers


def _make_optimizer(make: Callable[..., Optimizer], network: nn.Module) -> Optimizer:
    optimizer = make(network if _takes_model(make) else network.parameters())
    if missing := [key for key in ("param_groups", "state_dict", "step") if not hasattr(optimizer, key)]:
        raise TypeError(f"{type(optimizer).__name__} is no optimiser: it has no {missing[0]}")
    if any("lr" not in group for group in optimizer.param_groups):
        raise TypeError(f"{type(optimizer).__name__} has no 'lr' in its param groups")
    return optimizer


def _takes_model(make: Callable[..., Optimizer]) -> bool:
    try:
        return next(iter(inspect.signature(make).parameters), "") == "model"
    except ValueError:  # a class without a signature
        return False


def clip_before_step(optimizer: Optimizer, norm: float, params: Sequence[Tensor]) -> None:
    """Before each step, scale the gradients of `params` so that their joint norm is at most `norm`."""
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not math.isfinite(norm) or norm <= 0:
        raise ValueError(f"clip_norm must be a positive number, not {norm!r}")

    def clip(stepped: Optimizer, args: Any, kwargs: Any) -> None:
        clip_grad_norm_(params, norm)

    optimizer.register_step_pre_hook(clip)


def build_part(key: str, settings: Any, *args: Any, **kwargs: Any) -> Any:
    """Hydra's `instantiate`, with errors of the settings as a ConfigError of one line. Other exceptions are raised."""
    try:
        return instantiate(settings, *args, **kwargs)
    except InstantiationException as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, ImportError | ValueError | TypeError | RuntimeError):
            raise cause from error
        # Hydra's own message for a missing target has several lines, of which the last names the key.
        raise ConfigError(f"{key}: {' '.join(str(cause or error).split())}") from error
