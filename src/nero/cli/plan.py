"""List the pending runs of experiments, or of a part of them, and how long they should take. Runs nothing.

nero plan mnist
nero plan table1 only.task=pong_ppo only.optim=sgd,adam
nero plan table1 ablation --store other/runs
"""

import sys
from collections.abc import Sequence

from nero.plans.argparse_types import Parser, folder
from nero.plans.config import ConfigError
from nero.plans.listing import describe_plan
from nero.plans.plan import load_experiment, survey
from nero.plans.stores import given_store, store_of_experiment
from nero.runs.logged import name_left_out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="nero plan", description=__doc__)
    parser.add_argument("words", nargs="+", metavar="EXPERIMENT", help="names, and KEY=VALUE for all of their runs")
    parser.add_argument(
        "--store", type=folder, metavar="DIR", help="default: NERO_RUNS, else that of the experiment's sweep"
    )
    options = parser.parse_intermixed_args(arguments)
    names = [word for word in options.words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in options.words if word not in names]
    if not names:
        parser.error("name an experiment")
    stores = []
    given = options.store or given_store(overrides)
    try:
        for name in names:
            experiment = load_experiment(name, overrides)
            stores.append(store_of_experiment(experiment, given))
            summaries = stores[-1].summaries()
            print(describe_plan(experiment, [survey(cell, summaries) for cell in experiment.cells], summaries))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return name_left_out(*stores)
