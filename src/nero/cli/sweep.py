"""Train what is pending of experiments, or every combination of settings.

    nero sweep mnist                                        the pending runs of experiments/mnist.yaml
    nero sweep table1 only.task=pong_ppo only.optim=sgd,adam      a part of them
    nero sweep mnist table1 machine=gpu                     one experiment after the other
    nero sweep optim=nero,adam optim.lr=0.1,0.01 seed=0,1   eight runs: plain Hydra
    nero sweep table1 hydra/launcher=joblib hydra.launcher.n_jobs=4     four runs at a time

A run that is logged already is not trained again, so that the same command continues a sweep. `nero plan` lists what is
pending. Exit status: 0; 1 if a run failed.
"""

import sys
from collections.abc import Sequence

from nero.cli.train import choices, start


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "-h" in words or "--help" in words:
        print(f"{__doc__}\n{choices()}")
        return 0
    experiments = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    others = [word for word in words if word not in experiments]
    if not others and not experiments:
        print("error: name an experiment, or settings with several values; see nero sweep --help", file=sys.stderr)
        return 2
    return start(["--multirun", *([f"experiment={','.join(experiments)}"] if experiments else []), *others])
