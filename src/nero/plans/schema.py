"""Types, choices and ranges of a run's settings: the schema of configs/config.yaml, registered with Hydra.

Hydra checks types and choices when it composes; `check` also checks the ranges that the fields declare. The values
themselves, and what they mean, are in the YAML files.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from types import NoneType
from typing import Any, get_args

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, ValidationError
from omegaconf.errors import OmegaConfBaseException

from nero.runs.records import LARGEST
from nero.runs.stopping import monotonic_at
from nero.runs.validation import MOST_EPOCHS

Data = StrEnum("Data", ["real", "embedded"])
Precision = StrEnum("Precision", ["fp32", "tf32", "bf16"])
BoundBy = StrEnum("BoundBy", ["gpu", "cpu"])
Lane = StrEnum("Lane", ["auto", "all", "gpu", "cpu"])
Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Parallel = StrEnum("Parallel", ["ddp", "fsdp"])
Backend = StrEnum("Backend", ["auto", "gloo"])
Decode = StrEnum("Decode", ["auto", "cpu", "gpu"])

# Types of a setting in YAML, each with what is allowed where a shipped file has one: integers may become floats.
KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "null or a mapping"),
)
YAML_BOOLEANS = ("yes", "no", "on", "off")
# Keys that were renamed after runs had been logged: the name today -> the name in run ids and in config.yaml.
RENAMED: Mapping[str, str] = {"task.update_epochs": "task.passes"}
PRECISIONS = tuple(choice.value for choice in Precision)
# What a run spends most of its time waiting for. A GPU machine runs both kinds side by side.
LANES = tuple(choice.value for choice in BoundBy)
AUTO_OR_BOOL = ("auto", True, False)


class ConfigError(ValueError):
    """A setting that no run can have, in one line."""


def setting(**metadata: Any) -> Any:
    """A field without a default of its own.

    Args:
        range: "positive" or "non-negative", for numbers; floats must also be finite
        most: the largest number that is allowed
        choices: the allowed values
        is_path: whether the text names a file or a folder, and so may not be empty
        parse, allowed: a function that raises ValueError for text that is not allowed, and what is, in words
    """
    return field(default=MISSING, metadata=metadata)


@dataclass
class MachineSchema:
    device: Device = MISSING
    capture: bool | str = setting(choices=AUTO_OR_BOOL)
    compile: bool = MISSING
    channels_last: bool = MISSING
    parallel: Parallel = MISSING
    backend: Backend = MISSING
    workers: int | None = setting(range="non-negative")
    decode: Decode = MISSING
    threads: int | None = setting(range="positive")
    checkpoint_seconds: float = setting(range="non-negative")
    keep_checkpoint: bool = MISSING
    budget_seconds: float | None = setting(range="non-negative")
    deadline: str | None = setting(parse=monotonic_at, allowed="Unix seconds")
    stop_file: str | None = setting(is_path=True)
    gpus: int | None = setting(range="positive")
    mps: bool | str = setting(choices=AUTO_OR_BOOL)
    lane: Lane = MISSING


@dataclass
class OnlySchema:
    task: Any = MISSING  # a name, or a list of names
    optim: Any = MISSING


@dataclass
class RunSchema:
    """All of a run's settings. The groups that are `Any` are open: their classes decide which keys there are."""

    task: Any = MISSING
    optim: Any = MISSING
    tracking: Any = MISSING
    machine: MachineSchema = field(default_factory=MachineSchema)
    seed: int = setting(range="non-negative", most=LARGEST)
    data: Data = MISSING
    precision: Precision = MISSING
    experiment: Any = MISSING  # a name, or a list of names
    only: OnlySchema = field(default_factory=OnlySchema)
    data_root: str = setting(is_path=True)
    inception: str | None = setting(is_path=True)
    store: str | None = setting(is_path=True)


@dataclass
class TaskKeys:
    """The settings that every task has; those with a default may be left out."""

    epochs: int = setting(range="positive", most=MOST_EPOCHS)
    bound_by: BoundBy = BoundBy.gpu
    cores: int = field(default=1, metadata={"range": "positive"})


@dataclass
class OptimKeys:
    lr: float = setting(range="positive")


@dataclass
class DisplayKeys:
    """How tables and figures name a task and show its metric; null: the default."""

    title: str | None = None  # of the task; its file name by default
    name: str | None = None
    unit: str | None = None
    scale: float | None = field(default=None, metadata={"range": "positive"})
    digits: int | None = field(default=None, metadata={"range": "non-negative"})


@dataclass
class PlanSweeperConf:
    _target_: str = "nero.sweep.sweeper.PlanSweeper"
    max_batch_size: int | None = None  # the most jobs that a launcher is given at a time
    params: dict[str, str] | None = field(default_factory=dict)


ConfigStore.instance().store(name="run_schema", node=RunSchema, provider="nero")
ConfigStore.instance().store(group="hydra/sweeper", name="plan", node=PlanSweeperConf, provider="nero")


def check_run(cfg: DictConfig, shipped: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError for the first setting of a run that is of the wrong type or out of range.

    Args:
        shipped: what the YAML files of the run's task and optimiser have, by group
    """
    check(RunSchema, cfg)
    for group in ("task", "optim"):
        if not isinstance(cfg[group], DictConfig):
            raise ConfigError(f"{group} must be the name of a YAML file of configs/{group}, not {cfg[group]!r}")
    check(TaskKeys, cfg.task, "task.")
    check(OptimKeys, cfg.optim, "optim.")
    for group in ("task", "optim"):
        check_like((shipped or {}).get(group, {}), OmegaConf.to_container(cfg[group]), group)
    if not _is_target(cfg.task.get("schedule")):
        raise ConfigError("task.schedule must be a _target_, such as nero.engine.schedules.constant, and its arguments")
    if not _is_target(own := cfg.optim.get("schedule")) and own not in (None, "none"):
        raise ConfigError(f"optim.schedule must be none, or a _target_ and its arguments, not {own!r}")
    if (mirror := cfg.tracking.mirror) is not None and not _is_target(mirror):
        raise ConfigError(f"tracking.mirror must be null, or a _target_ and its arguments, not {mirror!r}")
    read_display(cfg.task.get("display"))
    read_display_name(cfg.optim.get("display_name"))


def _is_target(given: Any) -> bool:
    return isinstance(given, DictConfig) and isinstance(given.get("_target_"), str)


def read_display(given: Any, key: str = "task.display") -> DisplayKeys:
    """The `display` of a task, or the defaults for None. Raises ConfigError for what no table can show."""
    known = [spec.name for spec in fields(DisplayKeys)]
    if not isinstance(given, dict | DictConfig | NoneType):
        raise ConfigError(f"{key} must be a mapping with keys of {', '.join(known)}, not {given!r}")
    settings = {str(name): value for name, value in (given or {}).items()}
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(f"there is no {key}.{unknown[0]}; there are: {', '.join(known)}")
    check(DisplayKeys, OmegaConf.create(settings), f"{key}.")
    return DisplayKeys(**settings)


def read_display_name(given: Any, key: str = "optim.display_name") -> str | None:
    """The `display_name` of an optimiser."""
    if given is not None and not (isinstance(given, str) and given.strip()):
        raise ConfigError(f"{key} must be text, not {given!r}")
    return given


def check(schema: type, settings: DictConfig, prefix: str = "") -> None:
    """Raise ConfigError for the first field of `schema` whose value is not allowed. Other keys are not looked at."""
    typed = OmegaConf.structured(schema)
    for spec in fields(schema):
        key = f"{prefix}{spec.name}"
        try:
            value = settings.get(spec.name)
            if isinstance(spec.type, type) and is_dataclass(spec.type):
                check(spec.type, value, f"{key}.")
                continue
            if value is None and spec.name not in settings and spec.default != MISSING:
                continue
            typed[spec.name] = value
            accepted = _is_allowed(spec, value, typed[spec.name])
        except ValidationError:
            accepted = False
        except OmegaConfBaseException as error:  # such as an interpolation of a key that does not exist
            raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
        if not accepted:
            raise ConfigError(refusal(key, value, spec))


def check_like(shipped: Any, given: Any, key: str) -> None:
    """Raise ConfigError for a setting of an open group that is of another type than in the group's YAML file.

    Where the file has null or a reference, and in keys that it does not have, any type may be right, and null may be
    right for all but a boolean: that is for the class to say. A number that is
    not finite never is, nor is one of YAML's words for a boolean that Hydra reads as text.
    """
    if isinstance(given, dict):
        known = shipped if isinstance(shipped, dict) and shipped.get("_target_") == given.get("_target_") else {}
        for name, value in given.items():
            check_like(known.get(name), value, f"{key}.{name}")
    elif isinstance(given, list):
        first = next(iter(shipped), None) if isinstance(shipped, list) else None
        for index, value in enumerate(given):
            check_like(first, value, f"{key}[{index}]")
    is_known = shipped is not None and not (isinstance(shipped, str) and "${" in shipped)
    kind, allowed = next(each for each in KINDS if isinstance(shipped, each[0])) if is_known else (object, "")
    # A schedule has a check of its own, which says more, and so has `display`.
    is_checked = key.endswith((".schedule", ".display")) or (given is None and kind is not bool)
    if not is_checked and (not isinstance(given, kind) or (is_known and isinstance(given, bool) != (kind is bool))):
        raise ConfigError(f"{key} must be {allowed}, not {given!r}")
    if isinstance(given, float) and not math.isfinite(given):
        raise ConfigError(f"{key} must be finite, not {given!r}")
    if isinstance(given, str) and given.lower() in YAML_BOOLEANS and kind is not str:
        raise ConfigError(f"{key} must be true or false, not {given!r}")


def field_at(key: str) -> "Field[Any] | None":
    """The field of a dotted key such as machine.device; None for one that the schema does not have."""
    schema: Any = RunSchema
    *parents, last = key.split(".")
    for name in parents:
        schema = next((spec.type for spec in fields(schema) if spec.name == name), None)
        if not is_dataclass(schema):
            return None
    return next((spec for spec in fields(schema) if spec.name == last), None)


def parent_of(settings: Mapping[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The nested settings that hold a dotted key, {} where there are none, and the key's last part."""
    *parents, last = key.split(".")
    node: Any = settings
    for name in parents:
        node = node.get(name) if isinstance(node, Mapping) else None
    return (node if isinstance(node, dict) else {}), last


def refusal(key: str, value: object, spec: "Field[Any]") -> str:
    """Such as "seed must be a non-negative integer, not -1"."""
    most = spec.metadata.get("most")
    too_large = most is not None and type(value) in (int, float) and value > most
    return f"{key} must be {f'at most {most}' if too_large else _allowed(spec)}, not {value!r}"


def parse_lrs(values: Sequence[Any]) -> tuple[float, ...]:
    """Learning rates as numbers; YAML reads 1e-3 as text. Raises ConfigError unless positive, finite and each once."""
    if not values:
        raise ConfigError("there must be at least one learning rate")
    lrs: list[float] = []
    for value in values:
        try:
            lr = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            lr = math.nan
        if not 0 < lr < math.inf:
            raise ConfigError(f"learning rates must be positive numbers, not {value!r}")
        if lr in lrs:
            raise ConfigError(f"the learning rate {lr:g} is given twice")
        lrs.append(lr)
    return tuple(lrs)


def check_keys(
    text: Any,
    where: str,
    needed: Iterable[str] = (),
    others: Iterable[str] = (),
    lists: Iterable[str] = (),
    strings: Iterable[str] = (),
) -> None:
    """Raise ConfigError unless `text` is a mapping with the needed keys, no unknown ones, and values of these types."""
    if not isinstance(text, dict):
        raise ConfigError(f"{where} must be a mapping, not {text!r}")
    known = [*needed, *others]
    if unknown := [key for key in text if key not in known]:
        raise ConfigError(f"{where} has an unknown key {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    if missing := [key for key in needed if text.get(key) in (None, "", [])]:
        raise ConfigError(f"{where} needs {missing[0]!r}")
    for keys, kind, name in ((lists, list, "list"), (strings, str, "string")):
        for key in keys:
            if key in text and not isinstance(text[key], kind):
                raise ConfigError(f"{where}: {key!r} must be a {name}, not {text[key]!r}")


def _is_allowed(spec: "Field[Any]", given: object, value: Any) -> bool:
    """Whether a value of the right type is in the field's range. `given`: the value before it was converted."""
    if value is None:
        return True
    if "choices" in spec.metadata:
        return value in spec.metadata["choices"]
    if "parse" in spec.metadata:
        with suppress(ValueError):
            spec.metadata["parse"](value)
            return True
        return False
    if spec.metadata.get("is_path") and not given:
        return False
    if "range" in spec.metadata:  # in an open group nothing converts a string that looks like a number
        above = value > 0 if spec.metadata["range"] == "positive" else value >= 0
        below = value <= spec.metadata.get("most", math.inf)
        return above and below and math.isfinite(value) and not isinstance(given, str)
    return True


def _allowed(spec: "Field[Any]") -> str:
    kinds: tuple[Any, ...] = get_args(spec.type) or (spec.type,)
    if "choices" in spec.metadata:
        text = "auto, true or false"
    elif "range" in spec.metadata:
        text = f"a {spec.metadata['range']} {'integer' if int in kinds else 'number'}"
    elif isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
        text = f"one of {', '.join(kinds[0].__members__)}"
    else:
        text = spec.metadata.get("allowed") or ("true or false" if kinds[0] is bool else "text")
    return f"null or {text}" if NoneType in kinds else text
