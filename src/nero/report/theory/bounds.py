"""Theorem 1 for what was measured of a network: the measure of its caps, and what follows from it."""

import math
from dataclasses import dataclass
from functools import cached_property

from nero.report.theory.robustness_table import KINDS, angle
from nero.theory.caps import log_cap, log_cap_lower_bound
from nero.theory.pac_bayes import (
    Bound,
    Cap,
    Spheres,
    critical_angle,
    examples_needed,
    log_solutions_needed,
    log_version_space,
    realisable_bound,
)
from nero.theory.records import Record

DELTA = 0.05
"""The bound holds for a share 1 - delta of training sets."""

ERROR = 0.1
"""What the bound would have to be at most, where it is asked what that takes."""

CAPS: dict[str, Cap] = {"exact": log_cap, "Ball": log_cap_lower_bound}
"""The measure of a cap, and the bound of it that the paper uses (Ball 1997, Lemma 2.3)."""


@dataclass(frozen=True)
class Case:
    """One trained network: its spheres, how many examples, how many classes."""

    spheres: tuple[Spheres, ...]
    parameters: int  # weights of neurons: m times d, where all have the same fan-in
    examples: int
    errors: int
    classes: int
    beyond: tuple[str, ...]

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

    @property
    def guessing(self) -> float:
        return 1 - 1 / self.classes

    def bound(self, angle: float, cap: Cap, log_share: float = 0.0) -> Bound:
        return realisable_bound(self.log_measure(angle, cap, log_share), self.examples, DELTA)

    def log_measure(self, angle: float, cap: Cap, log_share: float = 0.0) -> float:
        return log_version_space(self.spheres, angle, log_share=log_share, cap=cap)

    def critical(self, cap: Cap) -> float | None:
        """The least angle at which one robust solution says more than guessing does."""
        return critical_angle(self.spheres, self.examples, DELTA, self.guessing, cap)


@dataclass(frozen=True)
class AtAngle:
    """What follows from one of the measured angles of a network without training errors."""

    kind: str
    case: Case
    angle: float
    log_share: float  # ln of the share of the caps that is vouched for
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
        return log_solutions_needed(case.spheres, self.angle, case.examples, DELTA, ERROR, self.log_share)

    @property
    def examples_needed(self) -> float:
        """For ERROR, were the angle the same with more examples."""
        return examples_needed(self.case.spheres, self.angle, DELTA, ERROR, log_share=self.log_share)


def at_angles(record: Record) -> dict[str, AtAngle | None]:
    """By kind of angle, as KINDS orders them; None where there is none."""
    return {kind: _at(record, kind) for kind in KINDS}


def _at(record: Record, kind: str) -> AtAngle | None:
    found = angle(record, kind)
    if found is None:
        return None
    how = record["robustness"][kind]
    share, confidence = (how["share"], how["confidence"]) if kind == "random" else (1.0, 1.0)
    return AtAngle(kind, Case.of(record), found, math.log(share), 1 - DELTA - (1 - confidence))
