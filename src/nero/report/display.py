"""How tables and figures name optimisers and tasks and show metrics: `display_name` and `display` in the YAML files.

The files are read directly: composing them with Hydra would take longer than the rest of the report.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from nero.plans.folders import Stamps, config_folders, read_settings, stamps
from nero.plans.schema import ConfigError, DisplayKeys, read_display, read_display_name


def folders(group: str) -> list[Path]:
    """Where the files of a config group are; of two with the same name the first counts."""
    return [folder / group for folder in config_folders()]


def optimizer_names() -> Mapping[str, str]:
    """File names of optimisers -> their names in tables and figures, all of them different."""
    return _optimizer_names(_files("optim"))


def task_name(task: str) -> str:
    """The name for people, such as "CIFAR-10 VGG-11"; the file name, which commands take, for a task without one."""
    return _task_names(_files("task")).get(task, task)


def of_task(task: str) -> DisplayKeys:
    """How a task and its metric are shown; the defaults for a task without a file."""
    return _displays(_files("task")).get(task) or DisplayKeys()


def _files(group: str) -> tuple[Stamps, ...]:
    return tuple(stamps(folder) for folder in folders(group))


@lru_cache(maxsize=8)
def _optimizer_names(files: tuple[Stamps, ...]) -> dict[str, str]:
    return _all_different(
        {
            name: read_display_name(settings.get("display_name"), f"display_name in optim/{name}.yaml")
            for name, settings in _read(files).items()
        }
    )


@lru_cache(maxsize=8)
def _task_names(files: tuple[Stamps, ...]) -> dict[str, str]:
    return _all_different({name: shown.title for name, shown in _displays(files).items()})


def _all_different(given: Mapping[str, str | None]) -> dict[str, str]:
    """The names, or the file names without one. A copy of nero.yaml may still be called Nero: the first keeps it."""
    found: dict[str, str] = {}
    for file_name, shown in given.items():
        name = shown or file_name
        found[file_name] = f"{name} ({file_name})" if name in found.values() else name
    return found


@lru_cache(maxsize=8)
def _displays(files: tuple[Stamps, ...]) -> dict[str, DisplayKeys]:
    return {
        name: read_display(settings.get("display"), f"display in task/{name}.yaml")
        for name, settings in _read(files).items()
    }


def _read(files: tuple[Stamps, ...]) -> dict[str, dict[str, Any]]:
    """The settings of each file by its name."""
    found: dict[str, dict[str, Any]] = {}
    shortest_first = (sorted(of_folder, key=lambda stamp: (len(stamp[0]), stamp)) for of_folder in files)
    for path in (Path(name) for of_folder in shortest_first for name, *_ in of_folder):
        try:
            settings = read_settings(path.parent.name, path.stem, path)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
        found.setdefault(path.stem, settings)
    return found
