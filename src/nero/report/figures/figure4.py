"""Figure 4: FID of class-conditional GANs on CIFAR-10, with the paper's final values beside ours.

FID is measured as in the released code, and in the last panel plain. The authors' curves are not logged anywhere.
"""

from matplotlib.figure import Figure

from nero.report import paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import curves_of_task
from nero.report.figures.numbers import epochs, numbers_of_curves
from nero.report.figures.panels import draw_panel, precision_of
from nero.report.figures.scales import LogScale

TRAINING, VALIDATION, PLAIN = "train/fid_released", paper.FID["key"], "val/fid"
TRAINING_LABEL, VALIDATION_LABEL = "FID against the training images", "FID against the test images"
SIZE = (3.4, 4.6)  # inches: taller than other panels, since one unit of 15 should be visible

START = 10  # the epoch of the first FID: the scale fits what follows
SHARE = 0.75  # of a curve is visible: it begins at hundreds, and a few units at its end decide
MOST = 300.0  # samples with a higher FID hardly look like images
FINE = (5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 30, 35, 40, 50, 60, 80, 100, 120, 150)
COARSE = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
CLOSE = 100.0  # below this there is room for the fine ticks
BOUNDS = (1.0, 500.0)
SCALE = LogScale(
    lambda low, high: FINE if high <= CLOSE else COARSE, BOUNDS, paper.CGAN_EPOCHS, START, SHARE, most=MOST
)

NOTES = (
    "FID against the test images / against the training images, both as the released code measures it / plain FID "
    "against the test images, each the mean over n seeds at the learning rate η: the best of the search by the first, "
    "or the best of the rates searched while it is incomplete. An epoch at which a seed's was not finite has no mean."
)


@style.house_style()
def figure4(evidence: Evidence) -> Figure:
    """Each optimiser at the leading rate of its search, the same for generator and discriminator."""
    title = "Class-conditional GAN on CIFAR-10 (Figure 4)"
    figure, panels = style.panels(1, 3, title, SIZE)
    curves = curves_of_task(paper.CGAN, evidence.states)
    for axes, key, kind, label, published in (
        (panels[0], TRAINING, "training", TRAINING_LABEL, None),
        (panels[1], VALIDATION, "validation", VALIDATION_LABEL, paper.table1()),
        (panels[2], PLAIN, "validation, plain FID", VALIDATION_LABEL, None),
    ):
        name = f"BigGAN-like{precision_of(curves)}, {kind}"
        draw_panel(axes, key, name, curves, evidence.curves, paper.CGAN_EPOCHS, published)
        axes.set_ylabel(label)
    return SCALE.fit_each(figure, panels)


def numbers(evidence: Evidence) -> str:
    """All panels at some epochs, and the final values of all seeds and of the search."""
    curves, keys = curves_of_task(paper.CGAN, evidence.states), (VALIDATION, TRAINING, PLAIN)
    points = epochs(10, 30, 60, 90, paper.CGAN_EPOCHS)
    return numbers_of_curves("Figure 4", "optimiser", curves, evidence.curves, keys, points, NOTES, VALIDATION_LABEL)
