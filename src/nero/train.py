"""One run: config -> task, optimisers, loop -> a run directory with a summary."""

import gc
import math
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch.optim import Optimizer

from nero.data.sources import MissingData
from nero.engine import interrupt
from nero.engine.clipping import CLIP_NORM, clip_before_step
from nero.engine.loop import Ending, Loop, Settings
from nero.engine.seeding import SeedStreams, seed_global
from nero.plans.config import ROOT, ConfigError, RunConfig
from nero.runs.lock import RunBusy
from nero.runs.provenance import provenance
from nero.runs.store import SETTLED, RunDirectory, Status, Store, is_settled
from nero.runs.tracking import Progress, Tracker
from nero.tasks.base import BadSetting, Context, Task

NETWORKS = "networks"
"""Key of an optimiser's settings: settings of its own for a network, by the network's name."""

Outcome = dict[str, Any]
"""A run's summary, with `status` also "interrupted" or "busy", and `skipped` for a run that was settled before."""


def train(config: RunConfig, progress: Progress | None = None) -> Outcome:
    """Carry out one run, or go on with it; a settled run is left as it is.

    Raises ConfigError or MissingData for what can never work here. Any other exception in the run is a `failed` run:
    it is recorded with its traceback, and whoever asked for several runs goes on with the next.
    """
    run = Store(config.cfg.store).run(config.task_name, config.run_id)
    if (settled := _settled(run)) is not None:
        return settled
    machine = config.cfg.machine
    device = choose_device(machine.device)
    capture = choose_capture(machine.capture, device)
    if reason := interrupt.stop_reason(_deadline(machine)):
        return {"run_id": run.run_id, "status": "interrupted", "message": reason}
    threads = torch.get_num_threads()
    try:
        with run.exclusive():
            # Whoever held the run until now may have finished it.
            return _settled(run) or _carry_out(config, run, device, capture, [progress or Progress()])
    except RunBusy as busy:
        return {"run_id": run.run_id, "status": "busy", "message": str(busy)}
    finally:
        torch.set_num_threads(threads)  # whatever became of the run: others may follow in this process


def _carry_out(
    config: RunConfig, run: RunDirectory, device: torch.device, capture: bool, trackers: list[Tracker]
) -> Outcome:
    """The run itself, recorded whatever becomes of it. Whoever calls holds the run."""
    fixed = _fixed_summary(config, device)
    loop: Loop | None = None
    reason: str | None = None
    kept = False
    try:
        loop = build_loop(config, run, device, capture, trackers)
        fixed |= _task_summary(loop.task)
        for remark in loop.task.remarks:
            print(f"{run.run_id}  {remark}", file=sys.stderr, flush=True)
        run.write_config(config.identity)
        run.add_provenance(provenance(device_name(device)))
        run.write_summary({**fixed, **_so_far(run, 0.0), "status": Status.RUNNING})
        with interrupt.listening():
            loop.restore()
            for tracker in trackers:
                tracker.start(
                    run.run_id, run.path, config.identity, loop.task.epochs, loop.position.epoch, loop.task.metric.key
                )
            ending = loop.run()
            summary = {**fixed, **_result(run, loop.task, ending)}
            reason = ending.reason
            # One that could not be measured needs its last state for when it can be.
            kept = ending.status is Status.DONE and (config.cfg.machine.keep_checkpoint or not is_settled(summary))
            if kept:
                loop.checkpoint()
    except (ConfigError, MissingData):
        raise
    except Exception:
        run.write_config(config.identity)
        seconds = loop.position.seconds if loop else 0.0
        summary = {**fixed, **_so_far(run, seconds), "status": Status.FAILED, "traceback": _traceback()}
    run.write_summary(summary)
    # Only now: a kill before this line must find the run either settled or able to go on.
    if summary["status"] in SETTLED and not kept:
        run.drop_checkpoints()
    outcome = dict(summary)
    if summary["status"] == Status.RUNNING:
        outcome |= {"status": "interrupted", "message": reason}
    if summary["status"] == Status.FAILED:
        outcome["message"] = summary["traceback"].strip().splitlines()[-1]
    for tracker in trackers:
        tracker.finish(outcome)
    # Runs that share a process leave nothing behind for the next: graphs hold memory until they are collected.
    del loop
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return outcome


def build_loop(
    config: RunConfig, run: RunDirectory, device: torch.device, capture: bool, trackers: list[Tracker]
) -> Loop:
    """Everything that a run needs, seeded and ready to be restored or started. Adds the mirror to `trackers`."""
    cfg, machine = config.cfg, config.cfg.machine
    task = build_task(config, device)
    if (threads := machine.threads or task.threads) is not None:
        torch.set_num_threads(threads)
    optimizers = build_optimizers(cfg.optim, task)
    if cfg.tracking.mirror is not None:
        trackers.append(_instantiate("tracking.mirror", cfg.tracking.mirror))
    seed_global(SeedStreams(config.seed).number("training"))
    settings = Settings(
        device=device,
        precision=cfg.precision,
        capture=capture,
        compile=machine.compile,
        checkpoint_seconds=machine.checkpoint_seconds,
        deadline=_deadline(machine),
    )
    return Loop(task, optimizers, _instantiate("task.schedule", cfg.task.schedule), run, trackers, settings)


def build_task(config: RunConfig, device: torch.device) -> Task:
    """The task with freshly initialised networks: the same ones on every device."""
    cfg = config.cfg
    inception = Path(cfg.inception).expanduser() if cfg.inception else None
    return task_of(config.identity, context_of(config.identity, Path(cfg.data_root).expanduser(), device, inception))


def context_of(
    identity: Mapping[str, Any], data_root: Path, device: torch.device, inception: Path | None = None
) -> Context:
    """What a run's task is given beside its settings; `identity` is what its config.yaml says."""
    return Context(device, SeedStreams(identity["seed"]), identity["data"], data_root, inception)


def task_of(identity: Mapping[str, Any], context: Context) -> Task:
    """The task of a run's config.yaml, with networks as they were before training."""
    settings = {key: value for key, value in identity["task"].items() if key != "schedule"}
    seed_global(context.streams.number("initialisation"))
    # Built outside `instantiate`, which would wrap whatever the task raises, such as MissingData.
    make_task = _instantiate("task", settings, context, _partial_=True)
    try:
        task = make_task()
    except BadSetting as error:
        raise ConfigError(f"task: {error}") from error
    assert isinstance(task, Task)
    return task


def _instantiate(key: str, settings: Any, *args: Any, **kwargs: Any) -> Any:
    """Hydra's, with a setting that cannot be as one line; any other exception of a part's own code goes on its way."""
    try:
        return instantiate(settings, *args, **kwargs)
    except InstantiationException as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, ImportError | ValueError | TypeError | RuntimeError):
            raise cause from error
        # Hydra's own words for a target that is not there span lines, of which the last names the key.
        said = cause if cause is not None else error
        raise ConfigError(f"{key}: {' '.join(str(said).split())}") from error


def build_optimizers(cfg: DictConfig, task: Task) -> dict[str, Optimizer]:
    """One optimiser per network, all with the same settings but for what `networks` says of one by its name.

    `clip_norm` is not the optimiser's but its gradients': whether they are clipped, and where, is the optimiser's YAML
    to say, and else the task's.
    """
    settings = {key: value for key, value in cfg.items() if key not in (CLIP_NORM, NETWORKS)}
    own = cfg.get(NETWORKS) or {}
    networks = task.networks()
    if unknown := [name for name in own if name not in networks]:
        raise ConfigError(f"optim.{NETWORKS}: there is no network {unknown[0]!r}; there are: {', '.join(networks)}")
    makers = {name: _instantiate("optim", {**settings, **own.get(name, {})}) for name in networks}
    try:
        optimizers = {name: makers[name](network.parameters()) for name, network in networks.items()}
        norm = cfg.get(CLIP_NORM, task.clip_norm)
        if norm is not None:
            for optimizer in optimizers.values():
                clip_before_step(optimizer, norm)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"optim: {str(error).splitlines()[0]}") from error
    return optimizers


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"machine.device must be auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("machine=gpu needs a CUDA GPU and torch sees none here; use machine=cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_capture(wanted: bool | str, device: torch.device) -> bool:
    if wanted not in (True, False, "auto"):
        raise ConfigError(f"machine.capture must be auto, true or false, not {wanted!r}")
    if wanted is True and device.type != "cuda":
        raise ConfigError("machine.capture=true needs a CUDA GPU")
    return device.type == "cuda" and bool(wanted)


def device_name(device: torch.device) -> str:
    """The device in words, as reports show it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def _deadline(machine: DictConfig) -> float:
    moments = [math.inf]
    if machine.deadline is not None:
        moments.append(float(machine.deadline))
    if machine.budget_seconds is not None:
        moments.append(time.time() + float(machine.budget_seconds))
    return min(moments)


def _settled(run: RunDirectory) -> Outcome | None:
    summary = run.read_summary()
    return {**summary, "skipped": True} if summary and is_settled(summary) else None


def _fixed_summary(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """What is known of a run before its task is built."""
    return {
        "version": 1,
        "run_id": config.run_id,
        "task": config.task_name,
        "optim": config.optim_name,
        "lr": config.lr,
        "seed": config.seed,
        "data": config.cfg.data,
        "epochs": config.epochs,
        "device": device_name(device),
        "metric": None,
        "parameters": None,
    }


def _task_summary(task: Task) -> dict[str, Any]:
    parameters = sum(p.numel() for network in task.networks().values() for p in network.parameters())
    remarks = {"remarks": list(task.remarks)} if task.remarks else {}
    return {"metric": task.metric.as_dict(), "parameters": parameters, **remarks}


def _so_far(run: RunDirectory, seconds: float) -> dict[str, Any]:
    """What a run that has not ended well can say: no final value, since only the last epoch's counts."""
    return {
        "epochs_done": max((record["epoch"] for record in run.read_metrics()), default=0),
        "seconds": round(seconds, 3),
        "final": None,
        "final_metrics": {},
        "diverged_at": None,
        "traceback": None,
    }


def _result(run: RunDirectory, task: Task, ending: Ending) -> dict[str, Any]:
    result = {**_so_far(run, ending.position.seconds), "status": ending.status or Status.RUNNING}
    if ending.status is Status.DONE:
        last: Mapping[str, Any] = run.read_metrics()[-1]
        metrics = {key: value for key, value in last.items() if "/" in key}
        result |= {"final": metrics.get(task.metric.key), "final_metrics": metrics}
    if ending.status is Status.DIVERGED:
        result["diverged_at"] = ending.diverged_at
    return result


def _traceback() -> str:
    """The traceback with this machine's own paths shortened."""
    return traceback.format_exc().replace(f"{ROOT}{os.sep}", "").replace(str(Path.home()), "~")
