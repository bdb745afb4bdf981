"""The internals of other libraries that sweeps use still exist, in the versions they were written for."""

import inspect
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from hydra.plugins.sweeper import Sweeper

from nero.sweep.library_internals import WRITTEN_FOR, SlurmQueue, basic_sweeper

SIGNATURES = [
    ("hydra-core", "hydra._internal.core_plugins.basic_sweeper:BasicSweeper.sweep", ["self", "arguments"]),
    ("hydra-core", "hydra.plugins.launcher:Launcher.launch", ["self", "job_overrides", "initial_job_idx"]),
    ("hydra-core", "hydra.core.utils:JobReturn", None),
    ("hydra-core", "hydra.core.plugins:Plugins.register", ["self", "clazz"]),
    ("hydra-core", "hydra.core.plugins:Plugins.is_in_toplevel_plugins_module", ["clazz"]),
    ("submitit", "submitit.core.core:Job.results", ["self"]),
    ("submitit", "submitit.core.core:Job.submission", ["self"]),
    ("submitit", "submitit.core.utils:FailedJobError", None),
    ("joblib", "joblib.externals.loky:get_reusable_executor", None),
    ("hydra-ray-launcher", "hydra_plugins.hydra_ray_launcher._core:ray.get", None),
]


def installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


@pytest.mark.parametrize("distribution", WRITTEN_FOR)
def test_installed_version_matches_supported_version(distribution: str) -> None:
    assert installed(distribution).startswith(f"{WRITTEN_FOR[distribution]}."), "read library_internals.py again"


@pytest.mark.parametrize(("distribution", "name", "parameters"), SIGNATURES, ids=[name for _, name, _ in SIGNATURES])
def test_library_internals_exist_with_expected_signatures(
    distribution: str, name: str, parameters: list[str] | None
) -> None:
    installed(distribution)
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert parameters is None or list(inspect.signature(found).parameters) == parameters


def test_hydra_basic_sweeper_has_expected_attributes() -> None:
    assert basic_sweeper(3, None).launcher is None
    assert list(inspect.signature(Sweeper.setup).parameters) == ["self", "hydra_context", "task_function", "config"]


def test_slurm_queue_signatures_match_submitit_watcher() -> None:
    installed("submitit")
    from submitit.core.core import InfoWatcher
    from submitit.slurm.slurm import SlurmJob

    assert isinstance(SlurmJob.watcher, InfoWatcher)
    for name in ("register_job", "is_done", "get_state", "get_info"):
        theirs, ours = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (InfoWatcher, SlurmQueue))
        assert ours == theirs, name


def test_sweeper_is_not_registered_for_other_hydra_programs() -> None:
    code = (
        "from hydra.core.config_store import ConfigStore\n"
        "from hydra.core.plugins import Plugins\n"
        "from hydra.plugins.sweeper import Sweeper\n"
        "print([kind.__name__ for kind in Plugins.instance().discover(Sweeper)])\n"
        "print(ConfigStore.instance().list('hydra/sweeper'))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    sweepers, configs = result.stdout.splitlines()
    assert "BasicSweeper" in sweepers, result.stderr
    assert "PlanSweeper" not in sweepers
    assert "basic.yaml" in configs
    assert "plan.yaml" not in configs
