"""Rows of two panels: a quantity of the training set (left) and of the validation set (right) against the epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from nero.report import paper
from nero.report.figures.panel import Curve, Span, arithmetic, draw_panel


@dataclass(frozen=True)
class Followed:
    """What a row follows, and for how long."""

    training: str  # its keys in the log
    validation: str
    quantity: str  # as axes write it, with its unit
    seen: str  # how the network saw the training set: as it came in the epoch's batches
    epochs: int


def draw_row(
    panels: Sequence[Axes],
    followed: Followed,
    heading: str,
    shown: Sequence[Curve],
    curves: pd.DataFrame,
    published: paper.Published,
    authors: pd.DataFrame | None = None,
) -> None:
    """Training on the left, validation on the right, and there the paper's finals; both say in what arithmetic.

    `authors` has curves of theirs under the keys of our logs.
    """
    left, right = panels
    heading += arithmetic(shown)
    span = Span("epoch", "epoch", followed.epochs)
    ylabel = f"training {followed.quantity} as it ran\n({followed.seen})"
    draw_panel(left, followed.training, span, f"{heading}, training", ylabel, shown, curves, authors=authors)
    ylabel = f"validation {followed.quantity}"
    draw_panel(right, followed.validation, span, f"{heading}, validation", ylabel, shown, curves, published, authors)
