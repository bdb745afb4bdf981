"""List the pending runs of an experiment, or of a part of it, and how long they should take. Runs nothing.

python scripts/plan.py mnist [OVERRIDE ...] [--store results/runs]
python scripts/plan.py table1 only.task=pong_ppo only.optim=sgd,adam
"""

import argparse
import os
import sys

from nero.plans.config import ConfigError
from nero.plans.listing import describe_plan
from nero.plans.plan import load_experiment, survey
from nero.runs.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("overrides", nargs="*", help="overrides for every run, as scripts/train.py takes them")
    parser.add_argument("--store", default=os.environ.get("NERO_RUNS", "results/runs"))
    args = parser.parse_args()
    try:
        experiment = load_experiment(args.experiment, args.overrides)
        summaries = Store(args.store).summaries()
        print(describe_plan(experiment, [survey(cell, summaries) for cell in experiment.cells], summaries))
    except ConfigError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
