"""The folders of YAML files, the shipped one and the user's, and what is in them."""

import os
from collections.abc import Iterator
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
    files = {"task": [config_file("task", task)], "optim": [config_file("optim", optim)]}
    files["optim"].append(config_file(f"task_optim/{task}", optim))
    found: dict[str, Any] = {}
    for group, paths in files.items():
        texts = [yaml.load(path.read_text(), Loader=LOADER) for path in paths if path.is_file()]
        found[group] = {key: value for text in texts if isinstance(text, dict) for key, value in text.items()}
    return found
