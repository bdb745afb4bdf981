"""Figures over angles: what rotations of all neurons do to a trained network, and what the bound makes of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report.figures import style
from nero.report.theory.bounds import CAPS, DELTA, Case, at_angles
from nero.report.theory.evidence import Evidence, Group, absent, unmeasured
from nero.report.theory.numbers import known, short
from nero.report.theory.panels import DrawTask, band, by_task, nothing
from nero.report.theory.robustness_table import KINDS, angle
from nero.theory.records import NETWORKS

ROBUSTNESS = "Errors that random rotations of all neurons make (Definition 6), mean and range over seeds"
BOUND = f"Right side of Theorem 1 against the angle of robustness (delta = {DELTA:g})"
MARKS = {"certified": ">", "adversarial": "<", "random": "o"}
"""Definition 6's alpha lies between the first two."""

LEAST = 1e-6
"""Smaller angles are not drawn but said."""

SMALLEST_SHARE = 1e-5
"""Of examples, up to which the scale of errors is linear."""

GRID = 121
BLACK = "#000000"


@style.house_style()
def robustness_figure(evidence: Evidence) -> Figure:
    """Share of fitted training examples made wrong against the angle, and the measured angles as marks at the top."""
    return _by_task(evidence, ROBUSTNESS, _draw_robustness)


@style.house_style()
def bound_figure(evidence: Evidence) -> Figure:
    """The bound in nats against the angle, exact and by Ball's bound, and the measured angles as marks on it."""
    return _by_task(evidence, BOUND, _draw_bound)


def _by_task(evidence: Evidence, title: str, draw: DrawTask) -> Figure:
    measured = [kept for group in evidence.networks if (kept := group.having("robustness"))]
    without = unmeasured(evidence.networks, "robustness")
    if not measured:
        return nothing(evidence, title, f"Not measured: {without}." if without else absent(NETWORKS))
    return by_task(evidence, f"{title}\n(not measured: {without})" if without else title, measured, draw)


def _draw_robustness(axes: Axes, groups: Sequence[Group], palette: Mapping[str, str]) -> Iterator[str]:
    handles = []
    for place, group in enumerate(groups):
        colour = palette[group.label]
        for angles, seeds in _curves(group).items():
            shares = np.array(seeds, dtype=float)
            middle, low, high = (over(shares, axis=0).tolist() for over in (np.mean, np.min, np.max))
            label = f"{group.label}, n = {len(seeds)}"
            band(axes, angles, middle, (low, high), colour, group, label, marker=".")
        height = 0.97 - 0.045 * place
        for kind, mark in MARKS.items():
            for found in _seen(group, kind):
                axes.plot(found, height, mark, color=colour, markersize=4, transform=axes.get_xaxis_transform())
    handles += axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", xlabel="angle by up to which all neurons are turned (radians)")
    axes.set_yscale("symlog", linthresh=SMALLEST_SHARE)
    axes.set(ylabel="share of fitted training examples made wrong", ylim=(-SMALLEST_SHARE / 5, 30))
    axes.set_yticks([0, *(10.0**power for power in range(-5, 1))], minor=False)
    axes.set_yticks([], minor=True)
    style.legend_below(axes, handles=[*handles, *_keys("angle")])
    return _said(groups)


def _draw_bound(axes: Axes, groups: Sequence[Group], palette: Mapping[str, str]) -> Iterator[str]:
    seen = [found for group in groups for kind in KINDS for found in _seen(group, kind)]
    angles = np.geomspace(min([1e-2, *seen]) / 1.5, math.pi, GRID).clip(max=math.pi)
    drawn: dict[Case, None] = {}
    for group in groups:
        for record in group.records:
            case = Case.of(record)
            if not any(_alike(case, other) for other in drawn):
                drawn[case] = None
                _draw_curves(axes, group, case, angles, palette[group.label])
            if not case.errors:
                for kind, at in at_angles(record).items():
                    if at is not None and at.angle >= LEAST:
                        axes.plot(
                            at.angle, at.bounds["exact"].nats, MARKS[kind], color=palette[group.label], markersize=5
                        )
    for classes in sorted({case.classes for case in drawn}):
        axes.axhline(math.log(classes), color=BLACK, linewidth=0.8, label=f"guessing among {classes} classes")
    handles = axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", yscale="log", xlabel="angle (radians)", ylabel="right side of Theorem 1 (nats)")
    own = [Line2D([], [], marker="s", linestyle="none", color=palette[g.label], label=g.label) for g in groups]
    style.legend_below(axes, handles=[*handles, *own, *_keys("angle")])
    return _said(groups, bound=True)


def _alike(one: Case, other: Case) -> bool:
    """Whether their curves cannot be told apart: centred neurons have a dimension less, of hundreds."""
    return (one.neurons, one.parameters, one.examples) == (other.neurons, other.parameters, other.examples)


def _draw_curves(axes: Axes, group: Group, case: Case, angles: np.ndarray, colour: str) -> None:
    for (name, cap), linestyle in zip(CAPS.items(), (style.OURS, style.VARIANT), strict=True):
        nats = [case.bound(float(found), cap).nats for found in angles]
        of = f"{case.neurons:,} neurons, {group.name}'s spheres"
        label = f"{'exact caps' if name == 'exact' else 'Ball’s bound'} ({of})"
        band(axes, angles.tolist(), nats, None, colour, group, label, linestyle)


def _curves(group: Group) -> dict[tuple[float, ...], list[list[float]]]:
    """Shares by the angles at which they were measured, seed by seed."""
    found: dict[tuple[float, ...], list[list[float]]] = {}
    for record in group.records:
        points = [(at, share) for at, share in record["robustness"].get("curve") or [] if at and share is not None]
        if points:
            found.setdefault(tuple(at for at, _ in points), []).append([share for _, share in points])
    return found


def _seen(group: Group, kind: str) -> list[float]:
    """Angles that a panel has room for."""
    return [found for record in group.records if (found := angle(record, kind)) is not None and found >= LEAST]


def _keys(word: str) -> list[Line2D]:
    look: Any = {"linestyle": "none", "color": BLACK, "markersize": 4}
    return [Line2D([], [], marker=mark, label=f"{kind} {word}", **look) for kind, mark in MARKS.items()]


def _said(groups: Sequence[Group], bound: bool = False) -> Iterator[str]:
    """What has no place in a panel."""
    for kind in KINDS:
        found = {group.name: known(angle(record, kind) for record in group.records) for group in groups}
        small = [f"{name} {short(min(angles))}" for name, angles in found.items() if angles and min(angles) < LEAST]
        if small:
            yield f"not drawn, {kind} angle: {', '.join(small)}"
        if without := [name for name, angles in found.items() if not angles]:
            yield f"no {kind} angle: {', '.join(without)}"
    wrong = []
    for group in groups:
        counts = [f"{count:,}" for record in group.records if (count := record["robustness"]["errors"])]
        wrong += [f"{group.name} {', '.join(counts)}"] if counts else []
    if wrong:
        meaning = "the theorem does not apply" if bound else "fitted examples alone"
        yield f"training errors ({meaning}): {'; '.join(wrong)}"
