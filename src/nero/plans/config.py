"""From words on a command line to one run: compose the config, check it, give it its id."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict

ROOT = Path(__file__).resolve().parents[3]
CONFIG_DIR = ROOT / "configs"

PRECISIONS = ("fp32", "tf32", "bf16")
"""What arithmetic a run can ask for."""

NOT_IDENTITY = ("machine", "tracking", "data_root", "inception", "store", "experiment", "only")
"""Top-level keys that say where and how a run is carried out, not what it is: they are left out of its id."""

NOT_IDENTITY_OF_TASK = ("bound_by", "cores")
"""Likewise, keys of a task: what its runs need of a machine."""

LANES = ("gpu", "cpu")
"""What a run can be bound by: most of its time it waits for that. Runs of different lanes belong side by side."""

VALUES_BEFORE: Mapping[str, Any] = {
    "task.network.fan_out": False,
    "task.network.stem_relu": True,
    "task.network.copy_layers": False,
    "task.generator.norm_bias_std": 0.0,
    "task.fid": "plain",
    "task.split_passes": False,
}
"""Keys that configs gained after runs had been logged, each with the value of the code before it had the key.

A run with that value is the run as it was before: its identity leaves the key out, so that logged runs keep their ids.
It is also the default of the class that takes the setting, since a logged config.yaml does not have the key.
"""


@dataclass
class PlanSweeperConf:
    _target_: str = "nero.sweep.sweeper.PlanSweeper"
    max_batch_size: int | None = None  # the most jobs that a launcher is given at a time
    params: dict[str, str] | None = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="plan", node=PlanSweeperConf, provider="nero")


class ConfigError(ValueError):
    """A setting that no run can have, in one line."""


@dataclass(frozen=True)
class RunConfig:
    """One run's config with the names that its tables use: the file names of its task's and optimiser's YAML."""

    task_name: str
    optim_name: str
    cfg: DictConfig

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the run is, resolved, as plain Python values: what is hashed and what is written to config.yaml."""
        plain = OmegaConf.to_container(self.cfg, resolve=True, throw_on_missing=True)
        assert isinstance(plain, dict)
        what = {str(key): value for key, value in plain.items() if key not in NOT_IDENTITY}
        what["task"] = {key: value for key, value in what["task"].items() if key not in NOT_IDENTITY_OF_TASK}
        for key, before in VALUES_BEFORE.items():
            _drop(what, key.split("."), before)
        return {"task_name": self.task_name, "optim_name": self.optim_name, **what}

    @cached_property
    def run_id(self) -> str:
        return run_id(self.identity)

    @property
    def lr(self) -> float:
        return float(self.cfg.optim.lr)

    @property
    def seed(self) -> int:
        return int(self.cfg.seed)

    @property
    def epochs(self) -> int:
        return int(self.cfg.task.epochs)

    @property
    def bound_by(self) -> str:
        """One of `LANES`; a task that does not say is bound by the GPU."""
        return str(self.cfg.task.get("bound_by", "gpu"))

    @property
    def cores(self) -> int:
        """CPU cores that a run keeps busy."""
        return int(self.cfg.task.get("cores", 1))

    def at(self, lr: float, seed: int) -> "RunConfig":
        """The same run with another learning rate and seed, without composing again."""
        cfg = self.cfg.copy()
        cfg.optim.lr, cfg.seed = lr, seed
        return RunConfig(self.task_name, self.optim_name, cfg)

    def identity_at(self, lr: float, seed: int) -> dict[str, Any]:
        """That of `at(lr, seed)`, in a hundredth of the time: large experiments ask for thousands."""
        if self._refers:
            return self.at(lr, seed).identity
        return {**self.identity, "optim": {**self.identity["optim"], "lr": lr}, "seed": seed}

    @cached_property
    def _refers(self) -> bool:
        """Whether something of the identity is given in terms of others, which may be the learning rate or the seed."""
        plain = OmegaConf.to_container(self.cfg, resolve=False)
        assert isinstance(plain, dict)
        return "${" in json.dumps([value for key, value in plain.items() if key not in NOT_IDENTITY])


def run_id(identity: Mapping[str, Any]) -> str:
    """Of a run that is this."""
    named = f"{identity['task_name']}-{identity['optim_name']}"
    return f"{named}-{float(identity['optim']['lr']):g}-s{int(identity['seed'])}-{digest(dict(identity))}"


def compose(overrides: Sequence[str]) -> RunConfig:
    """Compose the shipped configs with `overrides` as the command line would; ConfigError where they make none."""
    # Inside a Hydra program (a sweep) Hydra already stands on these configs, and may not be initialised twice.
    running = GlobalHydra.instance().is_initialized()
    with nullcontext() if running else initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
        try:
            cfg = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        except MissingConfigException as error:
            group, _, name = str(error.missing_cfg_file).rpartition("/")
            raise ConfigError(f"there is no {group}={name}; there are: {', '.join(error.options or [])}") from error
        except HydraException as error:
            said = " ".join(str(error).partition("\nSee ")[0].split())  # without the address of Hydra's manual
            raise ConfigError(f"{' '.join(overrides)}: {said}") from error
    return from_hydra(cfg, cfg.hydra.runtime.choices)


def from_hydra(cfg: DictConfig, choices: Any) -> RunConfig:
    """Name and check what Hydra composed; `choices` is its `hydra.runtime.choices`."""
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.pop("hydra", None)
    _check(cfg)
    return RunConfig(str(choices["task"]), str(choices["optim"]), cfg)


def in_words(overrides: Sequence[str]) -> str:
    """A run that has no id, since its words make no config: by those of them that say what it is."""
    machine = tuple(f"{key}{mark}" for key in NOT_IDENTITY for mark in ("=", "."))
    return " ".join(word for word in overrides if not word.lstrip("+~").startswith(machine))


def names(group: str) -> list[str]:
    """The choices of a config group, such as every optimiser there is."""
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def digest(identity: dict[str, Any]) -> str:
    """Eight hex digits over the config's values; 1 and 1.0 are the same value, as on the command line."""
    return hashlib.sha256(json.dumps(_canonical(identity), sort_keys=True).encode()).hexdigest()[:8]


def _drop(settings: Any, path: Sequence[str], value: Any) -> None:
    """Take the entry at `path` out of nested settings, in place, if it is there and has this value."""
    *parents, last = path
    for name in parents:
        settings = settings.get(name) if isinstance(settings, dict) else None
    if isinstance(settings, dict) and last in settings and settings[last] == value:
        del settings[last]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _check(cfg: DictConfig) -> None:
    """Refuse what would only fail later, or never fail and mean nothing."""
    lr = cfg.optim.get("lr")
    if isinstance(lr, bool) or not isinstance(lr, int | float) or not math.isfinite(lr) or lr <= 0:
        raise ConfigError(f"optim.lr must be a positive number, not {lr!r}")
    if isinstance(cfg.seed, bool) or not isinstance(cfg.seed, int) or cfg.seed < 0:
        raise ConfigError(f"seed must be a whole number from 0, not {cfg.seed!r}")
    if not isinstance(cfg.task.epochs, int) or cfg.task.epochs < 1:
        raise ConfigError(f"task.epochs must be a whole number from 1, not {cfg.task.epochs!r}")
    cores = cfg.task.get("cores", 1)
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ConfigError(f"task.cores must be a positive integer, not {cores!r}")
    for key, allowed in (("data", ("real", "embedded")), ("precision", PRECISIONS), ("task.bound_by", LANES)):
        value = OmegaConf.select(cfg, key, default=allowed[0])
        if value not in allowed:
            raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {value!r}")
