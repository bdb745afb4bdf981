"""Where runs are logged, unless store=, --store or NERO_RUNS says so.

The committed store, results/runs, has the runs that experiments plan on real data. All else is a trial, and goes to the
user's own folder, which git ignores.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nero.plans.config import ROOT, ConfigError, RunConfig, local_folder
from nero.plans.plan import Experiment, experiment_files, load_experiment
from nero.runs.store import VERSION, Record, RunDirectory, Store, is_settled

COMMITTED = ROOT / "results" / "runs"


def local_runs() -> Path:
    """The store of trials, which git ignores."""
    return local_folder() / "runs"


def store_of_run(config: RunConfig) -> Store:
    """Of a single run or a point of a grid."""
    if named := named_store(config.cfg.store):
        return Store(named)
    committed, trials = Store(COMMITTED), Store(local_runs())
    if config.cfg.data == "embedded":
        return trials
    is_logged = committed.run(config.task_name, config.run_id).path.is_dir()
    return committed if is_logged or is_planned(config) else trials


def settled_result(config: RunConfig, run: RunDirectory) -> Record | None:
    """The summary of a run that has its result. ConfigError if the directory is not this run's."""
    advice = "use another store, or move the directory away"
    if (version := run.other_version()) is not None:
        found = f"its summary.json is of version {version}, and this code writes version {VERSION}"
        raise ConfigError(f"{run.path}: {found}; {advice}")
    if (logged := run.find_config()) is not None and not config.matches(logged):
        raise ConfigError(f"{run.path}: its config.yaml is not that of this run; {advice}")
    if (reason := run.damaged_result()) is not None:
        raise ConfigError(f"{run.path}: {reason}; {advice}")
    summary = run.read_summary()
    return {**summary, "skipped": True} if summary and is_settled(summary) else None


def named_store(given: str | None = None) -> str | None:
    """The folder of --store, or of the setting `store`, or else of NERO_RUNS; None: nothing was named."""
    for name, folder in (("store", given), ("NERO_RUNS", os.environ.get("NERO_RUNS"))):
        if folder is not None and not folder.strip():
            raise ConfigError(f"{name} is empty: name a folder, or leave it out for the default")
        if folder is not None:
            place = Path(folder).absolute()
            above = next(path for path in (place, *place.parents) if path.exists())
            if not above.is_dir():
                raise ConfigError(f"{name}: {above} is not a folder")
            return folder
    return None


def store_of_experiment(experiment: Experiment, given: str | None = None) -> Store:
    """Of all runs of an experiment. `given`: --store, or the sweep's setting `store`."""
    if named := named_store(given):
        return Store(named)
    embedded = all(cell.setting("data") == "embedded" for cell in experiment.cells)
    return Store(local_runs() if embedded else COMMITTED)


def given_store(overrides: Iterable[str]) -> str | None:
    """The value of store=DIR among these."""
    given = next((word.partition("=")[2] for word in overrides if word.startswith("store=")), None)
    return None if given == "null" else given


def is_planned(config: RunConfig) -> bool:
    """Whether an experiment has this run, in its search or as a repeat at any rate of its grid."""
    for name in experiment_files():
        with suppress(ConfigError):  # an experiment of the user's that is not valid
            for cell in load_experiment(name).cells:
                same = (cell.task, cell.optim) == (config.task_name, config.optim_name)
                maybe = same and config.lr in cell.lrs and config.seed in cell.seeds
                if maybe and cell.run(config.lr, config.seed).run_id == config.run_id:
                    return True
    return False


def short_path(path: Path) -> str:
    """Relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
