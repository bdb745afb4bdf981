"""From command-line overrides to one run: compose the config, check it, give it its id."""

import copy
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from nero.atomic import write_atomic
from nero.plans import folders, schema
from nero.plans.command_line import CONFIG_ERRORS, check_choices, in_one_line
from nero.plans.folders import CONFIG_DIR as CONFIG_DIR
from nero.plans.folders import ROOT as ROOT
from nero.plans.folders import Stamps, config_folders, shipped_settings, stamps
from nero.plans.folders import config_file as config_file
from nero.plans.folders import local_folder as local_folder
from nero.plans.folders import names as names
from nero.plans.schema import RENAMED as RENAMED
from nero.plans.schema import ConfigError as ConfigError
from nero.plans.schema import check_run, parent_of
from nero.runs.logged import dotted
from nero.runs.records import encode_yaml, parse_yaml
from nero.runs.stopping import Limits, moment_after, monotonic_at
from nero.runs.validation import LONGEST_NAME, config_problem

CODE = (Path(__file__), Path(schema.__file__), Path(folders.__file__))  # what makes configs out of the YAML files
NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
# Top-level keys that say where and how a run is carried out, not what it is: its id leaves them out.
NOT_IDENTITY = ("machine", "tracking", "data_root", "inception", "store", "experiment", "only")
# Likewise, keys of a task and of an optimiser: what a run needs of a machine, and how tables show it.
NOT_IDENTITY_OF_TASK = ("bound_by", "cores", "display")
NOT_IDENTITY_OF_OPTIM = ("display_name",)
DEFAULTS_OF_LOGGED_RUNS: Mapping[str, Any] = {
    "task.network.fan_out": False,
    "task.network.stem_relu": True,
    "task.network.copy_layers": False,
    "task.generator.norm_bias_std": 0.0,
    "task.fid": "plain",
    "task.split_passes": False,
}
"""Keys that configs gained after runs had been logged, each with the value that the code had before.

The identity of a run with that value leaves the key out, so that logged runs keep their ids. It is also the default of
the class that takes the setting, since a logged config.yaml does not have the key.
"""


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
        for group, left_out in (("task", NOT_IDENTITY_OF_TASK), ("optim", NOT_IDENTITY_OF_OPTIM)):
            what[group] = {key: value for key, value in what[group].items() if key not in left_out}
        for key, default in DEFAULTS_OF_LOGGED_RUNS.items():
            parent, last = parent_of(what, key)
            if last in parent and parent[last] == default:
                del parent[last]
        _rename(what, RENAMED)
        return {"task_name": self.task_name, "optim_name": self.optim_name, **what}

    @cached_property
    def run_id(self) -> str:
        return run_id(self.identity)

    def matches(self, logged: dict[str, Any]) -> bool:
        """Whether a logged config.yaml is this run's."""
        try:
            return digest(logged) == digest(self.identity)
        except TypeError:  # an edited file may hold values that no config can
            return False

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

    def at(self, lr: float, seed: int) -> "RunConfig":
        """The same run with another learning rate and seed, without composing again."""
        cfg = self.cfg.copy()
        cfg.optim.lr, cfg.seed = lr, seed
        return RunConfig(self.task_name, self.optim_name, cfg)

    def identity_at(self, lr: float, seed: int) -> dict[str, Any]:
        """The identity of `at(lr, seed)`, in a hundredth of the time: large experiments ask for thousands."""
        if self._has_copies:
            return self.at(lr, seed).identity
        return {**self.identity, "optim": {**self.identity["optim"], "lr": lr}, "seed": seed}

    @cached_property
    def _has_copies(self) -> bool:
        """Whether further values of the identity are given in terms of the learning rate or the seed."""
        plain = OmegaConf.to_container(self.cfg, resolve=False)
        assert isinstance(plain, dict)
        if "${" not in json.dumps([value for key, value in plain.items() if key not in NOT_IDENTITY]):
            return False
        lr, seed = self.identity["optim"]["lr"], self.identity["seed"]
        other = self.at(2 * lr + 1, seed + 1).identity
        return {**other, "optim": {**other["optim"], "lr": lr}, "seed": seed} != self.identity

    def setting(self, key: str) -> Any:
        """The value of a dotted key; None where there is no such key."""
        return OmegaConf.select(self.cfg, key)


class SavedConfig(RunConfig):
    """A config from the cache. Plans ask hundreds of them for a few values: OmegaConf reads it only if it must."""

    def __init__(self, saved: Mapping[str, Any]) -> None:
        known = {} if saved["identity"] is None else {"identity": saved["identity"]}
        own = {"task_name": saved["task"], "optim_name": saved["optim"], "_plain": saved["cfg"], **known}
        vars(self).update(own, _has_copies=not known)  # the class is frozen

    def __getattr__(self, name: str) -> Any:
        if name != "cfg":
            raise AttributeError(name)
        vars(self)["cfg"] = cfg = OmegaConf.create(self._plain, flags={"struct": True})
        return cfg

    def setting(self, key: str) -> Any:
        value, is_there = self._plain, True
        for name in key.split("."):
            is_there = isinstance(value, dict) and name in value
            if not is_there:
                break
            value = value[name]
        if isinstance(value, list) or (is_there and isinstance(value, dict)) or "${" in str(value):
            return super().setting(key)
        return value if is_there else None


def run_id(identity: Mapping[str, Any]) -> str:
    named = f"{identity['task_name']}-{identity['optim_name']}"
    return f"{named}-{float(identity['optim']['lr']):g}-s{int(identity['seed'])}-{digest(dict(identity))}"


def digest(identity: dict[str, Any]) -> str:
    """Eight hex digits over the config's values; 1 and 1.0 are the same value, as on the command line."""
    return hashlib.sha256(json.dumps(_canonical(identity), sort_keys=True).encode()).hexdigest()[:8]


def current_names(logged: Mapping[str, Any]) -> dict[str, Any]:
    """A logged config.yaml under the names that today's classes take: to be called before instantiating any of it."""
    settings = copy.deepcopy(dict(logged))
    _rename(settings, {before: now for now, before in RENAMED.items()})
    return settings


class LocalConfigs(SearchPathPlugin):
    """Makes Hydra look for configs in the user's folder too."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if (folder := config_folders()[1]).is_dir():
            search_path.append("local", f"file://{folder}")


def add_local_configs() -> None:
    """To be called before Hydra is initialised. Not when this is imported: the first use of plugins loads them all."""
    Plugins.instance().register(LocalConfigs)


def compose(overrides: Sequence[str]) -> RunConfig:
    """Compose the shipped and the user's configs with `overrides` as the command line would. Raises ConfigError."""
    shared = compose_shared(overrides)
    return RunConfig(shared.task_name, shared.optim_name, shared.cfg.copy())


def compose_shared(overrides: Sequence[str]) -> RunConfig:
    """Likewise, but the same object for the same overrides while no config file changes: not to be modified."""
    hydra = GlobalHydra.instance()
    sources = hydra.config_loader().get_sources() if hydra.is_initialized() else []
    used = [Path(source.path) for source in sources if source.scheme() == "file"] or config_folders()
    return _composed(tuple(overrides), tuple(stamp for folder in used for stamp in stamps(folder, below=True)))


@lru_cache(maxsize=4096)
def _composed(overrides: tuple[str, ...], files: Stamps) -> RunConfig:
    """From the user's cache on disk if it is there: Hydra takes 0.1 s, and a table asks for dozens of configs."""
    key = hashlib.sha256(json.dumps([overrides, _contents(files)]).encode()).hexdigest()
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nero", "configs", f"{key}.json")
    with suppress(OSError, ValueError, KeyError, TypeError):
        return SavedConfig(json.loads(path.read_bytes()))
    # Inside a Hydra program (a sweep) Hydra has these configs already, and may not be initialised twice.
    running = GlobalHydra.instance().is_initialized()
    add_local_configs()
    check_choices(overrides)
    with nullcontext() if running else initialize_config_dir(config_dir=str(config_folders()[0]), version_base="1.3"):
        try:
            cfg = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        except CONFIG_ERRORS as error:
            raise ConfigError(in_one_line(error, overrides)) from error
    config = from_hydra(cfg, cfg.hydra.runtime.choices)
    saved = {"task": config.task_name, "optim": config.optim_name, "cfg": OmegaConf.to_container(config.cfg)}
    saved["identity"] = None if config._has_copies else config.identity
    text = json.dumps(saved)
    # Not where JSON would change it, nor with paths and times, which are other ones the next time.
    if json.loads(text) == saved and identity_overrides(overrides) == " ".join(overrides):
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
    return config


@lru_cache(maxsize=8)
def _contents(files: Stamps) -> str:
    """A digest of all that a composed config depends on beside its overrides."""
    found = hashlib.sha256(f"{version('hydra-core')} {version('omegaconf')}".encode())
    for path in [*(Path(name) for name, *_ in files), *CODE]:
        found.update(f"\0{path}\0".encode() + path.read_bytes())
    return found.hexdigest()


def from_hydra(cfg: DictConfig, choices: Any) -> RunConfig:
    """Check what Hydra composed and give it its names; `choices` is Hydra's `hydra.runtime.choices`."""
    plain = OmegaConf.to_container(cfg, resolve=False, enum_to_str=True)
    assert isinstance(plain, dict)
    plain.pop("hydra", None)
    # Plain values from here on: no enums and no typed nodes in what is hashed, logged or pickled.
    cfg = OmegaConf.create(plain, flags={"struct": True})
    task, optim = str(choices["task"]), str(choices["optim"])
    for group, name in (("task", task), ("optim", optim)):
        if not NAME.fullmatch(name):  # it becomes a folder of the store, and a part of the run's id
            raise ConfigError(
                f"{group}={name}: a name may have letters, digits, '.', '_', '+' and '-' only, no folders"
            )
    check_run(cfg, shipped_settings(task, optim))
    config = RunConfig(task, optim, cfg)
    _check_readable(config.identity)
    if len(config.run_id) > LONGEST_NAME:
        raise ConfigError(f"{config.run_id} is the name of a folder, and longer than {LONGEST_NAME} characters")
    return config


def _check_readable(identity: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the key if there is one to blame, unless the run's config.yaml could be read again."""
    if problem := _unreadable(identity):
        found = ((key, _unreadable({key: value})) for key, value in dotted(identity).items())
        key, problem = next((each for each in found if each[1]), ("these settings", problem))
        raise ConfigError(f"{key}: {problem}; a run's config.yaml with this could not be read again")


def _unreadable(settings: Mapping[str, Any]) -> str | None:
    try:
        found = config_problem(parse_yaml(encode_yaml(settings)), None)
        return found.removeprefix("config.yaml cannot be read: ") if found else None
    except (ValueError, yaml.YAMLError) as error:
        return str(error)


def identity_overrides(overrides: Sequence[str]) -> str:
    """The overrides that say what a run is: the name of a run that has no id, since its config is not valid."""
    others = tuple(f"{key}{mark}" for key in NOT_IDENTITY for mark in ("=", "."))
    return " ".join(word for word in overrides if not word.lstrip("+~").startswith(others))


def deadline_of(machine: DictConfig) -> str | None:
    """When to stop, as a value of machine.deadline; the earlier one where a budget, counted from now, is set as well.

    A sweep computes it once for all of its runs.
    """
    budget, deadline = machine.budget_seconds, machine.deadline
    moments = (None if budget is None else moment_after(budget), None if deadline is None else str(deadline))
    return min(moments, key=monotonic_at)


def limits_of(machine: DictConfig) -> Limits:
    stop_file = Path(machine.stop_file) if machine.stop_file else None
    return Limits(monotonic_at(deadline_of(machine)), stop_file)


def _rename(settings: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename dotted keys in place; a key and its new name have the same parent."""
    for before, after in names.items():
        parent, last = parent_of(settings, before)
        if last in parent:
            parent[after.rpartition(".")[2]] = parent.pop(last)


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
