"""Check what the config.yaml of a run would have built, before any of it is: the file may come from somebody else.

`nero.runs.targets` checks the names. A listed name may still lead elsewhere, as in nero.models.vgg.torch.hub.load, so
what it refers to is checked too: by its kind, and by the module that defines it.
"""

import os
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from nero.checkpoints.options import Unusable
from nero.data.augmentation import Augmentation
from nero.runs import targets
from nero.tasks.base import Task

# Where a class is defined -> what it must be a subclass of.
KINDS: dict[str, type] = {
    "nero.tasks": Task,
    "nero.models": nn.Module,
    "nero.optim": Optimizer,
    "nero.data.augmentation": Augmentation,
    "torch.optim": Optimizer,
    "torch.nn.modules": nn.Module,
    "pytorch_optimizer": Optimizer,
    "schedulefree": Optimizer,
}
SCHEDULES = "nero.engine.schedules"  # all of its public functions
FUNCTIONS = ("nero.models.resnet50.resnet50", "nero.optim.constrained.constrained")


def check_config(run_id: str, config: Mapping[str, Any], groups: Collection[str], trust: Collection[str]) -> None:
    """Raise Unusable unless all that these groups of a config name may be built.

    Args:
        groups: "task", "optim" or both
        trust: packages of the user's own, also in the current folder
    """
    if found := next(targets.faults(config, groups, trust), None):
        raise Unusable(f"{run_id}: {found}")
    if trust and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    for key, name in targets.named(config, groups):
        try:
            target = resolve(name)
        except Exception as error:  # importing an unknown name can fail in any way
            raise Unusable(f"{run_id}: {key} is {name}, which this code does not have") from error
        if not may_be_built(name, target, trust):
            raise Unusable(f"{run_id}: {targets.refusal(key, name)}")


def resolve(name: str) -> Any:
    """What Hydra makes of a dotted name, without its log messages."""
    path, *parts = name.split(".")
    found: Any = import_module(path)
    for part in parts:
        path = f"{path}.{part}"
        is_module = isinstance(found, ModuleType) and not hasattr(found, part)
        found = import_module(path) if is_module else getattr(found, part)
    return found


def may_be_built(name: str, target: Any, trust: Collection[str] = ()) -> bool:
    """Whether a listed name refers to a class or function that a config.yaml may name."""
    home = getattr(target, "__module__", None)
    if not isinstance(target, type | FunctionType) or not isinstance(home, str):
        return False
    if home.partition(".")[0] in trust:
        return True
    if isinstance(target, type):
        return any(f"{home}.".startswith(f"{place}.") and issubclass(target, kind) for place, kind in KINDS.items())
    if name.startswith("torchvision."):  # under other names, its settings were not checked
        from torchvision import models  # slow to import

        return target in map(models.get_model_builder, models.list_models(module=models))
    own = target.__qualname__
    return f"{home}.{own}" in FUNCTIONS or (home == SCHEDULES and own.isidentifier() and not own.startswith("_"))
