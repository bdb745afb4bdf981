"""Angular robustness: how far all neurons of a trained network can be turned before it errs on training examples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, Text, exact
from nero.report.theory import tables
from nero.report.theory.evidence import LINKS, Evidence, Group, absent, precision_text
from nero.report.theory.panels import BLACK, DrawTask, band, by_task, nothing
from nero.report.theory.tables import known, mean, seeds_text, short, spread
from nero.report.units import number, scale
from nero.theory.records import NETWORKS, Record

KINDS = ("certified", "adversarial", "random")
"""Angles: a lower bound, an upper bound, and one that holds for nearly all rotations."""

HEADS = [
    "task",
    "optimiser",
    "seeds",
    "epochs",
    "training errors",
    "of examples",
    "certified angle, from below (radians)",
    "adversarial angle, from above (radians)",
    "random angle (radians)",
    "on held-out examples",
]
NOTES = (
    "Angles by which all neurons may be turned at once, in radians; mean over seeds, and their range in brackets. "
    "Certified: no rotation by up to this angle makes an error on an example that the network had right, so that the "
    "alpha of Definition 6 is at least as large; for perceptrons only. Adversarial: the smallest rotation found that "
    "makes one, so that alpha is smaller. Definition 6 is for a network without any training error: where there are "
    "errors, the angles are for the fitted examples alone. Training examples are seen without augmentation."
)
TITLE = "Errors that random rotations of all neurons make (Definition 6), mean and range over seeds"
MARKERS = {"certified": ">", "adversarial": "<", "random": "o"}
"""Definition 6's alpha lies between the first two."""

LEAST_ANGLE = 1e-6
"""Smaller angles are not drawn but noted."""

LEAST_SHARE = 1e-5
"""Of examples, up to which the scale of errors is linear."""


def angle(record: Record, kind: str) -> float | None:
    """One of KINDS; None where it was not measured, and where no angle was found."""
    return (record["robustness"].get(kind) or {}).get("angle") or None


def no_angle_text(records: Iterable[Record], kind: str) -> str:
    """Why there is no angle of a kind."""
    if any(record["robustness"].get(kind) for record in records):
        return "none found"
    return "none up to a right angle" if kind == "adversarial" else "not measured"


# Table


def robustness_table(evidence: Evidence) -> Printed:
    """A line per optimiser."""

    def lines(group: Group) -> Iterator[Line]:
        count = len(group.records)
        angles = {kind: known(angle(record, kind) for record in group.records) for kind in KINDS}
        yield [
            Text(group.label),
            Text(str(count), runs=group.links(evidence.store)),
            Text(group.epochs),
            _errors_text(_of_seeds(group, "errors")),
            Text(", ".join(f"{value:,.0f}" for value in _examples(group))),
            *(seeds_text(found, count, no_angle_text(group.records, kind)) for kind, found in angles.items()),
            _held_out_text(group),
        ]

    groups, without = evidence.measured("robustness"), evidence.unmeasured("robustness")
    notes = " ".join([NOTES, LINKS, *_methods(groups), precision_text(groups)]) if groups else absent(NETWORKS)
    if without:
        notes += f" Not measured: {without}."
    title = "Angular robustness of trained networks (Definition 6)"
    return tables.build(evidence, "theory_robustness", title, HEADS, 2, notes, groups, lines, _records)


def _of_seeds(group: Group, key: str) -> list[float]:
    return known(record["robustness"].get(key) for record in group.records)


def _examples(group: Group) -> list[float]:
    return sorted(set(_of_seeds(group, "examples")))


def _errors_text(errors: list[float]) -> Text:
    """Integers, except for the mean of different ones."""
    ends = f"{min(errors):,.0f} to {max(errors):,.0f}" if min(errors) != max(errors) else ""
    return Text(f"{mean(errors):,.{1 if ends else 0}f}", ends)


def _held_out(group: Group) -> tuple[str, list[float]]:
    """Error or accuracy on held-out examples, with its key in the log, such as "val/error"; by seed."""
    keys = [f"{split}/{metric}" for split in ("test", "val") for metric in ("error", "accuracy")]
    found = []
    for record in group.records:
        metrics = record.get("metrics") or {}
        found += [(key, float(metrics[key])) for key in keys if metrics.get(key) is not None][:1]
    return found[0][0] if found else "", [value for _, value in found]


def _held_out_text(group: Group) -> Text:
    key, found = _held_out(group)
    if not found:
        return Text("")
    values = [scale(key) * value for value in found]
    ends = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
    return Text(f"{number(mean(values) or 0.0)} % {key.replace('/', ' ')}", ends)


def _methods(groups: Iterable[Group]) -> Iterator[str]:
    """How the angles were measured, as sentences: one if it was the same for all records."""
    describe = {"random": _describe_random, "adversarial": _describe_attack}
    found = [(cells.row_text(group.row), record["robustness"]) for group in groups for record in group.records]
    for kind, text_of in describe.items():
        texts: dict[str, dict[str, None]] = {}
        for row, robustness in found:
            if robustness.get(kind):
                texts.setdefault(text_of(robustness[kind]), {})[row] = None
        for text, of_rows in texts.items():
            where = f" ({'; '.join(of_rows)})" if len(texts) > 1 else ""
            yield f"{kind.capitalize()}{where}: {text}."


def _describe_random(random: dict[str, Any]) -> str:
    return (
        f"with {100 * random['confidence']:g} % confidence, at least {100 * random['share']:g} % of the rotations by "
        "up to this angle, drawn evenly from the neurons' caps, leave every fitted example right"
    )


def _describe_attack(attack: dict[str, Any]) -> str:
    return (
        f"gradient steps on the spheres, {attack['steps']} for an angle, against each of {attack['attacked']} examples"
    )


def _records(group: Group) -> Iterator[dict[str, str]]:
    """Means over seeds, and the ends of their range."""
    found = {"n": str(len(group.records)), "runs": " ".join(record["run_id"] for record in group.records)}
    found |= spread("errors", _of_seeds(group, "errors"))
    found["examples"] = " ".join(f"{value:.0f}" for value in _examples(group))
    for kind in KINDS:
        values = known(angle(record, kind) for record in group.records)
        found |= {**spread(f"{kind}_angle", values), f"{kind}_n": str(len(values))}
    first_order = known((record["robustness"].get("adversarial") or {}).get("first_order") for record in group.records)
    found["adversarial_first_order"] = exact(mean(first_order))
    for key in ("confidence", "share", "draws"):
        values = known((record["robustness"].get("random") or {}).get(key) for record in group.records)
        found[f"random_{key}"] = " ".join(dict.fromkeys(map(exact, values)))
    key, values = _held_out(group)
    of_values = spread("held_out", values)
    yield {**found, "held_out": key, "held_out_mean": of_values.pop("held_out"), **of_values}


# Figure


@style.house_style()
def robustness_figure(evidence: Evidence) -> Figure:
    """Share of fitted training examples made wrong against the angle, and the measured angles as marks at the top."""
    return figure_by_task(evidence, TITLE, _draw)


def figure_by_task(evidence: Evidence, title: str, draw: DrawTask) -> Figure:
    """A panel per task with the networks whose robustness was measured; also for the bound."""
    measured, without = evidence.measured("robustness"), evidence.unmeasured("robustness")
    if not measured:
        return nothing(evidence, title, f"Not measured: {without}." if without else absent(NETWORKS))
    return by_task(evidence, f"{title}\n(not measured: {without})" if without else title, measured, draw)


def _draw(axes: Axes, groups: Sequence[Group], palette: Mapping[str, str]) -> Iterator[str]:
    for place, group in enumerate(groups):
        colour = palette[group.label]
        for angles, seeds in _curves(group).items():
            shares = np.array(seeds, dtype=float)
            middle, low, high = (over(shares, axis=0).tolist() for over in (np.mean, np.min, np.max))
            label = f"{group.label}, n = {len(seeds)}"
            band(axes, angles, middle, (low, high), colour, group, label, marker=".")
        height = 0.97 - 0.045 * place
        for kind, marker in MARKERS.items():
            for found in drawn_angles(group, [kind]):
                axes.plot(found, height, marker, color=colour, markersize=4, transform=axes.get_xaxis_transform())
    handles = axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", xlabel="angle by up to which all neurons are turned (radians)")
    axes.set_yscale("symlog", linthresh=LEAST_SHARE)
    axes.set(ylabel="share of fitted training examples made wrong", ylim=(-LEAST_SHARE / 5, 30))
    axes.set_yticks([0, *(10.0**power for power in range(-5, 1))], minor=False)
    axes.set_yticks([], minor=True)
    style.legend_below(axes, handles=[*handles, *marker_legend()])
    return angle_notes(groups, "fitted examples alone")


def _curves(group: Group) -> dict[tuple[float, ...], list[list[float]]]:
    """Shares by the angles at which they were measured, a list per seed."""
    found: dict[tuple[float, ...], list[list[float]]] = {}
    for record in group.records:
        points = [(at, share) for at, share in record["robustness"].get("curve") or [] if at and share is not None]
        if points:
            found.setdefault(tuple(at for at, _ in points), []).append([share for _, share in points])
    return found


def drawn_angles(group: Group, kinds: Sequence[str] = KINDS) -> list[float]:
    """The angles that are large enough to be drawn."""
    found = known(angle(record, kind) for kind in kinds for record in group.records)
    return [each for each in found if each >= LEAST_ANGLE]


def marker_legend() -> list[Line2D]:
    look: Any = {"linestyle": "none", "color": BLACK, "markersize": 4}
    return [Line2D([], [], marker=marker, label=f"{kind} angle", **look) for kind, marker in MARKERS.items()]


def angle_notes(groups: Sequence[Group], effect_of_errors: str) -> Iterator[str]:
    """Notes on angles that are not drawn, and on training errors."""
    for kind in KINDS:
        found = {group.name: known(angle(record, kind) for record in group.records) for group in groups}
        small = [
            f"{name} {short(min(angles))}" for name, angles in found.items() if angles and min(angles) < LEAST_ANGLE
        ]
        if small:
            yield f"not drawn, {kind} angle: {', '.join(small)}"
        if without := [name for name, angles in found.items() if not angles]:
            yield f"no {kind} angle: {', '.join(without)}"
    wrong = []
    for group in groups:
        counts = [f"{count:,}" for record in group.records if (count := record["robustness"]["errors"])]
        wrong += [f"{group.name} {', '.join(counts)}"] if counts else []
    if wrong:
        yield f"training errors ({effect_of_errors}): {'; '.join(wrong)}"
