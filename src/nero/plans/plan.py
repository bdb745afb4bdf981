"""Experiments and their pending runs.

An experiment (`experiments/*.yaml`) is a list of rows. Each optimiser and swept setting of a row is a cell: a grid of
learning rates searched with one seed, then repeats with further seeds at the rate with the best final value (the
protocol of Table 1). A grid of one learning rate needs no search: its seeds are simply run.

`experiment=NAMES only.task=NAMES only.optim=NAMES` on a command line selects experiments and a part of them. NAMES is
one name, several with commas between them, or a list in brackets; null is the same as nothing at all.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from nero.plans.argparse_types import nearest
from nero.plans.config import ROOT, RunConfig, compose_shared, local_folder, run_id
from nero.plans.folders import has_config
from nero.plans.schema import ConfigError, check_keys, parse_lrs
from nero.runs.records import LARGEST, LOADER
from nero.runs.store import Status, is_settled

EXPERIMENTS = ROOT / "experiments"
# Keys that select a part of an experiment: the cells of these tasks, the cells of these optimisers.
ONLY = ("only.task", "only.optim")
# Keys that an experiment sets for each of its runs.
SET_BY_EXPERIMENT = ("task", "optim", "optim.lr", "seed")
ONLY_WITHOUT_EXPERIMENT = "only.task and only.optim choose a part of an experiment: nero sweep EXPERIMENT"

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment, and the overrides that launch it."""

    run_id: str
    task: str
    optim: str
    lr: float
    seed: int
    epochs: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a task, an optimiser with its settings, a learning-rate grid and the seeds."""

    task: str
    optim: str
    lrs: tuple[float, ...]
    search_seed: int
    repeat_seeds: tuple[int, ...]
    variant: tuple[tuple[str, Any], ...] = ()  # swept settings of this cell, such as (("task.sigma", 100),)
    overrides: tuple[str, ...] = ()  # settings shared by all of the experiment's or row's runs
    label: str = ""  # short text that distinguishes the rows of one task in tables and figures; no part of a run

    @property
    def missing_config(self) -> str | None:
        """Why the cell cannot be run yet (its task or optimiser has no YAML), or None."""
        for group, name in (("task", self.task), ("optim", self.optim)):
            if not has_config(group, name):
                return f"{group} {name} is not available: there is no configs/{group}/{name}.yaml"
        return None

    @property
    def all_overrides(self) -> tuple[str, ...]:
        """The overrides of all runs of the cell, as Hydra's command line takes them."""
        swept = (f"{key}={json.dumps(value)}" for key, value in self.variant)
        return (f"task={self.task}", f"optim={self.optim}", *self.overrides, *swept)

    @cached_property
    def _config(self) -> RunConfig:
        return compose_shared(self.all_overrides)

    def run(self, lr: float, seed: int) -> PlannedRun:
        overrides = (*self.all_overrides, f"optim.lr={lr!r}", f"seed={seed}")
        identity = self.identity_at(lr, seed)
        return PlannedRun(run_id(identity), self.task, self.optim, lr, seed, identity["task"]["epochs"], overrides)

    def identity_at(self, lr: float, seed: int) -> dict[str, Any]:
        """The identity of such a run, as in its config.yaml."""
        return self._config.identity_at(lr, seed)

    def setting(self, key: str) -> Any:
        """The value of a dotted key in the config of the cell's runs; None where there is no such key.

        Without a config, only what the experiment itself sets is known.
        """
        if self.missing_config:
            pairs = (override.partition("=") for override in self.all_overrides)
            return {name.lstrip("+"): yaml.safe_load(value) for name, _, value in pairs}.get(key)
        return self._config.setting(key)

    @property
    def bound_by(self) -> str:
        """What the cell's runs spend their time waiting for: "gpu" or "cpu"."""
        return str(self.setting("task.bound_by") or "gpu")

    @property
    def cores(self) -> int:
        """CPU cores that a run of the cell keeps busy."""
        return int(self.setting("task.cores") or 1)

    @property
    def seeds(self) -> tuple[int, ...]:
        return (self.search_seed, *self.repeat_seeds)

    @property
    def run_count(self) -> int:
        """Number of runs of a complete search and its repeats."""
        return len(self.lrs) + len(self.repeat_seeds)


@dataclass(frozen=True)
class CellState:
    """The logged runs of a cell and its pending ones.

    The leading learning rate is the best of those searched so far; the search may not be complete.
    """

    cell: Cell
    search: dict[float, Summary | None]  # learning rate -> the settled run with the search seed
    leading_lr: float | None = None  # None where nothing is searched yet, or all of it diverged
    at_leading: dict[int, Summary | None] = field(default_factory=dict)  # seed -> the settled run at the leading rate
    pending: tuple[PlannedRun, ...] = ()
    undecided: int = 0  # repeats whose learning rate is known only when the search is complete

    @property
    def logged(self) -> dict[str, Summary]:
        """All settled runs of the cell, search and repeats, by id."""
        runs = (*self.search.values(), *self.at_leading.values())
        return {run["run_id"]: run for run in runs if run is not None}

    @property
    def searching(self) -> bool:
        """Whether some rate of the grid has no settled run, so that another rate may become the leading one."""
        return len(self.search) > 1 and any(run is None for run in self.search.values())

    @property
    def best_lr(self) -> float | None:
        """The leading rate of a complete search; None before, and where every run diverged."""
        return None if self.searching else self.leading_lr

    @property
    def complete(self) -> bool:
        return not self.pending and not self.undecided and self.cell.missing_config is None

    @property
    def to_follow(self) -> int:
        """The number of undecided repeats that are not logged at the leading rate."""
        return sum(self.at_leading.get(seed) is None for seed in self.cell.repeat_seeds) if self.undecided else 0

    @property
    def diverged(self) -> bool:
        """Whether every learning rate of the grid diverged: there is no best one to repeat."""
        return bool(self.search) and all(s is not None and s["status"] == Status.DIVERGED for s in self.search.values())


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""  # a sentence for the reader of its table

    @property
    def is_shipped(self) -> bool:
        """Whether the file is one of the project's own, not of the user's folder."""
        return (EXPERIMENTS / f"{self.name}.yaml").is_file()


def experiment_files() -> dict[str, Path]:
    """By name: the shipped experiments, then those of the user's own folder."""
    folders = (local_folder() / "experiments", EXPERIMENTS)
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def load_experiment(name: str, extra: Sequence[str] = (), folder: Path | None = None) -> Experiment:
    """Read `experiments/<name>.yaml`.

    Args:
        extra: overrides for every run of it; `only.task=NAMES` and `only.optim=NAMES` among them select a part of it
        folder: of the file, if it is neither a shipped experiment nor one of the user's folder
    """
    known = {path.stem: path for path in folder.glob("*.yaml")} if folder else experiment_files()
    if name not in known:
        hint = nearest(name, known)
        raise ConfigError(f"there is no experiment {name!r}{hint}; there are: {', '.join(sorted(known))}")
    path = known[name]
    try:
        text = yaml.load(path.read_text(), Loader=LOADER)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    check_keys(text, path.name, ("title", "rows"), ("overrides", "note"), ("rows", "overrides"), ("title", "note"))
    shared = tuple(text.get("overrides", ()))
    _check_overrides(shared, path.name)
    only, others = split_names(extra, ONLY)
    cells = [cell for row in text["rows"] for cell in _cells(row, shared, tuple(others), path)]
    cells = _select(name, cells, only)
    _check_overrides(others, name, {"task": {cell.task for cell in cells}, "optim": {cell.optim for cell in cells}})
    title = f"{text['title']}, {_as_overrides(only)}" if only else text["title"]
    return Experiment(name, title, tuple(cells), text.get("note", ""))


def split_names(overrides: Iterable[str], keys: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split overrides into the names given under `keys` and the others; of a repeated key the last counts."""
    found: dict[str, list[str]] = {}
    others = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key in keys:
            bare = re.sub(r"[\[\]'\"]", "", value)
            found[key] = [] if bare == "null" else [name.strip() for name in bare.split(",")]
        elif key.lstrip("~").partition(".")[0] == "only" and key not in ONLY:
            raise ConfigError(f"{override}: use {ONLY[0]}=NAMES or {ONLY[1]}=NAMES for a part of an experiment")
        else:
            others.append(override)
    return {key: given for key, given in found.items() if given}, others


def _check_overrides(overrides: Iterable[Any], where: str, own: Mapping[str, set[str]] = MappingProxyType({})) -> None:
    """Raise ConfigError for an override of what an experiment sets for each run, which would have no effect.

    own: by key, names that may be repeated: Hydra needs `task=NAME` before `task.KEY=VALUE` of that task
    """
    for override in overrides:
        if not isinstance(override, str) or not (override.startswith("~") or "=" in override):
            raise ConfigError(f"{where}: an override must be KEY=VALUE, not {override!r}")
        key, _, value = override.lstrip("+~").partition("=")
        if key in SET_BY_EXPERIMENT and own.get(key) != {value}:
            hint = f"; only.{key}={value} chooses a part of it" if f"only.{key}" in ONLY else ""
            raise ConfigError(f"{override}: {where} sets {key} for each of its runs{hint}")


def _select(experiment: str, cells: Sequence[Cell], only: Mapping[str, Sequence[str]]) -> list[Cell]:
    """The cells that have one of the names under every key. Raises ConfigError for an unknown name or no cells."""
    for key, wanted in only.items():
        known = sorted({getattr(cell, key.removeprefix("only.")) for cell in cells})
        if unknown := [name for name in wanted if name not in known]:
            hint = nearest(unknown[0], known)
            raise ConfigError(f"{key}: {experiment} has no {unknown[0]!r}{hint}; it has: {', '.join(known)}")
    selected = [
        cell
        for cell in cells
        if all(getattr(cell, key.removeprefix("only.")) in wanted for key, wanted in only.items())
    ]
    if not selected:
        raise ConfigError(f"{experiment} has no run with {_as_overrides(only)}")
    return selected


def _as_overrides(only: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{key}={','.join(names)}" for key, names in only.items())


def _cells(row: dict[str, Any], shared: tuple[str, ...], extra: tuple[str, ...], path: Path) -> Iterable[Cell]:
    others = ("sweep", "search_seed", "repeat_seeds", "overrides", "label")
    lists = ("repeat_seeds", "overrides")
    check_keys(row, f"a row of {path.name}", ("task", "optim", "lr"), others, lists, ("label",))
    sweep = row.get("sweep", {})
    check_keys(sweep, f"`sweep` in a row of {path.name}", others=sweep, lists=sweep)
    # A row's only rate may be swept as well: its cells then differ from those of a row that searches it.
    swept = [key for key, values in sweep.items() if key != "optim.lr" or values != _list(row["lr"]) or len(values) > 1]
    _check_overrides([*row.get("overrides", ()), *(f"{key}=" for key in swept)], f"a row of {path.name}")
    seeds = [row.get("search_seed", 0), *row.get("repeat_seeds", ())]
    if wrong := [seed for seed in seeds if type(seed) is not int or not 0 <= seed <= LARGEST]:
        raise ConfigError(f"a row of {path.name}: seeds must be integers from 0 to 2**63 - 1, not {wrong[0]!r}")
    try:
        lrs = parse_lrs(_list(row["lr"]))
    except ConfigError as error:
        raise ConfigError(f"a row of {path.name}: {error}") from error
    for name in (*_list(row["task"]), *_list(row["optim"])):
        if not isinstance(name, str):
            raise ConfigError(f"a row of {path.name}: task and optim must be names, not {name!r}")
    for task, optim in itertools.product(_list(row["task"]), _list(row["optim"])):
        for values in itertools.product(*sweep.values()):
            yield Cell(
                task=task,
                optim=optim,
                lrs=lrs,
                search_seed=seeds[0],
                repeat_seeds=tuple(seeds[1:]),
                variant=tuple((key, _hashable(value)) for key, value in zip(sweep, values, strict=True)),
                overrides=(*shared, *row.get("overrides", ()), *extra),
                label=row.get("label", ""),
            )


def survey(cell: Cell, summaries: Mapping[str, Summary]) -> CellState:
    """Compare a cell with the logged runs."""
    if cell.missing_config:
        return CellState(cell, dict.fromkeys(cell.lrs))
    search = {lr: cell.run(lr, cell.search_seed) for lr in cell.lrs}
    found = {lr: _settled(summaries.get(run.run_id)) for lr, run in search.items()}
    missing = tuple(run for lr, run in search.items() if found[lr] is None)
    # A lone learning rate needs no search: it leads even where its first seed diverged.
    leading = best_lr(found) if len(cell.lrs) > 1 else cell.lrs[0]
    runs = {seed: cell.run(leading, seed) for seed in cell.seeds} if leading is not None else {}
    at_leading = {seed: _settled(summaries.get(run.run_id)) for seed, run in runs.items()}
    if len(cell.lrs) > 1 and missing:
        # Logged repeats count, but none is pending while another rate may still become the leading one.
        return CellState(cell, found, leading, at_leading, missing, undecided=len(cell.repeat_seeds))
    repeats = tuple(run for seed, run in runs.items() if at_leading[seed] is None)
    return CellState(cell, found, leading, at_leading, repeats)


def best_lr(search: Mapping[float, Summary | None]) -> float | None:
    """The learning rate with the best final value. A diverged run ranks last; of equal values the larger rate wins."""
    finals = {lr: summary for lr, summary in search.items() if summary and summary["status"] == Status.DONE}
    if not finals:
        return None
    goal = next(iter(finals.values()))["metric"]["goal"]
    sign = 1.0 if goal == "min" else -1.0
    # A run that ended without a finite metric (null in its summary) ranks as one that diverged.
    ranked = {lr: sign * s["final"] if s["final"] is not None else float("inf") for lr, s in finals.items()}
    return min(ranked, key=lambda lr: (ranked[lr], -lr))


def pending(states: Iterable[CellState]) -> list[PlannedRun]:
    """All runs that can be started now, each once, in the experiment's order."""
    return list({run.run_id: run for state in states for run in state.pending}.values())


def _settled(summary: Summary | None) -> Summary | None:
    return summary if is_settled(summary) else None


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _hashable(value: Any) -> Any:
    """A swept value that is a list, such as betas, as a tuple: variants are keys of tables."""
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value
