"""Figure 8: reward of policies that learn Pong against environment steps, with the paper's final rewards beside ours.

The authors' curves are not logged anywhere, and the paper has no number for LAMB with momentum.
"""

import pandas as pd
from matplotlib.figure import Figure

from nero.report import paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import curves_of_task
from nero.report.figures.finishing import finish
from nero.report.figures.numbers import numbers_of_curves
from nero.report.figures.panels import draw_panel, precision_of

REWARD = paper.REWARD["key"]
STEPS = "train/environment_steps"
SIZE = (5.6, 4.2)  # inches: a single panel, with a legend of long names

TICKS = range(-21, 22, 7)  # a game ends at 21 points: rewards lie between -21 and 21
BELOW, ABOVE = 2, 4  # room beyond those; more above, for the word over the paper's marks

NEAR = 0.01  # million steps: a log, of every 10 updates, is never farther from any whole million
NOTES = (
    f"Reward (mean return of the last {paper.REWARD_GAMES} finished games, at most 21) where it is logged nearest to "
    "so many million steps of the environment: the mean over n seeds at the learning rate η, which is the best of the "
    "search, the best of the rates searched while it is incomplete, or the only one planned."
)


@style.house_style()
def figure8(evidence: Evidence) -> Figure:
    """Each optimiser at the leading rate of its search, LAMB with momentum at the paper's best for LAMB."""
    figure, [axes] = style.panels(1, 1, "PPO on Atari Pong (Figure 8)", SIZE)
    curves = curves_of_task(paper.PONG, evidence.states)
    rewards = against(evidence.curves, REWARD, STEPS, 1e6)
    title = f"Vanilla CNN{precision_of(curves)}, training games"
    draw_panel(axes, REWARD, title, curves, rewards, paper.PONG_MILLIONS, paper.table1(), x=STEPS)
    ylabel = f"reward\n(mean of the last {paper.REWARD_GAMES} finished games)"
    axes.set(xlabel="environment steps (millions)", ylabel=ylabel)
    axes.set(ylim=(TICKS[0] - BELOW, TICKS[-1] + ABOVE), yticks=TICKS)
    return finish(figure)


def against(frame: pd.DataFrame, key: str, x: str, unit: float) -> pd.DataFrame:
    """The lines of `frame` under `key`, with a column `x`: the value of that key in the same record, over `unit`.

    A line whose record has no such value is left out.
    """
    places = frame[frame.key == x].set_index(["run_id", "epoch"]).value.rename(x) / unit
    return frame[frame.key == key].join(places.dropna(), on=["run_id", "epoch"], how="inner")


def numbers(evidence: Evidence) -> str:
    """Rewards at each million steps, and the final values of all seeds and of the search."""
    curves = curves_of_task(paper.PONG, evidence.states)
    points = {f"{millions} M steps": millions for millions in range(1, paper.PONG_MILLIONS + 1)}
    rewards, label = against(evidence.curves, REWARD, STEPS, 1e6), paper.REWARD["label"]
    return numbers_of_curves(
        "Figure 8", "optimiser", curves, rewards, (REWARD,), points, NOTES, label, x=STEPS, near=NEAR
    )
