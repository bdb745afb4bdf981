"""What the project needs, as its pyproject.toml and constraints.txt say it."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nero.bundle.refusal import Refusal

PROJECT, PINS = "pyproject.toml", "constraints.txt"


@dataclass(frozen=True)
class Project:
    """name, version, python: of the project; packages: what it needs to run; tools: what it takes to install it."""

    name: str
    version: str
    python: str
    packages: tuple[str, ...]
    tools: tuple[str, ...]


def read_project(root: Path, extras: Sequence[str] = ()) -> Project:
    """With the requirements of these extras, each requirement once."""
    described = tomllib.loads((root / PROJECT).read_text())
    project = described["project"]
    return Project(
        name=project["name"],
        version=project["version"],
        python=project.get("requires-python", ">=3"),
        packages=tuple(dict.fromkeys([*project["dependencies"], *_of_extras(project, extras)])),
        # pip is run from its wheel, so that a Python without it, as Debian's is, will do.
        tools=("pip", *described["build-system"]["requires"]),
    )


def read_pins(root: Path) -> dict[str, str]:
    """Name -> version, of what constraints.txt pins."""
    lines = (line.partition("#")[0].strip() for line in (root / PINS).read_text().splitlines())
    pinned = (line.partition("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, _, version in pinned}


def needed_on(environment: Mapping[str, str], requirements: Iterable[str]) -> list[str]:
    """Those whose environment marker holds, without it."""
    return [
        without_marker(requirement)
        for requirement in map(Requirement, requirements)
        if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": ""})
    ]


def without_marker(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _of_extras(project: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """An extra may name others of the project's own, as nero[text] does."""
    known = project.get("optional-dependencies", {})
    found: list[str] = []
    for extra in extras:
        if extra not in known:
            raise Refusal(f"unknown extra {extra!r}: choose from {', '.join(known)}")
        for line in known[extra]:
            requirement = Requirement(line)
            own = canonicalize_name(requirement.name) == canonicalize_name(project["name"])
            found += _of_extras(project, sorted(requirement.extras)) if own else [line]
    return found
