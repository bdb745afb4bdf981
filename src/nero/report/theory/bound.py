"""The generalisation bound (Theorem 1) for trained networks, and what it would take for it to be useful."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nero.report import cells
from nero.report.figures import style
from nero.report.tables.sheets import Line, Printed, Text, exact
from nero.report.theory import robustness, tables
from nero.report.theory.evidence import LINKS, Evidence, Group, absent
from nero.report.theory.panels import BLACK, band
from nero.report.theory.tables import short
from nero.theory import pac_bayes
from nero.theory.caps import log_cap, log_cap_lower_bound
from nero.theory.pac_bayes import Bound, Cap, Spheres
from nero.theory.records import NETWORKS, Record

DELTA = 0.05
"""The bound holds for a share 1 - delta of training sets."""

ERROR = 0.1
"""The bound to aim at, where the table says what that takes."""

CAPS: dict[str, Cap] = {"exact": log_cap, "Ball": log_cap_lower_bound}
"""The measure of a cap, and the lower bound of it that the paper uses (Ball 1997, Lemma 2.3)."""

TINY = 1e-100
"""If an angle this small suffices, any does."""

GRID = 121  # points of a curve

HEADS = [
    "task",
    "optimiser",
    "n",
    "neurons m",
    "parameters",
    "angle (radians)",
    "ln P[V_S]",
    "right side of Theorem 1 (nats)",
    "error at most",
    "angle needed to beat guessing",
    f"ln K needed, per parameter, for {100 * ERROR:g} %",
    f"n needed for {100 * ERROR:g} %",
]
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


@dataclass(frozen=True)
class Case:
    """One trained network: its spheres, and its numbers of examples, errors and classes."""

    spheres: tuple[Spheres, ...]
    parameters: int  # weights of neurons: m times d, if all have the same fan-in
    examples: int
    errors: int
    classes: int
    beyond: tuple[str, ...]  # learnt parameters that the prior does not cover

    @classmethod
    def of(cls, record: Record) -> "Case":
        found = record["robustness"]
        layers = found["layers"]
        return cls(
            tuple(Spheres(layer["neurons"], layer["dim"]) for layer in layers),
            sum(layer["neurons"] * layer["fan_in"] for layer in layers),
            found["examples"],
            found["errors"],
            found["classes"],
            tuple(found["beyond"]),
        )

    @property
    def neurons(self) -> int:
        return sum(layer.neurons for layer in self.spheres)

    def log_measure(self, angle: float, cap: Cap, log_share: float = 0.0) -> float:
        return pac_bayes.log_version_space(self.spheres, angle, log_share=log_share, cap=cap)

    def bound(self, angle: float, cap: Cap, log_share: float = 0.0) -> Bound:
        return pac_bayes.realisable_bound(self.log_measure(angle, cap, log_share), self.examples, DELTA)

    def critical(self, cap: Cap) -> float | None:
        """The least angle at which one robust solution beats guessing."""
        return pac_bayes.critical_angle(self.spheres, self.examples, DELTA, 1 - 1 / self.classes, cap)


@dataclass(frozen=True)
class AtAngle:
    """What follows from a measured angle of a network without training errors."""

    case: Case
    angle: float
    log_share: float  # ln of the share of the caps that fits the data
    probability: float  # with which the statement holds, over training sets and draws

    @cached_property
    def log_measures(self) -> dict[str, float]:
        return {name: self.case.log_measure(self.angle, cap, self.log_share) for name, cap in CAPS.items()}

    @cached_property
    def bounds(self) -> dict[str, Bound]:
        return {name: self.case.bound(self.angle, cap, self.log_share) for name, cap in CAPS.items()}

    @property
    def is_vacuous(self) -> bool:
        """Even with the exact measure."""
        return self.bounds["exact"].is_vacuous(self.case.classes)

    @property
    def log_solutions_needed(self) -> float:
        """ln K for ERROR."""
        case = self.case
        return pac_bayes.log_solutions_needed(case.spheres, self.angle, case.examples, DELTA, ERROR, self.log_share)

    @property
    def examples_needed(self) -> float:
        """For ERROR, if the angle stayed the same with more examples."""
        return pac_bayes.examples_needed(self.case.spheres, self.angle, DELTA, ERROR, log_share=self.log_share)


def _at_angles(record: Record) -> dict[str, AtAngle | None]:
    """By kind of angle; None where there is none."""
    found: dict[str, AtAngle | None] = dict.fromkeys(robustness.KINDS)
    for kind in robustness.KINDS:
        if (of_kind := robustness.angle(record, kind)) is not None:
            how = record["robustness"][kind]
            share, confidence = (how["share"], how["confidence"]) if kind == "random" else (1.0, 1.0)
            found[kind] = AtAngle(Case.of(record), of_kind, math.log(share), 1 - DELTA - (1 - confidence))
    return found


# Table


def bound_table(evidence: Evidence) -> Printed:
    """A line per network and angle."""
    groups, without = evidence.measured("robustness"), evidence.unmeasured("robustness")
    notes = " ".join([NOTES, LINKS, *_remarks(groups)]) if groups else absent(NETWORKS)
    if without:
        notes += f" Not measured: {without}."

    def lines(group: Group) -> Iterator[Line]:
        return (line for record in group.records for line in _lines(evidence, group, record))

    title = "The generalisation bound (Theorem 1, Equations 5 and 6) at measured angles"
    return tables.build(evidence, "theory_bound", title, HEADS, 2, notes, groups, lines, _records)


def _remarks(groups: Iterable[Group]) -> Iterator[str]:
    """What the numbers leave out, and for which networks."""
    beyond: dict[str, dict[str, dict[str, None]]] = {}  # parameters -> row -> names of optimisers
    errors = False
    for group in groups:
        for case in map(Case.of, group.records):
            errors = errors or case.errors > 0
            if case.beyond:
                by_row = beyond.setdefault(", ".join(case.beyond), {})
                by_row.setdefault(cells.row_text(group.row), {})[group.name] = None
    if beyond:
        texts = [
            f"{what} ({'; '.join(f'{row}: ' + ', '.join(names) for row, names in by_row.items())})"
            for what, by_row in beyond.items()
        ]
        yield NOT_COVERED.format("; ".join(texts))
    if errors:
        yield ERRORS


def _lines(evidence: Evidence, group: Group, record: Record) -> Iterator[Line]:
    case = Case.of(record)
    links = [link for link in group.links(evidence.store) if link.run_id == record["run_id"]]
    first = [
        Text(f"{group.label}, seed {record['seed']}", link=links[0] if links else None),
        *(Text(f"{value:,}") for value in (case.examples, case.neurons, case.parameters)),
    ]
    critical = _by_cap({name: _angle_text(case.critical(cap)) for name, cap in CAPS.items()})
    for kind, at in _at_angles(record).items():
        if kind == "certified" and not record["robustness"].get(kind):
            continue
        measure, right_side, verdict, solutions, examples = _at_angle_line(case, at)
        text = Text(f"{kind}: {short(at.angle) if at else robustness.no_angle_text([record], kind)}")
        yield [*first, text, measure, right_side, verdict, critical, solutions, examples]
        first, critical = [Text("")] * len(first), Text("")


def _at_angle_line(case: Case, at: AtAngle | None) -> Line:
    """Measure, right side, verdict, ln K and n."""
    if case.errors:
        return [Text(f"does not apply ({case.errors:,} error{'s' if case.errors > 1 else ''})")] * 3 + [Text("")] * 2
    if at is None:
        return [Text("")] * 5
    errors = {name: error_text(bound) for name, bound in at.bounds.items()}
    both = _by_cap(errors)
    solutions, examples = at.log_solutions_needed, at.examples_needed
    return [
        _by_cap({name: short(value) for name, value in at.log_measures.items()}),
        _by_cap({name: short(bound.nats) for name, bound in at.bounds.items()}),
        Text("vacuous", f"{both.value}; {both.detail}") if at.is_vacuous else both,
        Text("no K suffices" if math.isinf(solutions) else short(solutions / case.parameters)),
        Text(_count_text(examples)),
    ]


def _by_cap(texts: Mapping[str, str]) -> Text:
    return Text(texts["exact"], f"Ball {texts['Ball']}")


def error_text(bound: Bound) -> str:
    """Such as "12.3 %", or "1 - 10^-87" where that would round to one."""
    if bound.nats < math.log(1000):
        return f"{short(100 * bound.error)} %"
    return f"1 - 10^-{bound.nats / math.log(10):,.0f}" if math.isfinite(bound.nats) else "1"


def _angle_text(found: float | None) -> str:
    if found is None:
        return "none"
    return short(found) if found > TINY else "any"


def _count_text(needed: float) -> str:
    return "none suffices" if math.isinf(needed) else f"{needed:,.0f}" if needed < 1e6 else short(float(needed))


def _records(group: Group) -> Iterator[dict[str, str]]:
    for record in group.records:
        case = Case.of(record)
        for kind, measured in _at_angles(record).items():
            at = measured if not case.errors else None
            verdict = "vacuous" if at and at.is_vacuous else "bounds the error" if at else ""
            found = {
                "seeds": str(record["seed"]),
                "epochs_done": str(record["epochs_done"]),
                "run": record["run_id"],
                "examples": str(case.examples),
                "errors": str(case.errors),
                "classes": str(case.classes),
                "neurons": str(case.neurons),
                "parameters": str(case.parameters),
                "beyond": " ".join(case.beyond),
                "kind": kind,
                "angle": exact(robustness.angle(record, kind)),
                "delta": exact(DELTA),
                "probability": exact(at.probability if at else None),
                "verdict": "does not apply" if case.errors else verdict,
            }
            for name, cap in CAPS.items():
                key = name.lower()
                found |= {
                    f"log_measure_{key}": exact(at.log_measures[name] if at else None),
                    f"nats_{key}": exact(at.bounds[name].nats if at else None),
                    f"error_{key}": exact(at.bounds[name].error if at else None),
                    f"critical_angle_{key}": exact(case.critical(cap)),
                }
            needed = at.log_solutions_needed if at else None
            per_parameter = None if needed is None else needed / case.parameters
            yield found | {
                "log_solutions_needed": exact(needed),
                "log_solutions_needed_per_parameter": exact(per_parameter),
                "examples_needed": exact(at.examples_needed if at else None),
            }


# Figure


@style.house_style()
def bound_figure(evidence: Evidence) -> Figure:
    """The bound in nats against the angle, exact and by Ball's bound, and the measured angles as marks on it."""
    title = f"Right side of Theorem 1 against the angle of robustness (delta = {DELTA:g})"
    return robustness.figure_by_task(evidence, title, _draw)


def _draw(axes: Axes, groups: Sequence[Group], palette: Mapping[str, str]) -> Iterator[str]:
    measured = [found for group in groups for found in robustness.drawn_angles(group)]
    angles = np.geomspace(min([1e-2, *measured]) / 1.5, math.pi, GRID).clip(max=math.pi)
    # Curves of the same sizes look the same: centred neurons have one dimension less, of hundreds.
    drawn: dict[tuple[int, int, int], int] = {}
    for group in groups:
        colour = palette[group.label]
        for record in group.records:
            case = Case.of(record)
            if (case.neurons, case.parameters, case.examples) not in drawn:
                drawn[case.neurons, case.parameters, case.examples] = case.classes
                _draw_curves(axes, group, case, angles, colour)
            for kind, at in _at_angles(record).items():
                if not case.errors and at is not None and at.angle >= robustness.LEAST_ANGLE:
                    axes.plot(at.angle, at.bounds["exact"].nats, robustness.MARKERS[kind], color=colour, markersize=5)
    for classes in sorted(set(drawn.values())):
        axes.axhline(math.log(classes), color=BLACK, linewidth=0.8, label=f"guessing among {classes} classes")
    handles = axes.get_legend_handles_labels()[0]
    axes.set(xscale="log", yscale="log", xlabel="angle (radians)", ylabel="right side of Theorem 1 (nats)")
    own = [Line2D([], [], marker="s", linestyle="none", color=palette[g.label], label=g.label) for g in groups]
    style.legend_below(axes, handles=[*handles, *own, *robustness.marker_legend()])
    return robustness.angle_notes(groups, "the theorem does not apply")


def _draw_curves(axes: Axes, group: Group, case: Case, angles: np.ndarray, colour: str) -> None:
    for (name, cap), linestyle in zip(CAPS.items(), (style.OURS, style.VARIANT), strict=True):
        nats = [case.bound(float(found), cap).nats for found in angles]
        spheres = f"{case.neurons:,} neurons, {group.name}'s spheres"
        label = f"{'exact caps' if name == 'exact' else 'Ball’s bound'} ({spheres})"
        band(axes, angles.tolist(), nats, None, colour, group, label, linestyle)
