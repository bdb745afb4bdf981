"""Train one run, a Hydra sweep, or the pending runs of an experiment or of a part of it.

python scripts/train.py task=mnist_mlp100 optim=nero optim.lr=0.001 seed=0
python scripts/train.py --multirun optim=nero,sgd optim.lr=0.1,0.01
python scripts/train.py --multirun experiment=mnist,table1
python scripts/train.py --multirun experiment=table1 only.task=pong_ppo only.optim=sgd,adam
torchrun --nproc-per-node 4 scripts/train.py task=imagenet_resnet50 optim=nero
"""

import sys
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from nero.plans.config import CONFIG_DIR, ConfigError, from_hydra, identity_overrides, one_line_errors
from nero.plans.plan import ONLY_WITHOUT_EXPERIMENT
from nero.plans.schema import LANES
from nero.sweep.library_internals import register_sweeper
from nero.sweep.sweeper import PlanSweeper

register_sweeper(PlanSweeper)


@hydra.main(config_path=str(CONFIG_DIR), config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> dict[str, Any]:
    from nero.data.sources import MissingData
    from nero.engine.distributed import BrokenGroup, is_main_process
    from nero.runs.store import Outcome
    from nero.runs.tracking import Progress
    from nero.train.run import train

    context = HydraConfig.get()
    alone = context.mode == RunMode.RUN
    if alone and cfg.experiment is not None:
        sys.exit("error: experiment=NAME is a sweep: add --multirun")
    if alone and any(names is not None for names in (cfg.only or {}).values()):
        sys.exit(f"error: {ONLY_WITHOUT_EXPERIMENT}")
    try:
        # Runs that share a terminal print plain lines.
        together = not alone and (not context.launcher._target_.endswith("BasicLauncher") or cfg.machine.lane in LANES)
        outcome = train(from_hydra(cfg, context.runtime.choices), Progress(plain=together))
    except BrokenGroup as error:
        sys.exit(f"error: {error}")  # ends a sweep too: the ranks are no longer connected
    except (ConfigError, MissingData) as error:
        if alone:
            sys.exit(f"error: {error}" if is_main_process() else 1)
        return {"run_id": identity_overrides(context.overrides.task), "status": Outcome.REFUSED, "message": str(error)}
    if alone and is_main_process():
        _print_outcome(outcome)
    return outcome


def _print_outcome(outcome: dict[str, Any]) -> None:
    """Print one line on a single run, and exit with its status."""
    run_id, status = outcome["run_id"], outcome["status"]
    if status == "failed":
        sys.exit(f"{outcome['traceback']}{run_id} failed: {outcome['message']}")
    if status == "busy":
        sys.exit(f"error: {outcome['message']}")
    if status == "interrupted":
        print(f"{run_id} stopped ({outcome['message']}); the same command resumes it")
    elif outcome.get("skipped"):
        print(f"{run_id} is {status} already")


if __name__ == "__main__":
    with one_line_errors():
        main()
