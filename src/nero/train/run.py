"""One run: config -> task, optimisers, loop -> a run directory with a summary."""

import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
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
from nero.engine.compilation import keep_compiled_code
from nero.engine.distributed import (
    ALONE,
    WAYS,
    BrokenGroup,
    Ranks,
    is_lost_connection,
    is_started_together,
    join,
    own_device,
    spread,
)
from nero.engine.interrupt import NO_LIMITS
from nero.engine.loop import Ending, Loop, Position, Settings, UnusableCheckpoint
from nero.engine.process_state import look_at, nothing_left_behind, spoilt_by
from nero.engine.seeding import SeedStreams, seed_global
from nero.plans.config import ROOT, ConfigError, RunConfig, digest
from nero.plans.limits import limits_of
from nero.runs.lock import RunBusy
from nero.runs.provenance import provenance
from nero.runs.slots import Neighbours, default_folder, neighbours, nobody, slot
from nero.runs.stopping import Limits
from nero.runs.store import SETTLED, VERSION, RunDirectory, Status, Store, UnwrittenRun, is_settled
from nero.runs.tracking import Progress, Tracker
from nero.tasks.base import BadSetting, Context, Machine, Task

NETWORKS = "networks"
"""Key of an optimiser's settings: settings of its own for a network, by the network's name."""

Outcome = dict[str, Any]
"""A run's summary, with `status` also "interrupted" or "busy", and `skipped` for a run that was settled before."""


def train(config: RunConfig, progress: Progress | None = None) -> Outcome:
    """Carry out one run, or go on with it; a settled run is left as it is.

    Raises ConfigError or MissingData for what can never work here, and for a directory that holds something else than
    this run. Any other exception in the run is a `failed` run: it is recorded with its traceback, or, where the store
    cannot be written, told with what was there left as it was; whoever asked for several runs goes on with the next.

    Started by torchrun or by SLURM as one of several processes, all call this for the same run and get the same
    outcome; the first of them writes. An exception in the midst of training is then not returned but raised as
    BrokenGroup by every rank: they have parted, and only a new start brings them together again.
    """
    run = Store(config.cfg.store).run(config.task_name, config.run_id)
    # Of several ranks, the first alone looks: others may see an older state of a file system that they share.
    if not is_started_together() and (settled := _settled(config, run)) is not None:
        return settled
    machine = config.cfg.machine
    limits = limits_of(machine)
    device = choose_device(machine.device)
    if device.type == "cuda" and (culprit := spoilt_by()):
        message = f"{culprit} failed and left this process without its GPU"
        return {"run_id": run.run_id, "status": "interrupted", "message": message}
    ranks = choose_ranks(machine, device)
    device = own_device(device, ranks)
    capture = choose_capture(machine.capture, device, ranks)
    if len(asked := set(ranks.all_of(run.run_id))) > 1:
        raise ConfigError(f"the ranks were asked for different runs: {', '.join(sorted(asked))}")
    with nothing_left_behind():
        with ExitStack() as held:
            if ranks.size > 1:
                # Whoever started the ranks ends them all when one is gone: what is to be written then is written first.
                held.enter_context(interrupt.listening())
            reason = ranks.all_or_none(lambda: _not_to_be_run(config, run, limits, held) if ranks.leads else None)
            if (outcome := ranks.from_first(reason)) is not None:
                return outcome
            others = nobody
            if ranks.size == 1 and device.type == "cuda":
                device = held.enter_context(_device_with_fewest_runs(machine.gpus))
                others = held.enter_context(neighbours(config.bound_by, default_folder() / f"on-gpu{device.index}"))
            own = run if ranks.leads else UnwrittenRun(run.path)
            trackers: list[Tracker] = [progress or Progress()] if ranks.leads else []
            outcome = _carry_out(config, own, device, capture, limits, ranks, trackers, others)
        # Nobody looks at the store before it has this run's end.
        outcome = ranks.from_first(outcome)
    try:
        interrupt.hand_on()
    except Exception as said:  # a launcher that will not start this job again
        outcome["message"] = f"{outcome.get('message')}: {_in_one_line(said)}"
    return outcome


@contextmanager
def _device_with_fewest_runs(gpus: int | None) -> Iterator[torch.device]:
    """The GPU of a run that is trained by one process, of the first `gpus` (None: of all that there are)."""
    there = torch.cuda.device_count()
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= there):
        raise ConfigError(f"machine.gpus must be null or a number from 1 to the {there} that torch sees, not {gpus!r}")
    with ExitStack() as held:
        number = held.enter_context(slot(gpus or there, default_folder())) if (gpus or there) > 1 else 0
        held.enter_context(torch.cuda.device(number))
        yield torch.device("cuda", number)


def _not_to_be_run(config: RunConfig, run: RunDirectory, limits: Limits, held: ExitStack) -> Outcome | None:
    """What to say of a run that is not to be run now; None for one that is, which is then `held`."""
    if (settled := _settled(config, run)) is not None:
        return settled
    if reason := interrupt.stop_reason(limits):
        return {"run_id": run.run_id, "status": "interrupted", "message": reason}
    try:
        held.enter_context(run.exclusive())
    except RunBusy as busy:
        return {"run_id": run.run_id, "status": "busy", "message": str(busy)}
    except OSError as error:  # a store that cannot be written
        return {"run_id": run.run_id, "status": "failed", "message": _in_one_line(error), "traceback": ""}
    return _settled(config, run)  # whoever held the run until now may have finished it


def _carry_out(
    config: RunConfig,
    run: RunDirectory,
    device: torch.device,
    capture: bool,
    limits: Limits,
    ranks: Ranks,
    trackers: list[Tracker],
    others: Neighbours,
) -> Outcome:
    """The run itself, recorded whatever becomes of it. Whoever calls holds the run."""
    fixed = _fixed_summary(config, device, ranks)
    loop: Loop | None = None
    reason: str | None = None
    kept = False
    task: Task | None = None
    broken: str | None = None
    problem: Exception | None = None
    try:
        task = ranks.all_or_none(lambda: build_task(config, device, ranks))
        loop = build_loop(config, task, run, device, capture, trackers, ranks, limits, others)
        fixed |= _task_summary(loop.task)
        for remark in loop.task.remarks if ranks.leads else ():
            print(f"{run.run_id}  {remark}", file=sys.stderr, flush=True)
        run.write_config(config.identity)
        run.add_provenance(provenance(device_name(device, ranks)))
        run.write_summary({**fixed, **_so_far(run, Position()), "status": Status.RUNNING})
        with interrupt.listening():
            loop.restore()
            place = loop.position
            done = place.epoch + place.step / task.steps_per_epoch
            for tracker in trackers:
                tracker.start(run.run_id, run.path, config.identity, task.epochs, done, task.metric.key)
            ending = loop.run()
            summary = {**fixed, **_result(run, task, ending)}
            reason = ending.reason
            # One that could not be measured needs its last state for when it can be.
            kept = ending.status is Status.DONE and (config.cfg.machine.keep_checkpoint or not is_settled(summary))
            if kept := ranks.from_first(kept):
                loop.checkpoint()
    except (ConfigError, MissingData):
        raise
    except Exception as error:
        problem = error
        reached = loop.position if loop else Position()
        said = f"{_in_one_line(error)}\n" if _explains_itself(error, run) else _shortened(traceback.format_exc())
        summary = {**fixed, **_so_far(run, reached), "status": Status.FAILED, "traceback": said}
        # Without a task no rank has one: they have agreed on that, and are still together.
        if ranks.size > 1 and task is not None:
            broken = f"rank {ranks.rank} failed: {type(error).__name__}: {error}"
            if is_lost_connection(error):
                # Nothing is wrong with the run: as after a kill, the next start goes on from the last checkpoint.
                summary |= {"status": Status.RUNNING, "traceback": None}
                broken = "another rank failed or is gone; the same command goes on from the last checkpoint"
    finally:
        if task is not None:
            task.after_training()
    unwritten = _record(run, config, summary)
    if broken:
        raise BrokenGroup(f"{run.run_id}: {broken}")
    # Only now: a kill before this line must find the run either settled or able to go on.
    if summary["status"] in SETTLED and not kept and not unwritten:
        with suppress(OSError):
            run.drop_checkpoints()
    outcome = dict(summary)
    if summary["status"] == Status.RUNNING:
        outcome |= {"status": "interrupted", "message": reason}
    if summary["status"] == Status.FAILED:
        outcome["message"] = summary["traceback"].strip().splitlines()[-1]
        if problem is not None and _explains_itself(problem, run):
            outcome["traceback"] = ""  # the line says it all
    if unwritten is not None:
        # Nothing of this is in the store, whatever it is: the next call goes on from what is there.
        why = _in_one_line(problem or unwritten)
        outcome |= _so_far(run, Position()) | {"status": "failed", "traceback": "", "message": why}
    busy = unwritten or problem
    if isinstance(busy, RunBusy):
        outcome |= {"status": "busy", "message": str(busy)}
    for tracker in trackers:
        tracker.finish(outcome)
    # Runs that share a process leave no memory in use for the next: graphs hold some until they are collected. An
    # exception holds all that was there where it was raised.
    del loop, task, problem, unwritten, busy
    if config.cfg.machine.compile:
        keep_compiled_code()
    gc.collect()
    if device.type == "cuda":
        if outcome["status"] == "failed":
            look_at(device, run.run_id)
        if spoilt_by() is None:
            torch.cuda.empty_cache()
    return outcome


def _record(run: RunDirectory, config: RunConfig, summary: Mapping[str, Any]) -> Exception | None:
    """Write a run's end; where that cannot be, return why."""
    try:
        if summary["status"] == Status.FAILED:
            run.write_config(config.identity)  # it may have failed before that was there
        run.write_summary(summary)
    except (OSError, RunBusy) as error:
        return error
    return None


def build_loop(
    config: RunConfig,
    task: Task,
    run: RunDirectory,
    device: torch.device,
    capture: bool,
    trackers: list[Tracker],
    ranks: Ranks = ALONE,
    limits: Limits = NO_LIMITS,
    others: Neighbours = nobody,
) -> Loop:
    """What trains a task, seeded and ready to be restored or started. Adds the mirror to `trackers`."""
    cfg, machine = config.cfg, config.cfg.machine
    if ranks.size > 1 and not task.splits_over_ranks:
        raise ConfigError(f"task={config.task_name} is trained by one process, and here are {ranks.size}")
    spread(task, ranks, machine.parallel, device)
    if (threads := machine.threads or task.threads) is not None:
        torch.set_num_threads(threads)
    optimizers = build_optimizers(cfg.optim, task)
    if cfg.tracking.mirror is not None and ranks.leads:
        trackers.append(_instantiate("tracking.mirror", cfg.tracking.mirror))
    seed_global(SeedStreams(config.seed).number("training" if ranks.leads else f"training of rank {ranks.rank}"))
    settings = Settings(
        device=device,
        precision=cfg.precision,
        capture=capture,
        compile=machine.compile,
        kind=None if ranks.size > 1 else (digest(config.identity["task"]), choose_machine(machine, device)),
        checkpoint_seconds=machine.checkpoint_seconds,
        limits=limits,
        ranks=ranks,
        neighbours=others,
    )
    return Loop(task, optimizers, _instantiate("task.schedule", cfg.task.schedule), run, trackers, settings)


def build_task(config: RunConfig, device: torch.device, ranks: Ranks = ALONE) -> Task:
    """The task with freshly initialised networks: the same ones on every device and on every rank."""
    cfg = config.cfg
    inception = Path(cfg.inception).expanduser() if cfg.inception else None
    context = context_of(config.identity, Path(cfg.data_root).expanduser(), device, inception)
    return task_of(config.identity, replace(context, ranks=ranks, machine=choose_machine(cfg.machine, device)))


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


def choose_ranks(machine: DictConfig, device: torch.device) -> Ranks:
    """The processes that this one was started with, connected."""
    if machine.parallel not in WAYS:
        raise ConfigError(f"machine.parallel must be one of {', '.join(WAYS)}, not {machine.parallel!r}")
    if machine.backend not in ("auto", "gloo"):
        raise ConfigError(f"machine.backend must be auto or gloo, not {machine.backend!r}")
    try:
        return join(device, machine.backend)
    except ValueError as error:
        raise ConfigError(f"machine: {error}") from error


def choose_capture(wanted: bool | str, device: torch.device, ranks: Ranks = ALONE) -> bool:
    if wanted not in (True, False, "auto"):
        raise ConfigError(f"machine.capture must be auto, true or false, not {wanted!r}")
    if wanted is True and device.type != "cuda":
        raise ConfigError("machine.capture=true needs a CUDA GPU")
    if wanted is True and ranks.size > 1:
        raise ConfigError("machine.capture=true is for one process: messages between ranks are not captured")
    return device.type == "cuda" and bool(wanted) and ranks.size == 1


def choose_machine(machine: DictConfig, device: torch.device) -> Machine:
    """What a task is told of the machine."""
    workers, decode, channels_last = machine.workers, machine.decode, machine.channels_last
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise ConfigError(f"machine.workers must be null or a whole number from 0, not {workers!r}")
    if decode not in ("auto", "cpu", "gpu", "dali"):
        raise ConfigError(f"machine.decode must be one of auto, cpu, gpu, dali, not {decode!r}")
    if decode == "gpu" and device.type != "cuda":
        raise ConfigError("machine.decode=gpu needs a CUDA GPU")
    if not isinstance(channels_last, bool):
        raise ConfigError(f"machine.channels_last must be true or false, not {channels_last!r}")
    return Machine(workers, decode, channels_last)


def device_name(device: torch.device, ranks: Ranks = ALONE) -> str:
    """The device in words, as reports show it; of several ranks that of the first."""
    many = f"{ranks.size} x " if ranks.size > 1 else ""
    own = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{many}{own}"


def _settled(config: RunConfig, run: RunDirectory) -> Outcome | None:
    """What is logged of a run that has its result; ConfigError for a directory that is not this run's to write."""
    if (version := run.other_version()) is not None:
        raise ConfigError(
            f"{run.path}: its summary.json is of version {version}, and this code writes version {VERSION}; use another"
            " store, or move the directory away"
        )
    if (logged := run.config_there()) is not None and not _are_alike(logged, config.identity):
        raise ConfigError(
            f"{run.path}: its config.yaml is not that of the run that is asked for; use another store, or move the"
            " directory away"
        )
    summary = run.read_summary()
    return {**summary, "skipped": True} if summary and is_settled(summary) else None


def _fixed_summary(config: RunConfig, device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """What is known of a run before its task is built."""
    return {
        "version": VERSION,
        "run_id": config.run_id,
        "task": config.task_name,
        "optim": config.optim_name,
        "lr": config.lr,
        "seed": config.seed,
        "data": config.cfg.data,
        "epochs": config.epochs,
        "device": device_name(device, ranks),
        "metric": None,
        "parameters": None,
    }


def _task_summary(task: Task) -> dict[str, Any]:
    parameters = sum(p.numel() for network in task.networks().values() for p in network.parameters())
    remarks = {"remarks": list(task.remarks)} if task.remarks else {}
    return {"metric": task.metric.as_dict(), "parameters": parameters, **remarks}


def _so_far(run: RunDirectory, position: Position) -> dict[str, Any]:
    """What a run that has not ended well can say: no final value, since only the last epoch's counts."""
    return {
        "epochs_done": max((record["epoch"] for record in run.read_metrics()), default=0),
        "seconds": round(position.seconds, 3),
        "joules": round(position.joules, 1),  # the store writes null where it is unknown
        "gpu_processes": position.processes or None,
        "beside": position.beside or None,  # other runs on the GPU, by what they are bound by
        "final": None,
        "final_metrics": {},
        "diverged_at": None,
        "traceback": None,
    }


def _result(run: RunDirectory, task: Task, ending: Ending) -> dict[str, Any]:
    result = {**_so_far(run, ending.position), "status": ending.status or Status.RUNNING}
    if ending.status is Status.DONE:
        # A rank that does not write the run has no lines of it.
        last: Mapping[str, Any] = next(reversed(run.read_metrics()), {})
        metrics = {key: value for key, value in last.items() if "/" in key}
        result |= {"final": metrics.get(task.metric.key), "final_metrics": metrics}
    if ending.status is Status.DIVERGED:
        result["diverged_at"] = ending.diverged_at
    return result


def _are_alike(logged: dict[str, Any], identity: dict[str, Any]) -> bool:
    """Whether a config.yaml says that; one that a hand has been at may hold what no config can."""
    try:
        return digest(logged) == digest(identity)
    except TypeError:
        return False


def _explains_itself(error: Exception, run: RunDirectory) -> bool:
    """Whether a line says it all: of a store that cannot be written, or holds what is not for this code."""
    of_store = isinstance(error, OSError) and str(error.filename or "").startswith(str(run.path))
    return of_store or isinstance(error, UnusableCheckpoint | RunBusy)


def _in_one_line(error: Exception) -> str:
    return _shortened(" ".join(f"{type(error).__name__}: {error}".split()))


def _shortened(text: str) -> str:
    """Without what of a path means something on this machine alone."""
    return text.replace(f"{ROOT}{os.sep}", "").replace(str(Path.home()), "~")
