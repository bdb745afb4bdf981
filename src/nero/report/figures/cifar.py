"""Figures 1, 2 and 5: training and validation error on CIFAR-10, with the paper's final errors beside ours."""

from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.panels import Curve, LogScale, Pair, by_optimizer, curves_of_task
from nero.report.tables.constraints import base_optimizer, constraints_of

VGG11, RESNET18 = (
    Pair("train/error", paper.ERROR["key"], "error (%)", conditions, paper.CIFAR10_EPOCHS)
    for conditions in ("augmented, dropout on", "augmented")
)

START = 5  # epochs of warm-up: the scale fits what follows, and earlier values may lie above it
LEAST = 0.01  # per cent, 5 of the 50,000 training images: a log scale has no zero
COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
FINE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 50, 70, 100)
SCALE = LogScale(lambda low, _: FINE if low >= FINE[0] else COARSE, (LEAST, 100), paper.CIFAR10_EPOCHS, START)


@style.house_style()
def figure1(evidence: Evidence) -> Figure:
    """VGG-11, Nero with either constraint on and off."""
    published = paper.ablation()
    swept = [state for state in evidence.states if state.cell.variant and paper.key(state.cell) in published.results]
    unique = cells.unique_cells(swept, lambda cell: (constraints_of(cell), cell.label))
    by_name = {
        cells.labelled(name, state.cell): state
        for constraints, (name, _) in style.CONSTRAINTS.items()
        for (own, _), state in unique.items()
        if own == constraints
    }
    palette = style.palette(by_name, dict(style.CONSTRAINTS.values()))
    curves = [Curve(state, name, palette[name]) for name, state in by_name.items()]
    figure, panels = style.panels(1, 2, "Nero's constraints, VGG-11 on CIFAR-10 (Figure 1): mean and range over seeds")
    VGG11.draw(panels, "Nero's constraints", curves, evidence.curves, published)
    for panel in panels:
        SCALE.fit([panel])
    return style.freeze_layout(figure)


@style.house_style()
def figure2(evidence: Evidence) -> Figure:
    """VGG-11, relative updates per neuron, layer and synapse. Top: without constraints. Bottom: with both."""
    title = "Relative updates, VGG-11 on CIFAR-10 (Figure 2): mean and range over seeds"
    figure, panels = style.panels(2, 2, title)
    rows = (("Without constraints", (False, False)), ("With both constraints", (True, True)))
    for row, (name, constraints) in zip((panels[:2], panels[2:]), rows, strict=True):
        states = [state for state in evidence.states if constraints_of(state.cell) == constraints]
        VGG11.draw(row, name, by_optimizer(states, base_optimizer), evidence.curves, paper.ablation())
    SCALE.fit(panels[::2])  # one scale per column, so that the rows can be compared
    SCALE.fit(panels[1::2])
    return style.freeze_layout(figure)


@style.house_style()
def figure5(evidence: Evidence) -> Figure:
    """VGG-11 (top) and ResNet-18 (bottom), each optimiser at the leading learning rate of its search."""
    figure, panels = style.panels(2, 2, "CIFAR-10 (Figure 5): mean and range over seeds")
    rows = (("VGG-11", paper.VGG11, VGG11), ("ResNet-18", paper.RESNET18, RESNET18))
    for row, (name, task, pair) in zip((panels[:2], panels[2:]), rows, strict=True):
        pair.draw(row, name, curves_of_task(task, evidence.states), evidence.curves, paper.table1())
    for panel in panels:
        SCALE.fit([panel])
    return style.freeze_layout(figure)
