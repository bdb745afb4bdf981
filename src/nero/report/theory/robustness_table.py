"""Table: by how much all neurons of a trained network can be turned before it errs on its training examples."""

from collections.abc import Iterable, Iterator
from typing import Any

from nero.report import cells
from nero.report.tables.csv_format import exact
from nero.report.tables.sheets import Line, Printed, Sheet, Text, row_label
from nero.report.theory.evidence import LINKS, Evidence, Group, absent, arithmetic, rows, unmeasured
from nero.report.theory.numbers import known, mean, seeds_text
from nero.report.units import number, scale
from nero.theory.records import NETWORKS, Record

NAME = "theory_robustness"
TITLE = "Angular robustness of trained networks (Definition 6)"
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
    "on examples held out",
]
NOTES = (
    "Angles by which all neurons may be turned at once, in radians; mean over seeds, and their range in brackets. "
    "Certified: no rotation by up to this angle makes an error on an example that the network had right, so that the "
    "alpha of Definition 6 is at least as large; of perceptrons alone. Adversarial: the smallest rotation found that "
    "makes one, so that alpha is smaller. Definition 6 is of a network without any training error: where there are "
    "errors, the angles are of the fitted examples alone. Training examples are seen without augmentation."
)
KINDS = ("certified", "adversarial", "random")
"""Of angles: what is sure, what would be the most, and what holds of nearly all rotations."""

NOTHING = {"certified": "not measured", "adversarial": "none up to a right angle", "random": "not measured"}
"""What it says of a network that there is no angle of a kind."""


def robustness_table(evidence: Evidence) -> Printed:
    """A line per optimiser, a block per task and its settings."""
    measured = [kept for group in evidence.networks if (kept := group.having("robustness"))]
    blocks: list[list[Line]] = []
    records = []
    for row, groups in rows(measured).items():
        lines: list[Line] = []
        for group in groups:
            lines.append([row_label(row) if not lines else Text(""), *_line(evidence, group)])
            records.append({**group.head(evidence.embedded), **_numbers(group)})
        blocks.append(lines)
    notes = " ".join([NOTES, LINKS, *_settings(measured), arithmetic(measured)]) if blocks else absent(NETWORKS)
    if without := unmeasured(evidence.networks, "robustness"):
        notes += f" Not measured: {without}."
    return Printed(NAME, TITLE, Sheet(HEADS, blocks, 2), notes, tuple(records), evidence.warning)


def angle(record: Record, kind: str) -> float | None:
    """Of one of KINDS; None where it was not measured, and where no angle was found."""
    return (record["robustness"].get(kind) or {}).get("angle") or None


def angles(group: Group, kind: str) -> list[float]:
    return known(angle(record, kind) for record in group.records)


def held_out(record: Record) -> tuple[str, float] | None:
    """Error or accuracy on examples that were not trained on, as the run's log names it: "val/error"."""
    metrics = record.get("metrics") or {}
    for split in ("test", "val"):
        for key in (f"{split}/error", f"{split}/accuracy"):
            if metrics.get(key) is not None:
                return key, float(metrics[key])
    return None


def _of_seeds(group: Group, key: str) -> list[float]:
    return known(record["robustness"].get(key) for record in group.records)


def _line(evidence: Evidence, group: Group) -> Line:
    count = len(group.records)
    examples = sorted(set(_of_seeds(group, "examples")))
    return [
        Text(group.label),
        Text(str(count), runs=group.links(evidence.store)),
        Text(group.epochs),
        _errors_text(_of_seeds(group, "errors")),
        Text(", ".join(f"{value:,.0f}" for value in examples)),
        *(seeds_text(angles(group, kind), count, _nothing(group, kind)) for kind in KINDS),
        _held_out_text(group),
    ]


def _errors_text(errors: list[float]) -> Text:
    """Whole numbers, but for a mean over seeds that is none."""
    ends = f"{min(errors):,.0f} to {max(errors):,.0f}" if min(errors) != max(errors) else ""
    return Text(f"{mean(errors):,.{1 if ends else 0}f}", ends)


def _nothing(group: Group, kind: str) -> str:
    """Why there is no angle at all."""
    if any(record["robustness"].get(kind) for record in group.records):
        return "none found"
    return NOTHING[kind]


def _held_out_text(group: Group) -> Text:
    found = [measured for record in group.records if (measured := held_out(record))]
    if not found:
        return Text("")
    key = found[0][0]
    values = [scale(key) * value for _, value in found]
    ends = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
    return Text(f"{number(mean(values) or 0.0)} % {key.replace('/', ' ')}", ends)


def _settings(groups: Iterable[Group]) -> Iterator[str]:
    """How angles were looked for, in words; the same for all records or once for each way."""
    found = [(group, record["robustness"]) for group in groups for record in group.records]
    random = _by_words(
        (cells.row_text(group.row), _random_words(of["random"])) for group, of in found if of.get("random")
    )
    yield from (f"Random{whose}: {words}." for words, whose in random)
    attacks = _by_words(
        (cells.row_text(group.row), _attack_words(of["adversarial"])) for group, of in found if of.get("adversarial")
    )
    yield from (f"Adversarial{whose}: {words}." for words, whose in attacks)


def _random_words(random: dict[str, Any]) -> str:
    return (
        f"with {100 * random['confidence']:g} % confidence, at least {100 * random['share']:g} % of the rotations by "
        "up to this angle, drawn evenly from the neurons' caps, leave every fitted example right"
    )


def _attack_words(attack: dict[str, Any]) -> str:
    return (
        f"gradient steps on the spheres, {attack['steps']} for an angle, against each of {attack['attacked']} examples"
    )


def _by_words(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(words, whose): whose is empty where there is one way for all."""
    found: dict[str, dict[str, None]] = {}
    for whose, words in pairs:
        found.setdefault(words, {})[whose] = None
    return [(words, f" ({'; '.join(whose)})" if len(found) > 1 else "") for words, whose in found.items()]


def _numbers(group: Group) -> dict[str, str]:
    """Means over seeds, and the ends of their range."""
    found = {"n": str(len(group.records)), "runs": " ".join(record["run_id"] for record in group.records)}
    errors = _of_seeds(group, "errors")
    found |= {"errors": exact(mean(errors)), "errors_least": exact(min(errors)), "errors_most": exact(max(errors))}
    found["examples"] = " ".join(f"{value:.0f}" for value in sorted(set(_of_seeds(group, "examples"))))
    for kind in KINDS:
        values = angles(group, kind)
        found |= {
            f"{kind}_angle": exact(mean(values)),
            f"{kind}_angle_least": exact(min(values, default=None)),
            f"{kind}_angle_most": exact(max(values, default=None)),
            f"{kind}_n": str(len(values)),
        }
    first_order = known((record["robustness"].get("adversarial") or {}).get("first_order") for record in group.records)
    found["adversarial_first_order"] = exact(mean(first_order))
    for key in ("confidence", "share", "draws"):
        values = known((record["robustness"].get("random") or {}).get(key) for record in group.records)
        found[f"random_{key}"] = " ".join(dict.fromkeys(map(exact, values)))
    outside = [measured for record in group.records if (measured := held_out(record))]
    values = [value for _, value in outside]
    found |= {"held_out": outside[0][0] if outside else "", "held_out_mean": exact(mean(values))}
    found |= {
        "held_out_least": exact(min(values, default=None)),
        "held_out_most": exact(max(values, default=None)),
    }
    return found
