"""Train one run: the settings of configs/config.yaml, with any of them changed on the command line.

    nero train task=mnist_mlp100 optim=nero optim.lr=0.001 seed=0
    nero train task=cifar10_resnet18 optim=adam precision=bf16 machine=gpu machine.compile=true
    nero train data=embedded task.depth=5 task.train_examples=2000 task.epochs=3
                                                            a small network on generated data: no download, seconds
    nero train optim=sgd --cfg job                          print the settings instead of training
    torchrun --nproc-per-node 4 scripts/train.py task=imagenet_resnet50 optim=nero

The run is logged to store=DIR, else NERO_RUNS, under an id made of its settings. Without either, results/runs has the
runs of experiments, and local/runs all others, such as trials and runs on embedded data. A run that is done is not
trained again, and one that was interrupted continues from its last checkpoint. `nero sweep` trains many.
"""

import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from nero.cli.main import exit_on_interrupt
from nero.data.sources import MissingData
from nero.plans.argparse_types import nearest
from nero.plans.command_line import is_debugging, one_line_errors
from nero.plans.config import (
    CONFIG_DIR,
    ROOT,
    ConfigError,
    RunConfig,
    add_local_configs,
    config_file,
    from_hydra,
    identity_overrides,
    names,
)
from nero.plans.plan import ONLY_WITHOUT_EXPERIMENT, experiment_files
from nero.plans.schema import LANES
from nero.plans.stores import settled_result, short_path, store_of_run
from nero.runs.formatting import final_text
from nero.runs.store import Outcome, is_settled
from nero.sweep.library_internals import register_sweeper
from nero.sweep.sweeper import PlanSweeper

SCRIPT = ROOT / "scripts" / "train.py"


class RunFailed(RuntimeError):
    """A run has no value for a sweeper; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "-h" in words or "--help" in words:
        print(f"{__doc__}\n{choices()}\n\nHydra's own options: nero train --hydra-help")
        return 0
    if experiments := [word for word in words if word in experiment_files()]:
        sys.exit(f"error: {experiments[0]} is an experiment: nero sweep {experiments[0]}")
    return start(words)


def start(words: list[str]) -> int:
    """Run the Hydra program, which reads sys.argv."""
    known = [name for name in get_args_parser()._option_string_actions if name.startswith("-")]
    for word in words:
        if word.startswith("-") and (option := word.partition("=")[0]) not in known:
            sys.exit(f"error: unknown option {option}{nearest(option, known)}; settings are given as KEY=VALUE")
    sys.argv = [str(SCRIPT), *words]  # a run logs it as its command, and a sweep starts its lanes with it
    import_from_here()
    register_sweeper(PlanSweeper)
    add_local_configs()
    try:
        with one_line_errors():
            hydra.main(config_path=str(CONFIG_DIR), config_name="config", version_base="1.3")(train_one)()
    except RunFailed as error:
        sys.exit(f"error: {error}")
    return 0


def import_from_here() -> None:
    """Let `_target_` name a class in a module of the current folder, in child processes too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, here])


def choices() -> str:
    """Tasks, optimisers and experiments, each with its title or its first comment."""
    lines = []
    for title, files in (
        ("task=", {name: config_file("task", name) for name in names("task")}),
        ("optim=", {name: config_file("optim", name) for name in names("optim")}),
        ("experiments, for nero sweep and nero plan", dict(sorted(experiment_files().items()))),
    ):
        lines += ["", title, *(f"  {name:<24}{_summary(path)}".rstrip() for name, path in files.items())]
    return "\n".join(lines[1:])


def _summary(path: Path) -> str:
    text = path.read_text()
    title = re.search(r'^title: "?(.*?)"?$', text, re.MULTILINE)
    comment = re.match(r"# (.*?)(?:\. .*|\.)?$", text, re.MULTILINE)
    return (title or comment or [""] * 2)[1]


def train_one(cfg: DictConfig) -> dict[str, Any] | float:
    """One job of the Hydra program: a single run, or a run of a sweep.

    Returns the outcome, or its `objective` for a sweeper other than ours, such as Optuna's.
    """
    context = HydraConfig.get()
    alone = context.mode == RunMode.RUN
    planned = not alone and context.sweeper._target_ == f"{PlanSweeper.__module__}.{PlanSweeper.__name__}"
    if not planned and cfg.experiment is not None:
        sys.exit(f"error: experiment=NAME is a sweep: nero sweep {cfg.experiment}")
    if not planned and any(names is not None for names in (cfg.only or {}).values()):
        sys.exit(f"error: {ONLY_WITHOUT_EXPERIMENT}")
    try:
        # Runs that share a terminal print plain lines.
        together = not alone and (not context.launcher._target_.endswith("BasicLauncher") or cfg.machine.lane in LANES)
        config = from_hydra(cfg, context.runtime.choices)
        outcome = _train(config, plain=together)
    except (ConfigError, MissingData) as error:
        if is_debugging():
            raise
        if alone:
            sys.exit(f"error: {error}" if _is_main_process() else 1)
        run_id = identity_overrides(context.overrides.task)
        outcome = {"run_id": run_id, "status": Outcome.REFUSED, "message": str(error)}
    if not alone and not planned:
        return objective(outcome, context.sweeper.get("direction"))
    if alone and _is_main_process():
        _print_outcome(outcome, store_of_run(config).run(config.task_name, config.run_id).path)
    return outcome


def _train(config: RunConfig, plain: bool) -> dict[str, Any]:
    """Train the run, unless it is settled, which is found without torch: its import takes seconds."""
    run = store_of_run(config).run(config.task_name, config.run_id)
    # Ranks that were started together leave it to the main process.
    if not {"RANK", "SUBMITIT_EXECUTOR"} & os.environ.keys() and (settled := settled_result(config, run)):
        return settled
    with exit_on_interrupt():
        from nero.engine.distributed import BrokenGroup
        from nero.runs.tracking import Progress
        from nero.train.run import train
    try:
        return train(config, Progress(plain=plain))
    except BrokenGroup as error:
        sys.exit(f"error: {error}")  # ends a sweep too: the ranks are no longer connected


def _is_main_process() -> bool:
    if "torch.distributed" not in sys.modules:  # no processes are connected
        return True
    from nero.engine.distributed import is_main_process

    return is_main_process()


def objective(outcome: dict[str, Any], direction: Any = None) -> float:
    """The final value of a run's metric; infinite and worst if it diverged, since sweepers do not accept NaN.

    Args:
        direction: of the sweeper, `minimize` or `maximize`, if it has one

    Raises:
        RunFailed: there is no value, or the sweeper searches in the wrong direction
        SystemExit: the run was interrupted, and the sweep must not go on with the next
    """
    run_id, status, message = outcome["run_id"], outcome["status"], outcome.get("message")
    if status == "interrupted":
        sys.exit(f"{run_id} stopped ({message}), and the sweep with it")
    if not is_settled(outcome):
        print(outcome.get("traceback") or "", end="", file=sys.stderr)
        raise RunFailed(f"{run_id}: {message or 'it ended without its metric'}")
    metric = outcome["metric"]
    right, worst = ("maximize", -math.inf) if metric["goal"] == "max" else ("minimize", math.inf)
    if (asked := getattr(direction, "name", direction)) in ("minimize", "maximize") and asked != right:
        raise RunFailed(f"{metric['key']} needs hydra.sweeper.direction={right}; runs so far are logged")
    final = outcome["final"]
    return float(final) if final is not None and math.isfinite(final) else worst


def _print_outcome(outcome: dict[str, Any], folder: Path) -> None:
    """Print what became of a single run and where it is, and exit with its status."""
    run_id, status = outcome["run_id"], outcome["status"]
    if status == "failed":
        sys.exit(f"{outcome['traceback']}{run_id} failed: {outcome['message']}")
    if status == "busy":
        sys.exit(f"error: {outcome['message']}")
    if status == "interrupted":
        print(f"{run_id} stopped ({outcome['message']}); the same command resumes it")
    elif outcome.get("skipped"):
        final = f": {(outcome.get('metric') or {}).get('key')} {text}" if (text := final_text(outcome)) else ""
        print(f"{run_id} is {status} already{final}; to train it again, log it elsewhere: store=DIR")
    print(f"logged in {short_path(folder)}")
