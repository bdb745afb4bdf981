"""Angular robustness: how far all neurons of a trained network can be turned before it errs on training examples."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Printed, Text, exact
from nero.report.theory import panels, tables
from nero.report.theory.evidence import LINKS, Evidence, Group, precision_text, rows
from nero.report.theory.panels import BLACK, band
from nero.report.theory.tables import series, short, span, spread
from nero.report.units import number, scale
from nero.theory.records import Record

NOTES = (
    "Angles by which all neurons may be turned at once, in radians; mean over seeds, and their range in brackets. "
    "Certified: no rotation by up to this angle makes an error on an example that the network had right, so that the "
    "alpha of Definition 6 is at least as large; for perceptrons only. Adversarial: the smallest rotation found that "
    "makes one, so that alpha is smaller. Definition 6 is for a network without any training error: where there are "
    "errors, the angles are for the fitted examples alone. Training examples are seen without augmentation."
)
METHODS = {
    "random": "with {confidence:g} % confidence, at least {share:g} % of the rotations by up to this angle, drawn "
    "evenly from the neurons' caps, leave every fitted example right",
    "adversarial": "gradient steps on the spheres, {steps} for an angle, against each of {attacked} examples",
}
TITLE = "Errors that random rotations of all neurons make (Definition 6)"
# Angles: a lower and an upper bound of Definition 6's alpha, and one that holds for nearly all rotations.
MARKERS = {"certified": ">", "adversarial": "<", "random": "o"}
LEAST_ANGLE = 1e-6  # smaller angles are not drawn but noted
LEAST_SHARE = 1e-5  # of examples, up to which the scale of errors is linear
HELD_OUT = ("test/error", "test/accuracy", "val/error", "val/accuracy")


def angle(record: Record, kind: str) -> float | None:
    """One of MARKERS; None where it was not measured, and where no angle was found."""
    return (record["robustness"].get(kind) or {}).get("angle") or None


def angles(group: Group, kind: str) -> "pd.Series[float]":
    return series(angle(record, kind) for record in group.records)


def no_angle_text(records: Iterable[Record], kind: str) -> str:
    """Why there is no angle of a kind."""
    if any(record["robustness"].get(kind) for record in records):
        return "none found"
    return "none up to a right angle" if kind == "adversarial" else "not measured"


# Table


def _angle_text(kind: str, group: Group) -> Text:
    """Mean and range over seeds, and their number where some have no value."""
    found, planned = angles(group, kind), len(group.records)
    if found.empty:
        return Text(no_angle_text(group.records, kind))
    fewer = f"n = {len(found)} of {planned}" if len(found) < planned else ""
    return Text(short(found.mean()), ", ".join(filter(None, [span(found), fewer])))


def _errors_text(group: Group) -> Text:
    """Integers, except for the mean of different ones."""
    errors = _of_seeds(group, "errors")
    ends = f"{errors.min():,.0f} to {errors.max():,.0f}" if errors.nunique() > 1 else ""
    return Text(f"{errors.mean():,.{1 if ends else 0}f}", ends)


def _held_out_text(group: Group) -> Text:
    key, found = _held_out(group)
    if found.empty:
        return Text("")
    values = scale(key) * found
    ends = f"{number(values.min())} to {number(values.max())}" if len(values) > 1 else ""
    return Text(f"{number(values.mean())} % {key.replace('/', ' ')}", ends)


COLUMNS: tables.Columns = {
    "optimiser": lambda group: group.label,
    "seeds": lambda group: Text(str(len(group.records)), runs=group.links),
    "epochs": lambda group: group.epochs,
    "training errors": _errors_text,
    "of examples": lambda group: ", ".join(f"{value:,.0f}" for value in _examples(group)),
    "certified angle, from below (radians)": partial(_angle_text, "certified"),
    "adversarial angle, from above (radians)": partial(_angle_text, "adversarial"),
    "random angle (radians)": partial(_angle_text, "random"),
    "on held-out examples": _held_out_text,
}


def robustness_table(evidence: Evidence) -> Printed:
    """A line per optimiser."""

    def notes(groups: Sequence[Group]) -> list[str]:
        return [NOTES, LINKS, *_methods(groups), precision_text(groups)]

    name, title = "theory_robustness", "Angular robustness of trained networks (Definition 6)"
    return tables.build(evidence, "robustness", name, title, COLUMNS, notes, lambda group: [group], _record)


def _of_seeds(group: Group, *keys: str) -> "pd.Series[float]":
    """A value of each seed's robustness, under nested keys."""
    found: list[Any] = [record["robustness"] for record in group.records]
    for key in keys:
        found = [(part or {}).get(key) for part in found]
    return series(found)


def _examples(group: Group) -> list[float]:
    return sorted(set(_of_seeds(group, "examples")))


def _held_out(group: Group) -> tuple[str, "pd.Series[float]"]:
    """Error or accuracy on held-out examples, with its key in the log, such as "val/error"; by seed."""
    metrics = [record.get("metrics") or {} for record in group.records]
    keys = [next((key for key in HELD_OUT if of_seed.get(key) is not None), "") for of_seed in metrics]
    values = series(of_seed.get(key) for key, of_seed in zip(keys, metrics, strict=True))
    return next(filter(None, keys), ""), values


def _methods(groups: Iterable[Group]) -> Iterator[str]:
    """How the angles were measured, as sentences: one if it was the same for all records."""
    for kind, template in METHODS.items():
        texts: dict[str, dict[str, None]] = defaultdict(dict)
        for group in groups:
            for found in filter(None, (record["robustness"].get(kind) for record in group.records)):
                percent = {key: 100 * found[key] for key in ("confidence", "share") if key in found}
                texts[template.format(**found | percent)][cells.row_text(group.row)] = None
        for text, of_rows in texts.items():
            where = f" ({'; '.join(of_rows)})" if len(texts) > 1 else ""
            yield f"{kind.capitalize()}{where}: {text}."


def _record(group: Group) -> dict[str, Any]:
    """Means over seeds, and the ends of their range."""
    found: dict[str, Any] = {"n": len(group.records), "runs": " ".join(r["run_id"] for r in group.records)}
    found |= spread("errors", _of_seeds(group, "errors"))
    found["examples"] = " ".join(f"{value:.0f}" for value in _examples(group))
    for kind in MARKERS:
        found |= {**spread(f"{kind}_angle", angles(group, kind)), f"{kind}_n": len(angles(group, kind))}
    found["adversarial_first_order"] = _of_seeds(group, "adversarial", "first_order").mean()
    for key in ("confidence", "share", "draws"):
        found[f"random_{key}"] = " ".join(dict.fromkeys(map(exact, _of_seeds(group, "random", key))))
    key, values = _held_out(group)
    of_values = spread("held_out", values)
    return {**found, "held_out": key, "held_out_mean": of_values.pop("held_out"), **of_values}


# Figure


def robustness_figure(evidence: Evidence) -> Figure:
    """Share of fitted training examples made wrong against the angle, and the measured angles as marks at the top."""
    return figure_by_task(evidence, TITLE, _draw)


def figure_by_task(evidence: Evidence, title: str, draw: Any) -> Figure:
    """A panel per task with the networks whose robustness was measured; also for the bound."""

    def lines(groups: Sequence[Group]) -> Iterator[panels.Line]:
        if groups:
            yield [(cells.row_text(row), partial(draw, of, panels.colours(of))) for row, of in rows(groups).items()]

    return panels.figure(evidence, "robustness", title, panels.TALL, lines, share=False, over_seeds=True)


def _draw(groups: Sequence[Group], palette: dict[str, str], axes: Axes) -> Iterator[str]:
    for place, group in enumerate(groups):
        colour = palette[group.label]
        curves: dict[tuple[float, ...], list[list[float]]] = defaultdict(list)  # shares of each seed, by their angles
        for record in group.records:
            points = [(at, share) for at, share in record["robustness"].get("curve") or [] if at and share is not None]
            if points:
                curves[tuple(at for at, _ in points)].append([share for _, share in points])
        for at, seeds in curves.items():
            middle, low, high = (over(seeds, axis=0) for over in (np.mean, np.min, np.max))
            band(
                axes,
                at,
                middle,
                (low, high) if len(seeds) > 1 else None,
                colour,
                group,
                f"{group.label}, n = {len(seeds)}",
                marker=".",
            )
        height = 0.97 - 0.045 * place
        for kind, marker in MARKERS.items():
            for found in drawn_angles(group, kind):
                axes.plot(found, height, marker, color=colour, markersize=4, transform=axes.get_xaxis_transform())
    handles = axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", xlabel="angle by up to which all neurons are turned (radians)")
    axes.set_yscale("symlog", linthresh=LEAST_SHARE)
    axes.set(ylabel="share of fitted training examples made wrong", ylim=(-LEAST_SHARE / 5, 30))
    axes.set_yticks([0, *(10.0**power for power in range(-5, 1))], minor=False)
    axes.set_yticks([], minor=True)
    style.legend_below(axes, handles=[*handles, *marker_legend()])
    return angle_notes(groups, "fitted examples alone")


def drawn_angles(group: Group, *kinds: str) -> list[float]:
    """The angles of these kinds that are large enough to be drawn."""
    return [found for kind in kinds for found in angles(group, kind) if found >= LEAST_ANGLE]


def marker_legend() -> list[Line2D]:
    look: Any = {"linestyle": "none", "color": BLACK, "markersize": 4}
    return [Line2D([], [], marker=marker, label=f"{kind} angle", **look) for kind, marker in MARKERS.items()]


def angle_notes(groups: Sequence[Group], effect_of_errors: str) -> Iterator[str]:
    """Notes on angles that are not drawn, and on training errors."""
    for kind in MARKERS:
        least = {group.name: angles(group, kind).min() for group in groups}
        if small := [f"{name} {short(found)}" for name, found in least.items() if found < LEAST_ANGLE]:
            yield f"not drawn, {kind} angle: {', '.join(small)}"
        if without := [name for name, found in least.items() if pd.isna(found)]:
            yield f"no {kind} angle: {', '.join(without)}"
    errors = [(group.name, [f"{count:,.0f}" for count in _of_seeds(group, "errors") if count]) for group in groups]
    if wrong := [f"{name} {', '.join(counts)}" for name, counts in errors if counts]:
        yield f"training errors ({effect_of_errors}): {'; '.join(wrong)}"
