"""Which classes and functions the config.yaml of a run may name: the file may come from somebody else.

Hydra imports and calls whatever a `_target_` names. Names are checked here, and nothing is imported;
`nero.checkpoints.trust` checks what they refer to.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

TARGET = "_target_"
GROUPS = ("task", "optim")  # the parts of a config that are built
PACKAGES = (
    "nero.tasks",
    "nero.models",
    "nero.optim",
    "nero.engine.schedules",
    "torch.optim",
    "torch.nn",
    "torchvision.models",
)
# Of other modules and packages, only what shipped configs name.
NAMES = (
    "nero.data.augmentation.Augmentation",
    "pytorch_optimizer.Lion",
    "pytorch_optimizer.SOAP",
    "schedulefree.AdamWScheduleFree",
)
# torchvision's builders download weights for these, and for a positional argument.
DOWNLOADS = ("_args_", "weights", "weights_backbone", "pretrained", "pretrained_backbone")
NOT_OWN = (*sys.stdlib_module_names, "hydra", "nero", "omegaconf", "torch", "torchvision")


def faults(config: Mapping[str, Any], groups: Collection[str] = GROUPS, trust: Collection[str] = ()) -> Iterator[str]:
    """One line for each value of these groups that must not be built.

    Args:
        trust: packages of the user's own, whose classes and functions may be named too
    """
    task = config.get("task")
    by_keyword = isinstance(task, dict) and task.get(TARGET) == "nero.tasks.imagenet.ImageNet"
    for key, value in _values({group: config.get(group) for group in groups}):
        if isinstance(value, str) and "${" in value:
            yield f"{shown(key)} is {shown(value)}, an interpolation, which no logged run has"
        elif isinstance(value, dict) and TARGET in value:
            yield from _target_faults(key, value, trust, by_keyword and key == "task.network")


def named(config: Mapping[str, Any], groups: Collection[str]) -> Iterator[tuple[str, str]]:
    """What these groups of a config without faults name, with its keys."""
    for key, value in _values({group: config.get(group) for group in groups}):
        if isinstance(value, dict) and TARGET in value:
            yield f"{key}.{TARGET}", value[TARGET]


def _target_faults(key: str, node: dict[str, Any], trust: Collection[str], by_keyword: bool) -> Iterator[str]:
    """`by_keyword`: whether the task calls it with keyword arguments alone."""
    name, own = node[TARGET], shown(f"{key}.{TARGET}")
    if not isinstance(name, str):
        yield f"{own} must be the name of a class, not {shown(name)}"
    elif "${" not in name and not is_listed(name, trust):
        yield refusal(own, name)
    elif name.startswith("torchvision."):
        if found := [setting for setting in DOWNLOADS if node.get(setting)]:
            yield f"{shown(f'{key}.{found[0]}')}: for a config.yaml, weights of torchvision are not downloaded"
        if node.get("_partial_") and not by_keyword:
            partial = shown(f"{key}._partial_")
            yield f"{partial}: {shown(name)} would get positional arguments, for which it downloads weights"


def is_listed(name: str, trust: Collection[str] = ()) -> bool:
    return name in NAMES or name.startswith(tuple(f"{package}." for package in (*PACKAGES, *trust)))


def refusal(key: str, name: str) -> str:
    package = name.partition(".")[0]
    if package in NOT_OWN or not package.isidentifier():
        return f"{key} is {shown(name)}, which no config.yaml may name (--trust is for packages of your own)"
    return f"{key} is {shown(name)}, which is built only with --trust {shown(package)}, if that is code of your own"


def remark(config: Mapping[str, Any]) -> str:
    """A remark on a run whose config.yaml has faults; empty if it has none."""
    found = list(faults(config))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"config.yaml: {found[0]}{more}" if found else ""


def shown(value: Any) -> str:
    """For messages: in one short line, without control characters."""
    text = value if isinstance(value, str) and re.fullmatch(r"[\w.\[\]]+", value) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """This value and all in it, each with its key, such as optim.parts[0].lr."""
    yield key, value
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _values(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _values(entry, f"{key}[{number}]")
