"""Errors of command lines and YAML files, in one line."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf import ValidationError
from omegaconf.errors import OmegaConfBaseException

from nero.plans.argparse_types import nearest
from nero.plans.folders import names, shipped_settings
from nero.plans.schema import RENAMED, ConfigError, MachineSchema, field_at, parent_of, refusal

GROUPS = ("task", "optim", "machine", "tracking")
# What Hydra raises for a command line or a YAML file that is not valid.
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError)


def check_choices(overrides: Iterable[str]) -> None:
    """Raise ConfigError for a config group that is not given the name of one of its files: Hydra would crash."""
    parser = OverridesParser.create()
    for word in overrides:
        with suppress(HydraException):  # which says what is wrong when it composes
            override = parser.parse_override(word)
            if not override.key_or_group:
                raise ConfigError(f"{word}: a setting is KEY=VALUE")
            is_choice = (
                override.key_or_group in GROUPS and not override.is_delete() and not override.is_sweep_override()
            )
            if is_choice and not isinstance(name := override.value(), str):
                group = override.key_or_group
                raise ConfigError(f"{group} must be one of {', '.join(names(group))}, not {name!r}")


def is_debugging() -> bool:
    """Whether errors are to be shown with their traceback."""
    return os.environ.get("NERO_DEBUG", "") not in ("", "0")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Around a Hydra program: exit with one line where Hydra would print several about the command line."""
    if "HYDRA_FULL_ERROR" in os.environ:
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises
    try:
        check_choices(sys.argv[1:])
        yield
    except (*CONFIG_ERRORS, ConfigError) as error:
        if is_debugging() or isinstance(error, InstantiationException):
            raise
        sys.exit(f"error: {error if isinstance(error, ConfigError) else in_one_line(error, sys.argv[1:])}")
    finally:
        os.environ.pop("HYDRA_FULL_ERROR", None)


def in_one_line(error: Exception, overrides: Sequence[str]) -> str:
    """What is wrong with a command line: by the schema where it says so, else in Hydra's words."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        known = list(error.options or [])
        own = f"; for a class: nero compare {name}" if group == "optim" and "." in name else ""
        return f"there is no {group}={name}{nearest(name, known)}; there are: {', '.join(known)}{own}"
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        key = str(cause.full_key)
        if isinstance(cause, ValidationError) and (spec := field_at(key)):
            return refusal(key, cause.value, spec)
        if now := {before: now for now, before in RENAMED.items()}.get(key):
            return f"{key} is now {now}"
        if isinstance(cause, AttributeError | KeyError) and is_dataclass(cause.object_type):
            known = [spec.name for spec in fields(cause.object_type)]
            hint = _in_group(key, overrides) or nearest(key.rpartition(".")[2], known)
            return f"there is no {key}{hint}; there are: {', '.join(known)}"
        if isinstance(cause, AttributeError | KeyError) and (parent := _siblings(key, overrides)):
            hint = nearest(key.rpartition(".")[2], parent)
            return f"there is no {key}{hint}; there are: {', '.join(parent)}; +{key}=VALUE adds it"
    if several := re.match(r"Ambiguous value for argument '(.*?=(.*))'", str(error)):
        return f"{several[1]}: several values are a sweep (nero sweep), or a list if written as [{several[2]}]"
    message = " ".join(str(error).partition("\nSee ")[0].split())  # without the address of Hydra's manual
    return f"{' '.join(overrides)}: {message}"


def _in_group(key: str, overrides: Sequence[str]) -> str:
    """A suggestion for a key that lacks its group, such as lr; empty if no group has it."""
    groups = {**_shipped(overrides), "machine": [spec.name for spec in fields(MachineSchema)]}
    return next((f" (did you mean {group}.{key}?)" for group, known in groups.items() if key in known), "")


def _siblings(key: str, overrides: Sequence[str]) -> list[str]:
    """The keys that the YAML files of the chosen task or optimiser have beside an unknown one."""
    return [name for name in parent_of(_shipped(overrides), key)[0] if not name.startswith("_")]


def _shipped(overrides: Sequence[str]) -> dict[str, Any]:
    chosen = dict(word.split("=", 1) for word in overrides if "=" in word)
    return shipped_settings(chosen.get("task", "mnist_mlp100"), chosen.get("optim", "nero"))
