"""Figure 8: reward of policies that learn Pong against steps of the environment, the paper's final rewards beside ours.

The authors' curves are not logged anywhere, and of LAMB with momentum the paper has no number.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.curves import against
from nero.report.figures.panel import Span, arithmetic, draw_panel, of_task

REWARD = paper.REWARD["key"]
STEPS = "train/environment_steps"
SPAN = Span(STEPS, "environment steps (millions)", paper.PONG_MILLIONS)

TICKS = range(-21, 22, 7)  # a game ends at 21 points: 21 and -21 are the best and the worst there can be
BELOW, ABOVE = 2, 4  # room beyond those; more above, where a word stands over the paper's marks

SIZE = (5.6, 4.2)  # inches: one panel alone, with a legend of long names


def rewards(curves: pd.DataFrame) -> pd.DataFrame:
    """Lines of rewards, with millions of environment steps as the column STEPS."""
    return against(curves, REWARD, STEPS, 1e6)


@style.house_style()
def figure8(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 8: each optimiser at the leading rate of its search, LAMB with momentum at the paper's best for LAMB."""
    figure, [axes] = style.panels(1, 1, "PPO on Atari Pong (Figure 8): mean and range over seeds", SIZE)
    shown = of_task(paper.PONG, states)
    title = f"Vanilla CNN{arithmetic(shown)}, training games"
    ylabel = f"reward\n(mean of the last {paper.REWARD_GAMES} finished games)"
    draw_panel(axes, REWARD, SPAN, title, ylabel, shown, rewards(curves), paper.table1())
    axes.set(ylim=(TICKS[0] - BELOW, TICKS[-1] + ABOVE), yticks=TICKS)
    return style.settle(figure)
