"""Train a logged run again, for its checkpoint: checkpoints are not part of committed runs."""

import json
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nero.checkpoints.options import Retraining, Unusable
from nero.checkpoints.trust import check_config
from nero.plans.config import DEFAULTS_OF_LOGGED_RUNS, ConfigError, RunConfig, compose, current_names, names
from nero.plans.stores import local_runs, short_path
from nero.runs.logged import dotted, same_value
from nero.runs.store import Outcome, Record, RunDirectory, Status, Store
from nero.runs.targets import GROUPS, shown
from nero.runs.tracking import Progress
from nero.train.run import train

ROUNDS = 3  # a setting may follow from others that are changed only now
KEYS = ("task", "optim", "seed", "data", "precision")  # of a config.yaml, besides the names of two YAML files


def run_with_checkpoint(
    run: RunDirectory,
    identity: Record,
    data_root: Path,
    retraining: Retraining | None = None,
    trust: Collection[str] = (),
) -> RunDirectory:
    """This run if it has a checkpoint, else the same run in the local store, or trained again into a store.

    Args:
        identity: the run's config.yaml
        trust: packages of the user's own that it may name

    Raises:
        Unusable, ConfigError, MissingData
    """
    damaged = any(run.path.glob("checkpoint*"))
    if run.load_checkpoint() is not None or (damaged and retraining is None):  # reading it reports the damage
        return run
    store = retraining.store if retraining else local_runs()
    again = Store(store).run(str(identity["task_name"]), run.run_id)
    if (again.read_summary() or {}).get("status") == Status.DONE and again.load_checkpoint() is not None:
        return again
    if (run.read_summary() or {}).get("status") == Status.DIVERGED:
        raise Unusable(f"{run.run_id} diverged: it has no checkpoint")
    check_config(run.run_id, identity, GROUPS, trust)
    words = overrides_of(run.run_id, identity)
    if retraining is None:
        command = shlex.join(["nero", "train", *words, f"store={short_path(store)}"])
        raise Unusable(f"{run.run_id} has no checkpoint; to train it again, add --retrain, or: {command}")
    config = compose([*words, *retraining.settings])
    if config.run_id != run.run_id:
        changed = " ".join(retraining.settings)
        raise Unusable(f"{changed}: changes the run; only settings outside its id, such as machine=gpu, may follow")
    check_config(run.run_id, config.identity, GROUPS, trust)
    _train(config, again, data_root)
    return again


def _train(config: RunConfig, run: RunDirectory, data_root: Path) -> None:
    store = run.path.parent.parent
    config.cfg.store, config.cfg.data_root = str(store), str(data_root)
    config.cfg.machine.keep_checkpoint = True
    print(f"training {run.run_id} into {short_path(store)}", file=sys.stderr, flush=True)
    outcome = train(config, Progress())
    status, message = outcome["status"], outcome.get("message")
    if status == Outcome.INTERRUPTED:
        raise Unusable(f"{run.run_id} stopped ({message}); the same command continues")
    if status == Outcome.FAILED:
        print(outcome["traceback"], end="", file=sys.stderr)
    if status != Outcome.DONE:
        raise Unusable(f"{run.run_id}: {message or status}")
    if outcome.get("skipped"):
        raise Unusable(
            f"{run.run_id} is done in {short_path(store)} without a checkpoint; name another --retrain STORE"
        )


def overrides_of(run_id: str, identity: Record) -> list[str]:
    """The overrides that give this run with today's configs; Unusable if there are none."""
    try:
        words = [f"task={identity['task_name']}", f"optim={identity['optim_name']}"]
        words += [f"optim.lr={identity['optim']['lr']!r}", f"seed={identity['seed']}"]
        wanted = _settings(identity)
        _check_keys(identity, wanted)
        for _ in range(ROUNDS):
            config = compose(words)
            if config.run_id == run_id and config.matches(identity):
                return words
            words += _differences(wanted, config)
        reason = "its settings give another id today"
    except (ConfigError, KeyError, TypeError) as error:
        reason = str(error)
    raise Unusable(f"{run_id} has no checkpoint and cannot be trained again with this code: {reason}")


def _check_keys(identity: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for what would not be a setting of the task or of the optimiser on a command line."""
    for group in GROUPS:
        if (name := identity[f"{group}_name"]) not in names(group):
            raise ConfigError(f"there is no {group}={shown(name)}")
    for key in settings:
        first, *others = key.split(".")
        if first not in KEYS or not all(part.isidentifier() for part in others):
            raise ConfigError(f"config.yaml has the key {shown(key)}")


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """With dotted keys, under the names of today, without those of the YAML files."""
    found = dotted(current_names(identity))
    return {key: value for key, value in found.items() if key not in ("task_name", "optim_name")}


def _differences(wanted: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Overrides that change a config into the wanted settings."""
    found, words = _settings(config.identity), []
    for key in found:
        if key in wanted or any(key.startswith(f"{other}.") for other in wanted):
            continue
        words.append(_override(key, DEFAULTS_OF_LOGGED_RUNS[key]) if key in DEFAULTS_OF_LOGGED_RUNS else f"~{key}")
    for key, value in wanted.items():
        if key not in found:
            words.append(f"++{_override(key, value)}")
        elif not same_value(found[key], value):
            words.append(_override(key, value))
    return words


def _override(key: str, value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-zA-Z_][\w.]*", value):
        return f"{key}={value}"
    # JSON, but Hydra takes no quotes around the keys of a dict.
    text = re.sub(r'"(\w+)":', r"\1:", json.dumps(value, ensure_ascii=False))
    return f"{key}={text}"
