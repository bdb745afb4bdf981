"""The generalisation bound (Theorem 1) for trained networks, and what it would take for it to be useful."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Printed, Text
from nero.report.theory import robustness, tables
from nero.report.theory.evidence import LINKS, Evidence, Group
from nero.report.theory.panels import BLACK, band
from nero.report.theory.tables import short
from nero.theory import pac_bayes
from nero.theory.caps import log_cap, log_cap_lower_bound
from nero.theory.pac_bayes import Bound, Cap, Spheres
from nero.theory.records import Record

TITLE = "The generalisation bound (Theorem 1, Equations 5 and 6) at measured angles"
DELTA = 0.05  # the bound holds for a share 1 - delta of training sets
ERROR = 0.1  # the bound to aim at, where the table says what that takes
# The measure of a cap, and the lower bound of it that the paper uses (Ball 1997, Lemma 2.3).
CAPS: dict[str, Cap] = {"exact": log_cap, "ball": log_cap_lower_bound}
TINY = 1e-100  # if an angle this small suffices, any does
GRID = 121  # points of a curve

NOTES = (
    "One line per network and angle; in brackets with Ball's lower bound of a cap's measure, which the paper uses. "
    f"P[V_S]: of the version space, at least one solution's caps (K = 1). Delta is {DELTA:g}. Certified: no rotation "
    "by up to this angle makes an error, so that the network is robust in the sense of Definition 6. Adversarial: a "
    "rotation by this angle does make an error, so that Definition 6's alpha is smaller, and no product of alpha-caps "
    "with K = 1 gives a better bound than this line; it is no bound itself. Random: a share of the caps fits the data "
    "(its ln is in ln P[V_S]), as draws show with their confidence, so that the line holds with a probability of at "
    "least 1 - delta - (1 - confidence). Error at most: 1 - exp(-right side), with its verdict: vacuous if guessing "
    "among the classes does as well. Angle needed: the least at which one robust solution beats guessing. Parameters: "
    "the weights of neurons, m times d. n needed: if the angle stayed the same with more examples. The theorem bounds "
    "the mean error over the version space, not that of the one network."
)
NOT_COVERED = (
    "Learnt, but held fixed here: {}. The theorem's prior is over directions of neurons alone and has to be fixed "
    "before the data are seen: with these fixed in hindsight the numbers are a bound for a prior that knew the data, "
    "and no guarantee."
)
ERRORS = (
    "A network with training errors is no zero-error solution: the theorem does not apply to it, and its angles are "
    "for the examples that it has fitted alone."
)


class Case:
    """One trained network: its spheres, and its numbers of examples, errors and classes."""

    def __init__(self, group: Group, record: Record) -> None:
        found = record["robustness"]
        self.group, self.record, self.beyond = group, record, found["beyond"]
        self.examples, self.errors, self.classes = (found[key] for key in ("examples", "errors", "classes"))
        self.spheres = [Spheres(layer["neurons"], layer["dim"]) for layer in found["layers"]]
        self.neurons = sum(layer["neurons"] for layer in found["layers"])
        # Weights of neurons: m times d, if all have the same fan-in.
        self.parameters = sum(layer["neurons"] * layer["fan_in"] for layer in found["layers"])

    @cached_property
    def critical(self) -> list[float | None]:
        """The least angle at which one robust solution beats guessing, for each of CAPS."""
        guessing, n = 1 - 1 / self.classes, self.examples
        return [pac_bayes.critical_angle(self.spheres, n, DELTA, guessing, cap) for cap in CAPS.values()]

    def bound(self, angle: float, cap: Cap, log_share: float = 0.0) -> tuple[float, Bound]:
        """ln of the measure of the version space, and the bound that follows."""
        log_measure = pac_bayes.log_version_space(self.spheres, angle, log_share=log_share, cap=cap)
        return log_measure, pac_bayes.realisable_bound(log_measure, self.examples, DELTA)


def _cases(groups: Iterable[Group]) -> list[Case]:
    return [Case(group, record) for group in groups for record in group.records]


class AtAngle:
    """What follows from one kind of angle of a network.

    numbers:       by column of the CSV; empty where there is no angle, or there are training errors
    shown, first:  whether it is a line of the table, and the network's first: only perceptrons have certified angles
    """

    def __init__(self, case: Case, kind: str) -> None:
        found = case.record["robustness"]
        self.case, self.kind, self.angle = case, kind, robustness.angle(case.record, kind)
        self.shown = kind != "certified" or bool(found.get("certified"))
        self.first = kind == ("certified" if found.get("certified") else "adversarial")
        self.verdict, self.numbers = "does not apply" if case.errors else "", dict[str, float]()
        if self.angle is None or case.errors:
            return
        share, confidence = (found[kind]["share"], found[kind]["confidence"]) if kind == "random" else (1.0, 1.0)
        self.numbers["probability"] = 1 - DELTA - (1 - confidence)
        for name, cap in CAPS.items():
            log_measure, bound = case.bound(self.angle, cap, math.log(share))
            numbers = {"log_measure": log_measure, "nats": bound.nats, "error": bound.error}
            self.numbers |= {f"{key}_{name}": value for key, value in numbers.items()}
        self.verdict = "vacuous" if Bound(self.numbers["nats_exact"]).is_vacuous(case.classes) else "bounds the error"
        log_measure = self.numbers["log_measure_exact"]
        solutions = pac_bayes.log_solutions_needed(log_measure, case.examples, DELTA, ERROR)
        self.numbers |= {
            "log_solutions_needed": solutions,
            "log_solutions_needed_per_parameter": solutions / case.parameters,
            "examples_needed": float(pac_bayes.examples_needed(log_measure, DELTA, ERROR)),
        }


# Table

Column = Callable[[AtAngle], Text | str]


def error_text(nats: float) -> str:
    """Such as "12.3 %", or "1 - 10^-87" where that would round to one."""
    if nats < math.log(1000):
        return f"{short(100 * Bound(nats).error)} %"
    return f"1 - 10^-{nats / math.log(10):,.0f}" if math.isfinite(nats) else "1"


def _first(text: Callable[[Case], Text | str]) -> Column:
    """A column that is the same for all angles of a network."""
    return lambda at: text(at.case) if at.first else ""


def _by_cap(key: str, text: Callable[[float], str] = short) -> Callable[[AtAngle], Text]:
    """A column with exact caps and, in brackets, with Ball's bound."""

    def column(at: AtAngle) -> Text:
        if errors := at.case.errors:
            return Text(f"does not apply ({errors:,} error{'s' if errors > 1 else ''})")
        found = [text(at.numbers[f"{key}_{name}"]) for name in CAPS if at.numbers]
        return Text(found[0], f"Ball {found[1]}") if found else Text("")

    return column


def _needed(key: str, infinite: str, text: Callable[[float], str] = short) -> Column:
    def column(at: AtAngle) -> str:
        needed = at.numbers.get(key)
        return "" if needed is None else infinite if math.isinf(needed) else text(needed)

    return column


def _network_text(case: Case) -> Text:
    links = [link for link in case.group.links if link.run_id == case.record["run_id"]]
    return Text(f"{case.group.label}, seed {case.record['seed']}", link=links[0] if links else None)


def _angle_text(at: AtAngle) -> str:
    return f"{at.kind}: {short(at.angle) or robustness.no_angle_text([at.case.record], at.kind)}"


def _verdict_text(at: AtAngle) -> Text:
    errors = _by_cap("nats", error_text)(at)
    return Text("vacuous", f"{errors.value}; {errors.detail}") if at.verdict == "vacuous" else errors


def _critical_text(case: Case) -> Text:
    exact, ball = ("none" if a is None else short(a) if a > TINY else "any" for a in case.critical)
    return Text(exact, f"Ball {ball}")


COLUMNS: tables.Columns = {
    "optimiser": _first(_network_text),
    "n": _first(lambda case: f"{case.examples:,}"),
    "neurons m": _first(lambda case: f"{case.neurons:,}"),
    "parameters": _first(lambda case: f"{case.parameters:,}"),
    "angle (radians)": _angle_text,
    "ln P[V_S]": _by_cap("log_measure"),
    "right side of Theorem 1 (nats)": _by_cap("nats"),
    "error at most": _verdict_text,
    "angle needed to beat guessing": _first(_critical_text),
    f"ln K needed, per parameter, for {100 * ERROR:g} %": _needed(
        "log_solutions_needed_per_parameter", "no K suffices"
    ),
    f"n needed for {100 * ERROR:g} %": _needed(
        "examples_needed", "none suffices", lambda n: f"{n:,.0f}" if n < 1e6 else short(n)
    ),
}


def bound_table(evidence: Evidence) -> Printed:
    """A line per network and angle."""

    def notes(groups: Sequence[Group]) -> list[str]:
        return [NOTES, LINKS, *_remarks(groups)]

    def items(group: Group) -> Iterator[AtAngle]:
        return (AtAngle(case, kind) for case in _cases([group]) for kind in robustness.MARKERS)

    shown = attrgetter("shown")
    return tables.build(evidence, "robustness", "theory_bound", TITLE, COLUMNS, notes, items, _record, shown)


def _remarks(groups: Iterable[Group]) -> Iterator[str]:
    """What the numbers leave out, and for which networks."""
    beyond: dict[str, dict[str, dict[str, None]]] = {}  # parameters -> row -> names of optimisers
    for case in (cases := _cases(groups)):
        if case.beyond:
            by_row = beyond.setdefault(", ".join(case.beyond), defaultdict(dict))
            by_row[cells.row_text(case.group.row)][case.group.name] = None
    if beyond:
        rows = {
            what: "; ".join(f"{row}: {', '.join(names)}" for row, names in by.items()) for what, by in beyond.items()
        }
        yield NOT_COVERED.format("; ".join(f"{what} ({of_rows})" for what, of_rows in rows.items()))
    if any(case.errors for case in cases):
        yield ERRORS


def _record(at: AtAngle) -> dict[str, Any]:
    case, record = at.case, at.case.record
    found: dict[str, Any] = {
        "seeds": record["seed"],
        "epochs_done": str(record["epochs_done"]),
        "run": record["run_id"],
        **{key: getattr(case, key) for key in ("examples", "errors", "classes", "neurons", "parameters")},
        "beyond": " ".join(case.beyond),
        "kind": at.kind,
        "angle": at.angle,
        "delta": DELTA,
        "probability": None,
        "verdict": at.verdict,
    }
    for name, critical in zip(CAPS, case.critical, strict=True):
        found |= dict.fromkeys((f"log_measure_{name}", f"nats_{name}", f"error_{name}"))
        found[f"critical_angle_{name}"] = critical
    found |= dict.fromkeys(("log_solutions_needed", "log_solutions_needed_per_parameter", "examples_needed"))
    return found | at.numbers


# Figure


def bound_figure(evidence: Evidence) -> Figure:
    """The bound in nats against the angle, exact and by Ball's bound, and the measured angles as marks on it."""
    title = f"Right side of Theorem 1 against the angle of robustness (delta = {DELTA:g})"
    return robustness.figure_by_task(evidence, title, _draw)


def _draw(groups: Sequence[Group], palette: dict[str, str], axes: Axes) -> Iterator[str]:
    measured = [found for group in groups for found in robustness.drawn_angles(group, *robustness.MARKERS)]
    angles = np.geomspace(min([1e-2, *measured]) / 1.5, math.pi, GRID).clip(max=math.pi)
    # Curves of the same sizes look the same: centred neurons have one dimension less, of hundreds.
    drawn: dict[tuple[int, int, int], int] = {}
    for case in _cases(groups):
        group, colour = case.group, palette[case.group.label]
        sizes = case.neurons, case.parameters, case.examples
        if sizes not in drawn:
            drawn[sizes] = case.classes
            looks = zip(CAPS.values(), ("exact caps", "Ball’s bound"), (style.OURS, style.VARIANT), strict=True)
            for cap, name, linestyle in looks:
                nats = [case.bound(float(angle), cap)[1].nats for angle in angles]
                label = f"{name} ({case.neurons:,} neurons, {group.name}'s spheres)"
                band(axes, angles, nats, None, colour, group, label, linestyle)
        for kind, marker in robustness.MARKERS.items():
            at = AtAngle(case, kind)
            if at.numbers and at.angle is not None and at.angle >= robustness.LEAST_ANGLE:
                axes.plot(at.angle, at.numbers["nats_exact"], marker, color=colour, markersize=5)
    for classes in sorted(set(drawn.values())):
        axes.axhline(math.log(classes), color=BLACK, linewidth=0.8, label=f"guessing among {classes} classes")
    handles = axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", yscale="log", xlabel="angle (radians)", ylabel="right side of Theorem 1 (nats)")
    own = [Line2D([], [], marker="s", linestyle="none", color=palette[g.label], label=g.label) for g in groups]
    style.legend_below(axes, handles=[*handles, *own, *robustness.marker_legend()])
    return robustness.angle_notes(groups, "the theorem does not apply")
