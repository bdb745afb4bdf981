"""Figures 1, 2 and 5: training and validation error on CIFAR-10, with the paper's final errors beside ours."""

from functools import partial

from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import by_optimizer, curves_of_task, named_curves
from nero.report.figures.finishing import finish
from nero.report.figures.panels import Pair, pair_figure
from nero.report.figures.scales import LogScale
from nero.report.tables.listings import base_optimizer, constraints_of

VGG11 = partial(Pair, quantity="error (%)", key="error", conditions="augmented, dropout on")
RESNET18 = partial(Pair, quantity="error (%)", key="error", conditions="augmented")

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
    names = {constraints: name for constraints, (name, _) in style.CONSTRAINTS.items()}
    ordered = sorted(unique.items(), key=lambda item: list(names).index(item[0][0]))
    named = {cells.labelled(names[constraints], state.cell): state for (constraints, _), state in ordered}
    rows = [VGG11("Nero's constraints", named_curves(named, dict(style.CONSTRAINTS.values())))]
    title = "Nero's constraints, VGG-11 on CIFAR-10 (Figure 1)"
    return SCALE.fit_each(*pair_figure(title, rows, evidence.curves, SCALE, published))


@style.house_style()
def figure2(evidence: Evidence) -> Figure:
    """VGG-11, relative updates per neuron, layer and synapse. Top: without constraints. Bottom: with both."""
    rows = []
    for name, constraints in (("Without constraints", (False, False)), ("With both constraints", (True, True))):
        states = [state for state in evidence.states if constraints_of(state.cell) == constraints]
        rows.append(VGG11(name, by_optimizer(states, base_optimizer)))
    title = "Relative updates, VGG-11 on CIFAR-10 (Figure 2)"
    figure, panels = pair_figure(title, rows, evidence.curves, SCALE, paper.ablation())
    SCALE.fit(panels[::2])  # one scale per column, so that the rows can be compared
    SCALE.fit(panels[1::2])
    return finish(figure)


@style.house_style()
def figure5(evidence: Evidence) -> Figure:
    """VGG-11 (top) and ResNet-18 (bottom), each optimiser at the leading learning rate of its search."""
    rows = [
        VGG11("VGG-11", curves_of_task(paper.VGG11, evidence.states)),
        RESNET18("ResNet-18", curves_of_task(paper.RESNET18, evidence.states)),
    ]
    title = "CIFAR-10 (Figure 5)"
    return SCALE.fit_each(*pair_figure(title, rows, evidence.curves, SCALE, paper.table1()))
