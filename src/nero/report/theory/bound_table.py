"""Table: what Theorem 1 says of trained networks, and what it would take for it to say something."""

import math
from collections.abc import Iterable, Iterator

from nero.report import cells
from nero.report.tables.csv_format import exact
from nero.report.tables.sheets import Line, Printed, Sheet, Text, row_label
from nero.report.theory.bounds import CAPS, DELTA, ERROR, AtAngle, Case, at_angles
from nero.report.theory.evidence import LINKS, Evidence, Group, absent, rows, unmeasured
from nero.report.theory.numbers import short
from nero.report.theory.robustness_table import NOTHING, angle
from nero.theory.pac_bayes import Bound
from nero.theory.records import NETWORKS, Record

NAME = "theory_bound"
TITLE = "The generalisation bound (Theorem 1, Equations 5 and 6) at measured angles"
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
    "Of one network a line for each angle; in brackets with Ball's bound of a cap, which the paper uses, in place of "
    f"its measure. P[V_S]: of the version space, at least one solution's caps (K = 1). Delta is {DELTA:g}. Certified: "
    "no rotation by up to this angle makes an error, so that the network is robust in the sense of Definition 6. "
    "Adversarial: a rotation by this angle does make an error, so that Definition 6's alpha is smaller, and no "
    "product of alpha-caps with K = 1 gives a better bound than this line; it is no bound itself. Random: a share of "
    "the caps fits the data (its ln is in ln P[V_S]), as draws say with their confidence, so that the line holds with "
    "a probability of at least 1 - delta - (1 - confidence). Error at most: 1 - exp(-right side), with its verdict: "
    "vacuous where guessing among the classes does as well. Angle needed: the least at which one robust solution "
    "beats guessing. Parameters: the weights of neurons, m times d. n needed: were the angle the same with more "
    "examples. The theorem bounds the mean error over the version space, not that of the one network."
)
ANY = 1e-100
"""An angle this small stands for all there are."""

NOT_COVERED = (
    "Learnt, and held fixed here: {}. The theorem's prior is over directions of neurons alone and has to be fixed "
    "before the data are seen: with these fixed in hindsight the numbers are a bound for a prior that knew the data, "
    "and no guarantee."
)
ERRORS = (
    "A network with training errors is no zero-error solution: the theorem does not apply to it, and its angles are of "
    "the examples that it has fitted alone."
)


def bound_table(evidence: Evidence) -> Printed:
    """A line per network and angle, a block per task and its settings."""
    measured = [kept for group in evidence.networks if (kept := group.having("robustness"))]
    blocks: list[list[Line]] = []
    records: list[dict[str, str]] = []
    for row, groups in rows(measured).items():
        lines: list[Line] = []
        for group in groups:
            for record in group.records:
                for line in _lines(evidence, group, record):
                    lines.append([row_label(row) if not lines else Text(""), *line])
                records += _records(evidence, group, record)
        blocks.append(lines)
    notes = " ".join([NOTES, LINKS, *_remarks(measured)]) if blocks else absent(NETWORKS)
    if without := unmeasured(evidence.networks, "robustness"):
        notes += f" Not measured: {without}."
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 2), notes, tuple(records), evidence.warning)


def _remarks(groups: Iterable[Group]) -> Iterator[str]:
    """What the numbers leave out, of which networks."""
    whose: dict[str, dict[str, dict[str, None]]] = {}  # what, of which task, of which optimisers
    wrong = False
    for group in groups:
        for record in group.records:
            case = Case.of(record)
            wrong = wrong or case.errors > 0
            if case.beyond:
                of_row = whose.setdefault(", ".join(case.beyond), {}).setdefault(cells.row_text(group.row), {})
                of_row[group.name] = None
    if whose:
        said = [
            f"{what} ({'; '.join(f'{row}: ' + ', '.join(names) for row, names in of.items())})"
            for what, of in whose.items()
        ]
        yield NOT_COVERED.format("; ".join(said))
    if wrong:
        yield ERRORS


# Lines


def _lines(evidence: Evidence, group: Group, record: Record) -> Iterator[Line]:
    case = Case.of(record)
    links = tuple(link for link in group.links(evidence.store) if link.run_id == record["run_id"])
    first = [
        Text(f"{group.label}, seed {record['seed']}", link=links[0] if links else None),
        *(Text(f"{value:,}") for value in (case.examples, case.neurons, case.parameters)),
    ]
    critical = _by_cap({name: _angle_words(case.critical(cap)) for name, cap in CAPS.items()})
    for kind, at in at_angles(record).items():
        if kind == "certified" and not record["robustness"].get(kind):
            continue
        measure, right_side, verdict, solutions, examples = _at_angle(case, at)
        words = Text(f"{kind}: {short(at.angle) if at else _nothing(record, kind)}")
        yield [*first, words, measure, right_side, verdict, critical, solutions, examples]
        first, critical = [Text("")] * len(first), Text("")


def _nothing(record: Record, kind: str) -> str:
    return "none found" if record["robustness"].get(kind) else NOTHING[kind]


def _at_angle(case: Case, at: AtAngle | None) -> Line:
    """Measure, right side, verdict, ln K and n."""
    if case.errors:
        return [Text(f"does not apply ({case.errors:,} error{'s' if case.errors > 1 else ''})")] * 3 + [Text("")] * 2
    if at is None:
        return [Text("")] * 5
    return [
        _by_cap({name: short(value) for name, value in at.log_measures.items()}),
        _by_cap({name: short(bound.nats) for name, bound in at.bounds.items()}),
        _verdict(at),
        Text(_per_parameter(at)),
        Text(_count(at.examples_needed)),
    ]


def _by_cap(words: dict[str, str]) -> Text:
    return Text(words["exact"], f"Ball {words['Ball']}")


def _verdict(at: AtAngle) -> Text:
    """The word or the number, never a number that says nothing alone."""
    exact_words, ball_words = (error_words(at.bounds[name]) for name in CAPS)
    if at.is_vacuous:
        return Text("vacuous", f"{exact_words}; Ball {ball_words}")
    return Text(exact_words, f"Ball {ball_words}")


def error_words(bound: Bound) -> str:
    """Such as "12.3 %", and "1 - 10^-87" where that would round to all."""
    if bound.nats < math.log(1000):
        return f"{short(100 * bound.error)} %"
    return f"1 - 10^-{bound.nats / math.log(10):,.0f}" if math.isfinite(bound.nats) else "1"


def _angle_words(found: float | None) -> str:
    if found is None:
        return "none"
    return short(found) if found > ANY else "any"


def _per_parameter(at: AtAngle) -> str:
    needed = at.log_solutions_needed
    return "no K suffices" if math.isinf(needed) else short(needed / at.case.parameters)


def _count(needed: float) -> str:
    return "none suffices" if math.isinf(needed) else f"{needed:,.0f}" if needed < 1e6 else short(float(needed))


def _records(evidence: Evidence, group: Group, record: Record) -> Iterator[dict[str, str]]:
    case = Case.of(record)
    for kind, at in at_angles(record).items():
        found = {
            **group.head(evidence.embedded),
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
            "angle": exact(angle(record, kind)),
            "delta": exact(DELTA),
        }
        applies = at if not case.errors else None
        found |= {
            "probability": exact(applies.probability if applies else None),
            "verdict": _word(case, applies),
        }
        for name, cap in CAPS.items():
            key = name.lower()
            found |= {
                f"log_measure_{key}": exact(applies.log_measures[name] if applies else None),
                f"nats_{key}": exact(applies.bounds[name].nats if applies else None),
                f"error_{key}": exact(applies.bounds[name].error if applies else None),
                f"critical_angle_{key}": exact(case.critical(cap)),
            }
        found |= {
            "log_solutions_needed": exact(applies.log_solutions_needed if applies else None),
            "log_solutions_needed_per_parameter": exact(
                applies.log_solutions_needed / case.parameters if applies else None
            ),
            "examples_needed": exact(applies.examples_needed if applies else None),
        }
        yield found


def _word(case: Case, at: AtAngle | None) -> str:
    if case.errors:
        return "does not apply"
    if at is None:
        return ""
    return "vacuous" if at.is_vacuous else "bounds the error"
