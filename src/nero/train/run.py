"""The life of one run: lock, build, resume, train, record the outcome."""

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nero.data.sources import MissingData
from nero.engine.compilation import keep_compiled_code
from nero.engine.distributed import BrokenGroup, is_distributed_launch, is_lost_connection
from nero.engine.interrupt import forward_signal, signals_as_requests, stop_reason
from nero.engine.loop import Loop, Position, Settings, UnusableCheckpoint
from nero.engine.process_state import check_gpu, gpu_broken_by, isolate_process_state
from nero.plans.config import ROOT, RunConfig
from nero.plans.schema import ConfigError
from nero.plans.stores import settled_result, store_of_run
from nero.runs.lock import RunBusy
from nero.runs.provenance import provenance
from nero.runs.records import encode, parse
from nero.runs.slots import counted_among, default_folder, slot
from nero.runs.store import SETTLED, VERSION, NullRunDirectory, Outcome, RunDirectory, Status, is_settled
from nero.runs.tracking import Progress, Tracker
from nero.runs.validation import summary_problem
from nero.tasks.base import Task
from nero.train.build import build_loop, build_task, build_trackers, device_name, run_settings

Result = dict[str, Any]
"""A run's summary with an `Outcome` as its `status`. It may have a `message`, and `skipped` if it was settled before.

Of a run that was not started there are only `run_id`, `status` and `message`.
"""


def train(config: RunConfig, progress: Progress | None = None) -> Result:
    """Train one run, or resume it; a settled run is skipped.

    Raises ConfigError or MissingData for a run that can never work here, or whose directory holds another run. Any
    other exception makes a `failed` run, recorded with its traceback if the store can be written.

    If torchrun or SLURM started several processes, all call this for the same run and get the same result. An exception
    during training is then raised as BrokenGroup by every rank: only a new start connects them again.
    """
    run = store_of_run(config).run(config.task_name, config.run_id)
    # With several ranks only rank 0 looks: the others may see an older state of a shared file system.
    if not is_distributed_launch() and (settled := settled_result(config, run)) is not None:
        return settled
    settings = run_settings(config)
    ranks = settings.ranks
    if settings.device.type == "cuda" and (culprit := gpu_broken_by()):
        return _not_started(run, Outcome.INTERRUPTED, f"{culprit} failed and left this process without its GPU")
    if len(run_ids := set(ranks.all_gather(run.run_id))) > 1:
        raise ConfigError(f"the ranks were asked for different runs: {', '.join(sorted(run_ids))}")
    with isolate_process_state():
        with ExitStack() as held:
            if ranks.size > 1:
                # The launcher ends all ranks when one is gone: what is to be written then is written first.
                held.enter_context(signals_as_requests())
            claimed = ranks.all_succeed(lambda: _claim(config, run, settings, held) if ranks.is_main else None)
            if (result := ranks.broadcast(claimed)) is not None:
                return result
            settings = held.enter_context(_least_used_gpu(config, settings))
            result = _execute(config, run if ranks.is_main else NullRunDirectory(run.path), settings, progress)
        # No rank looks at the store before this run's end is in it.
        result = ranks.broadcast(result)
    try:
        forward_signal()
    except Exception as error:  # a launcher that will not requeue this job
        result["message"] = f"{result.get('message')}: {_one_line(error)}"
    return result


def _claim(config: RunConfig, run: RunDirectory, settings: Settings, held: ExitStack) -> Result | None:
    """Take the run's lock, to be released by `held`; or the result of a run that is not to be started now."""
    if (settled := settled_result(config, run)) is not None:
        return settled
    if reason := stop_reason(settings.limits):
        return _not_started(run, Outcome.INTERRUPTED, reason)
    try:
        held.enter_context(run.exclusive())
    except RunBusy as busy:
        return _not_started(run, Outcome.BUSY, str(busy))
    except OSError as error:  # the store cannot be written
        return {**_not_started(run, Outcome.FAILED, _one_line(error)), "traceback": ""}
    return settled_result(config, run)  # the previous holder may have finished it


def _not_started(run: RunDirectory, outcome: Outcome, message: str) -> Result:
    return {"run_id": run.run_id, "status": outcome, "message": message}


@contextmanager
def _least_used_gpu(config: RunConfig, settings: Settings) -> Iterator[Settings]:
    """Of the first `machine.gpus` GPUs, take the one with the fewest runs, and count the others there.

    Nothing to choose for a run on a CPU or of several processes.
    """
    if settings.ranks.size > 1 or settings.device.type != "cuda":
        yield settings
        return
    visible, folder = torch.cuda.device_count(), default_folder()
    gpus = config.cfg.machine.gpus or visible
    if gpus > visible:
        raise ConfigError(f"machine.gpus must be null or at most {visible}, the number that torch sees, not {gpus}")
    with (
        slot(gpus, folder) if gpus > 1 else nullcontext(0) as number,
        torch.cuda.device(number),
        counted_among(config.bound_by, folder / f"on-gpu{number}") as other_runs,
    ):
        yield replace(settings, device=torch.device("cuda", number), other_runs=other_runs)


def _execute(config: RunConfig, run: RunDirectory, settings: Settings, progress: Progress | None) -> Result:
    """Train the run, record its end, and free its memory for the next run in this process."""
    result = _train_and_record(config, run, settings, build_trackers(config, settings, progress))
    if config.cfg.machine.compile:
        keep_compiled_code()
    gc.collect()  # graphs hold memory until they are collected, and an exception all that its frames held
    if settings.device.type == "cuda":
        if result["status"] == Outcome.FAILED:
            check_gpu(settings.device, run.run_id)
        if gpu_broken_by() is None:
            torch.cuda.empty_cache()
    return result


@dataclass
class _Attempt:
    """How training ended, before that is recorded."""

    summary: dict[str, Any]
    stop_reason: str | None = None
    keeps_checkpoint: bool = False
    error: BaseException | None = None
    broken_group: str | None = None  # why the ranks cannot continue together


def _train_and_record(config: RunConfig, run: RunDirectory, settings: Settings, trackers: list[Tracker]) -> Result:
    attempt = _attempt(config, run, settings, trackers)
    summary, error = attempt.summary, attempt.error
    unrecorded: Exception | None = None
    try:
        if error is not None and summary["status"] == Status.FAILED:
            run.write_config(config.identity)  # it may have failed before this was written
        run.write_summary(summary)
    except (OSError, RunBusy) as failed:
        unrecorded = failed
    if attempt.broken_group:
        raise BrokenGroup(f"{run.run_id}: {attempt.broken_group}")
    # Only now: a kill before this line must find the run either settled or resumable.
    if summary["status"] in SETTLED and not attempt.keeps_checkpoint and unrecorded is None:
        with suppress(OSError):
            run.drop_checkpoints()
    if summary["status"] == Status.RUNNING:
        result = {**summary, "status": Outcome.INTERRUPTED, "message": attempt.stop_reason}
    else:
        result = {**summary, "status": Outcome(summary["status"])}
    if error is not None:
        result["message"] = summary["traceback"].strip().splitlines()[-1]
        if _explains_itself(error, run):
            result["traceback"] = ""  # the message says it all
    if unrecorded is not None:
        # Nothing of this attempt is in the store: the next call resumes from what is there.
        result |= _summary_so_far(run, Position()) | {"status": Outcome.FAILED, "traceback": ""}
        result["message"] = _one_line(error or unrecorded)
    if isinstance(busy := unrecorded or error, RunBusy):
        result |= {"status": Outcome.BUSY, "message": str(busy)}
    for tracker in trackers:
        tracker.finish(result)
    return result


def _attempt(config: RunConfig, run: RunDirectory, settings: Settings, trackers: list[Tracker]) -> _Attempt:
    """Build, resume and train; an exception becomes a failed attempt."""
    ranks = settings.ranks
    device = device_name(settings.device, ranks)
    summary = {
        "version": VERSION,
        "run_id": config.run_id,
        "task": config.task_name,
        "optim": config.optim_name,
        "lr": config.lr,
        "seed": config.seed,
        "data": config.cfg.data,
        "epochs": config.epochs,
        "device": device,
        "metric": None,
        "parameters": None,
    }
    task: Task | None = None
    loop: Loop | None = None
    try:
        task = ranks.all_succeed(lambda: build_task(config, settings.device, ranks))
        loop = build_loop(config, task, run, settings, trackers)
        parameters = [param for network in task.networks().values() for param in network.parameters()]
        found = {"metric": task.metric.as_dict(), "parameters": sum(param.numel() for param in parameters)}
        first = {**summary, **found, **_summary_so_far(run, Position()), "status": Status.RUNNING}
        if problem := summary_problem(parse(encode(first)), run.run_id, config.task_name):
            raise ValueError(problem)  # now, and not when the run has been trained
        summary |= found
        if task.remarks:
            summary["remarks"] = list(task.remarks)
        for remark in task.remarks if ranks.is_main else ():
            print(f"{run.run_id}  {remark}", file=sys.stderr, flush=True)
        run.write_config(config.identity)
        run.add_provenance(provenance(device))
        run.write_summary(first | summary)
        with signals_as_requests():
            loop.restore()
            done = loop.position.epoch + loop.position.step / task.steps_per_epoch
            for tracker in trackers:
                tracker.start(run.run_id, run.path, config.identity, task.epochs, done, task.metric.key)
            ending = loop.run()
            summary |= _summary_so_far(run, ending.position)
            summary |= {"status": ending.status or Status.RUNNING, "diverged_at": ending.diverged_at}
            if ending.status is Status.DONE:
                last = next(reversed(run.read_metrics()), {})  # ranks other than 0 have no lines
                metrics = {key: value for key, value in last.items() if "/" in key}
                summary |= {"final": metrics.get(task.metric.key), "final_metrics": metrics}
            # A run without its metric needs its last state for when it can be measured.
            keeps = ending.status is Status.DONE and (config.cfg.machine.keep_checkpoint or not is_settled(summary))
            if keeps := ranks.broadcast(keeps):
                loop.checkpoint()
        return _Attempt(summary, ending.reason, keeps)
    except (ConfigError, MissingData):
        run.discard()
        raise
    except (Exception, SystemExit) as error:  # an optimiser's sys.exit must not end a whole sweep
        text = f"{_one_line(error)}\n" if _explains_itself(error, run) else _without_local_paths(traceback.format_exc())
        summary |= _summary_so_far(run, loop.position if loop else Position())
        summary |= {"status": Status.FAILED, "traceback": text}
        attempt = _Attempt(summary, error=error)
        if ranks.size > 1 and task is not None:  # without a task no rank has one, and they are still connected
            attempt.broken_group = f"rank {ranks.rank} failed: {type(error).__name__}: {error}"
            if is_lost_connection(error):
                # Nothing is wrong with the run: as after a kill, the next start resumes from the last checkpoint.
                attempt.summary |= {"status": Status.RUNNING, "traceback": None}
                attempt.broken_group = "another rank failed or is gone; the same command resumes from the checkpoint"
        return attempt
    finally:
        if task is not None:
            task.after_training()


def _summary_so_far(run: RunDirectory, position: Position) -> dict[str, Any]:
    """For a run without a result: it has no final value, since only the last epoch's counts."""
    return {
        "epochs_done": max((record["epoch"] for record in run.read_metrics()), default=0),
        "seconds": round(position.seconds, 3),
        "joules": round(position.joules, 1),  # written as null if unknown
        "gpu_processes": position.processes or None,
        "beside": position.beside or None,  # other runs on the GPU, by what they are bound by
        "final": None,
        "final_metrics": {},
        "diverged_at": None,
        "traceback": None,
    }


def _explains_itself(error: BaseException, run: RunDirectory) -> bool:
    """Whether one line is enough: the store cannot be written, or holds what this code cannot use."""
    of_store = isinstance(error, OSError) and str(error.filename or "").startswith(str(run.path))
    return of_store or isinstance(error, UnusableCheckpoint | RunBusy)


def _one_line(error: BaseException) -> str:
    return _without_local_paths(" ".join(f"{type(error).__name__}: {error}".split()))


def _without_local_paths(text: str) -> str:
    return text.replace(f"{ROOT}{os.sep}", "").replace(str(Path.home()), "~")
