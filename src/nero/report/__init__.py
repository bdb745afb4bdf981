"""From logged runs to tables and figures. Imports neither torch nor wandb.

    from nero import report
    report.runs(task="pong_ppo")                     # a pandas frame with one row per run
    report.curves("pong_ppo", "train/entropy")       # one row per run and epoch
    report.compare("46f14cc9", "139e82d0")           # two runs, by the hashes in their ids
    report.table("table1"), report.figure("figure3")

api         these functions, which are loaded on first use
evidence    an experiment and its runs: the argument of every maker
catalogue   which table and figures each experiment has; add new ones there
frame       runs, curves and traces as data frames;  cells  the runs of one table cell and its status
paper       the paper's numbers, from results/paper;  verdicts  comparison of ours with them
            disagreements  why some differ, from results/disagreements.yaml
assembly    the whole report;  files  its files, and the check of committed ones
tables/     tables of experiments, learning rates, costs and runs; sheets has the table model and its formats
figures/    Figures 1 to 9;  theory/  tables and figures of the theory;  page/  the report as one HTML file
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nero.report.api import compare, curves, figure, findings, numbers, runs, show, table

__all__ = ["compare", "curves", "figure", "findings", "numbers", "runs", "show", "table"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from nero.report import api

        return getattr(api, name)
    raise AttributeError(f"module 'nero.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
