"""Which packages go into a bundle, of those that pip says belong together.

pip resolves for the machine on which it runs, as far as environment markers go, and can leave nothing out. So what it
reports is walked again from the project's requirements, with the markers of the machine that the bundle is for, and
past nothing that is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nero.bundle.requirements import without_marker


@dataclass(frozen=True)
class Package:
    """As pip reports it. sha256: of its wheel, where pip knows it."""

    name: str
    version: str
    sha256: str | None
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """packages:  those to bundle, by name
    left_out:  what they need of those that the machine is to have already, as requirements
    missing:   what they need and pip did not report, as requirements
    """

    packages: tuple[Package, ...]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]


def reported(report: Mapping[str, Any]) -> dict[str, Package]:
    """The packages in pip's installation report (its JSON), by name."""
    found: dict[str, Package] = {}
    for entry in report["install"]:
        about = entry["metadata"]
        archive = entry["download_info"].get("archive_info", {})
        name = canonicalize_name(about["name"])
        sha256 = archive.get("hashes", {}).get("sha256")
        found[name] = Package(name, about["version"], sha256, tuple(about.get("requires_dist") or ()))
    return found


def select(
    packages: Mapping[str, Package],
    roots: Sequence[str],
    without: Sequence[str],
    environment: Mapping[str, str],
    tools: Sequence[str] = (),
) -> Selection:
    """What is reached from the requirements `roots` and `tools`; `without` holds names or patterns like nvidia-*.

    A tool is never left out.
    """
    chosen: dict[str, Package] = {}
    left_out: set[str] = set()
    missing: set[str] = set()
    always = {canonicalize_name(Requirement(tool).name) for tool in tools}
    waiting = [Requirement(line) for line in (*roots, *tools)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in always and matches(name, without):
            left_out.add(without_marker(requirement))
            continue
        if name not in packages:
            missing.add(without_marker(requirement))
            continue
        chosen[name] = packages[name]
        step = name, frozenset(requirement.extras)
        if step not in seen:
            seen.add(step)
            waiting += _needs(packages[name], requirement.extras, environment)
    return Selection(tuple(chosen[name] for name in sorted(chosen)), tuple(sorted(left_out)), tuple(sorted(missing)))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Names of packages are compared as pip does: case, dots and underscores make no difference."""
    return any(fnmatchcase(canonicalize_name(name), canonicalize_name(pattern)) for pattern in patterns)


def _needs(package: Package, extras: set[str], environment: Mapping[str, str]) -> list[Requirement]:
    found = []
    for requirement in map(Requirement, package.requires):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in (extras or {""})):
            found.append(requirement)
    return found
