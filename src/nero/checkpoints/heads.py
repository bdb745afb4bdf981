"""What every record says of its run, and of what measured it."""

from typing import Any

import torch

from nero.runs.provenance import code_version, versions
from nero.tasks.base import Task
from nero.theory.records import Record
from nero.train.run import device_name


def head(run_id: str, identity: Record, task: Task, epochs_done: float) -> Record:
    """`identity` is what the run's config.yaml says."""
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


def measured(device: torch.device, seconds: float) -> dict[str, Any]:
    commit, dirty = code_version()
    return {
        "commit": f"{commit or 'unknown'}{' with changes' if dirty else ''}",
        "device": device_name(device),
        "torch": versions(("torch",)).get("torch"),
        "seconds": round(seconds, 1),
    }
