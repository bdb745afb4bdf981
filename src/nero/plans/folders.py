"""The folders of YAML files, the shipped one and the user's, and what is in them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nero.runs.records import LOADER

ROOT = Path(__file__).resolve().parents[3]
CONFIG_DIR = ROOT / "configs"

Stamps = tuple[tuple[str, int, int], ...]
"""Files with the time of their last change and their size: the key of caches of what they contain."""


def local_folder() -> Path:
    """The user's own configs, experiments, trials and reports, ignored by git: NERO_LOCAL, else local/."""
    return Path(os.environ.get("NERO_LOCAL") or ROOT / "local").absolute()


def config_folders() -> list[Path]:
    """Of the YAML files of tasks, optimisers and so on: the shipped ones first, then the user's."""
    return [CONFIG_DIR, local_folder() / "configs"]


def stamps(folder: Path, below: bool = False) -> Stamps:
    """Of the YAML files in a folder, sorted by name; `below`: and in the folders in it."""
    return tuple(sorted(_yaml_files(folder, below)))


def _yaml_files(folder: str | Path, below: bool) -> Iterator[tuple[str, int, int]]:
    if not os.path.isdir(folder):
        return
    for entry in os.scandir(folder):  # a tenth of the time of glob
        if entry.name.endswith(".yaml") and entry.is_file():
            yield entry.path, entry.stat().st_mtime_ns, entry.stat().st_size
        elif below and entry.is_dir():
            yield from _yaml_files(entry.path, below)


def names(group: str) -> list[str]:
    """The choices of a config group, such as all optimisers."""
    return sorted({path.stem for folder in config_folders() for path in (folder / group).glob("*.yaml")})


def has_config(group: str, name: str) -> bool:
    """Whether there is such a choice; plans ask this thousands of times."""
    return os.path.isfile(f"{CONFIG_DIR}/{group}/{name}.yaml") or config_file(group, name).is_file()


def config_file(group: str, name: str) -> Path:
    """The YAML of a choice; of two of the same name Hydra takes the shipped one."""
    paths = [folder / group / f"{name}.yaml" for folder in config_folders()]
    return next((path for path in paths if path.is_file()), paths[0])


def shipped_settings(task: str, optim: str) -> dict[str, Any]:
    """What the YAML files of a task and an optimiser have, by group, before any override."""
    own = read_settings("optim", optim)
    return {"task": read_settings("task", task), "optim": merge(own, read_settings(f"task_optim/{task}", optim))}


def read_settings(group: str, name: str, path: Path | None = None) -> dict[str, Any]:
    """What a choice's YAML file has, and what it inherits from others of its group that its `defaults` name.

    Without Hydra, which would take much longer; {} if there is no such file.
    """
    found: dict[str, Any] = {}
    todo, read = [path or config_file(group, name)], set()
    while todo:  # the file itself, then those it inherits from, the last first
        path = todo.pop()
        if path in read or not path.is_file():
            continue
        read.add(path)
        text = yaml.load(path.read_text(), Loader=LOADER)
        own = dict(text) if isinstance(text, dict) else {}
        bases = own.pop("defaults", None)
        bases = bases if isinstance(bases, list) else ()  # Hydra says what is wrong with it
        todo += [config_file(group, base) for base in bases if isinstance(base, str)]
        found = merge(own, found)
    return found


def merge(settings: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `over` in place of, or beside, their own."""
    found = dict(settings)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merge(found[key], value) if both else value
    return found
