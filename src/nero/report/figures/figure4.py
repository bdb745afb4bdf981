"""Figure 4: FID of class-conditional GANs on CIFAR-10, with the paper's final values beside ours.

FID is measured as in the released code, and in the last panel plain. The authors' curves are not logged anywhere.
"""

from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.numbers import document, epoch_table, search_table, seed_table
from nero.report.figures.panels import LogScale, XAxis, curves_of_task, draw_panel, precision_of

TRAINING, VALIDATION, PLAIN = "train/fid_released", paper.FID["key"], "val/fid"
TRAINING_LABEL, VALIDATION_LABEL = "FID against the training images", "FID against the test images"
X = XAxis("epoch", "epoch", paper.CGAN_EPOCHS)
SIZE = (4.6, 4.4)  # inches: taller than other panels, since one unit of 15 should be visible

START = 10  # the epoch of the first FID: the scale fits what follows
SHARE = 0.75  # of a curve is visible: it begins at hundreds, and a few units at its end decide
MOST = 300.0  # samples with a higher FID hardly look like images
FINE = (5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 80, 100, 120, 150)
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
CLOSE = 100.0  # below this there is room for the fine ticks
BOUNDS = (1.0, 500.0)

EPOCHS = (10, 30, 60, 90, paper.CGAN_EPOCHS)
NOTES = (
    "FID against the test images / against the training images, both as the released code measures it / plain FID "
    "against the test images, each the mean over n seeds at the learning rate η: the best of the search by the first, "
    "or the best of the rates searched while it is incomplete. An epoch at which a seed's was not finite has no mean."
)


@style.house_style()
def figure4(evidence: Evidence) -> Figure:
    """Each optimiser at the leading rate of its search, the same for generator and discriminator."""
    title = "Class-conditional GAN on CIFAR-10 (Figure 4): mean and range over seeds"
    figure, panels = style.panels(1, 3, title, SIZE)
    curves, frame = curves_of_task(paper.CGAN, evidence.states), evidence.curves
    name = f"BigGAN-like{precision_of(curves)}"
    left, middle, right = panels
    draw_panel(left, TRAINING, X, f"{name}, training", TRAINING_LABEL, curves, frame)
    draw_panel(middle, VALIDATION, X, f"{name}, validation", VALIDATION_LABEL, curves, frame, paper.table1())
    draw_panel(right, PLAIN, X, f"{name}, validation, plain FID", VALIDATION_LABEL, curves, frame)
    scale = LogScale(_ticks, BOUNDS, paper.CGAN_EPOCHS, START, SHARE)
    for panel in panels:
        scale.fit([panel])
    return style.freeze_layout(figure)


def _ticks(low: float, high: float) -> list[float]:
    """Up to MOST, or to three times the lowest value where that is more."""
    top = max(MOST, 3 * low)
    return [float(tick) for tick in (FINE if high <= CLOSE else COARSE) if tick <= top]


def numbers(evidence: Evidence) -> str:
    """All panels at some epochs, and the final values of all seeds and of the search."""
    curves = curves_of_task(paper.CGAN, evidence.states)
    states = [curve.state for curve in curves]
    cells.require_real(states)
    epochs = epoch_table("optimiser", curves, evidence.curves, (VALIDATION, TRAINING, PLAIN), EPOCHS)
    seeds, search = (make(states, VALIDATION_LABEL, VALIDATION) for make in (seed_table, search_table))
    return document("Figure 4", epochs, NOTES, seeds, search)
