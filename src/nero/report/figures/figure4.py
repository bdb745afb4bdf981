"""Figure 4: how far samples of class-conditional GANs are from real images, the paper's final distances beside ours.

FID is measured as in the released code, and in the last panel plain. The authors' curves are not logged anywhere.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.log_scale import LogScale
from nero.report.figures.panel import Span, arithmetic, draw_panel, of_task

TRAINING, VALIDATION, PLAIN = "train/fid_released", paper.FID["key"], "val/fid"
SPAN = Span("epoch", "epoch", paper.CGAN_EPOCHS)

START = 10  # the epoch of the first FID: the scale is that of what follows
SHARE = 0.75  # of a curve is in sight: what decides are a few units at its end, where it begins at hundreds
MOST = 300.0  # samples that are farther hardly look like images
FINE = (5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 80, 100, 120, 150)
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
CLOSE = 100.0  # where nothing lies higher, there is room for the fine ticks
BOUNDS = (1.0, 500.0)

SIZE = (4.6, 4.4)  # inches: higher than other panels, since a unit of 15 is to be seen


@style.house_style()
def figure4(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 4: each optimiser at the leading rate of its search, the same for generator and discriminator."""
    title = "Class-conditional GAN on CIFAR-10 (Figure 4): mean and range over seeds"
    figure, panels = style.panels(1, 3, title, SIZE)
    shown = of_task(paper.CGAN, states)
    heading = f"BigGAN-like{arithmetic(shown)}"
    left, middle, right = panels
    draw_panel(left, TRAINING, SPAN, f"{heading}, training", "FID against the training images", shown, curves)
    ylabel = "FID against the test images"
    draw_panel(middle, VALIDATION, SPAN, f"{heading}, validation", ylabel, shown, curves, paper.table1())
    draw_panel(right, PLAIN, SPAN, f"{heading}, validation, plain FID", ylabel, shown, curves)
    scale = LogScale(_ladder, BOUNDS, paper.CGAN_EPOCHS, START, SHARE)
    for panel in panels:
        scale.fit([panel])
    return style.settle(figure)


def _ladder(low: float, high: float) -> list[float]:
    """Up to MOST, or to three times the lowest value where that is more."""
    top = max(MOST, 3 * low)
    ticks = FINE if high <= CLOSE else COARSE
    return [float(tick) for tick in ticks if tick <= top]
