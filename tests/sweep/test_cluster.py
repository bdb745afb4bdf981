"""SLURM: documented commands request the resources they state, and a launcher's tasks are the ranks of a run."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import ROOT, script_environment
from engine.test_distributed import WORDS
from nero.runs.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("submitit") is None, reason="needs submitit: the extra `cluster`"),
]

SBATCH = """#!/bin/sh
cp "$1" "{kept}"
exit 1
"""


def documented_lines() -> list[str]:
    """Lines of the code blocks of the page on clusters; a command over several lines is one line."""
    blocks = (ROOT / "docs" / "clusters.md").read_text().split("```")[1::2]
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


def documented_slurm_commands() -> list[list[str]]:
    """The `nero sweep` commands for SLURM, split into words, without `nero sweep`."""
    commands = [line for line in documented_lines() if "submitit_slurm" in line and line.startswith("nero sweep ")]
    return [shlex.split(command)[2:] for command in commands]


def command_made_by_documented_target(target: str) -> list[str]:
    """What the documented `make` for SLURM runs, split into words, without `nero sweep`."""
    [command] = [line for line in documented_lines() if f"make {target} LAUNCHER=submitit_slurm" in line]
    words = shlex.split(command, comments=True)
    dry = subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    [line] = [line for line in dry.splitlines() if "bin/nero sweep " in line]
    return shlex.split(line)[2:]


def test_docs_have_slurm_commands_for_one_and_two_nodes() -> None:
    assert [[word for word in words if ".nodes=" in word] for words in documented_slurm_commands()] == [
        ["hydra.launcher.nodes=1"],
        ["hydra.launcher.nodes=2"],
    ]


@pytest.mark.parametrize(("place", "nodes", "gpus"), [(0, 1, 4), (1, 2, 8)])
def test_documented_slurm_commands_request_stated_resources(tmp_path: Path, place: int, nodes: int, gpus: int) -> None:
    script = sbatch_script_lines(tmp_path, documented_slurm_commands()[place])
    for line in (
        "#SBATCH --array=0-11%12",  # a job for each of the figure's twelve runs
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={gpus}",
        f"#SBATCH --gpus-per-node={gpus}",
        "#SBATCH --time=1440",
        "export SLURM_KILL_BAD_EXIT=1",
    ):
        assert line in script


def test_documented_make_command_requests_stated_slurm_resources(tmp_path: Path) -> None:
    script = sbatch_script_lines(tmp_path, command_made_by_documented_target("imagenet"))
    for line in (
        "#SBATCH --array=0-11%12",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=1440",
        "#SBATCH --partition=gpu",
        "export SLURM_KILL_BAD_EXIT=1",
    ):
        assert line in script
    assert "hydra.launcher.array_parallelism=20" in command_made_by_documented_target("table1")
    assert "hydra.launcher.timeout_min=240" in command_made_by_documented_target("table1")


def sbatch_script_lines(tmp_path: Path, words: list[str]) -> list[str]:
    """Lines of the script given to sbatch. A stand-in for sbatch keeps the script and refuses the job."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sbatch", "srun"):
        (tools / name).write_text(SBATCH.format(kept=tmp_path / "job.sh"))
        (tools / name).chmod(0o755)
    env = script_environment(tmp_path)
    env["PATH"] = f"{tools}{os.pathsep}{env['PATH']}"
    command = [sys.executable, "-m", "nero.cli.main", "sweep", *words, f"hydra.sweep.dir={tmp_path / 'out'}"]
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=120)
    return (tmp_path / "job.sh").read_text().splitlines()


def test_launcher_tasks_are_ranks_of_one_run(tmp_path: Path) -> None:
    launcher = ("hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", "hydra.launcher.timeout_min=5")
    words = ["--multirun", *WORDS, *launcher, "optim=sgd,nero", f"hydra.sweep.dir={tmp_path / 'out'}"]
    env = {**script_environment(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *words]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    summaries = Store(tmp_path / "runs").summaries().values()
    assert sorted(summary["optim"] for summary in summaries) == ["nero", "sgd"]
    for summary in summaries:
        assert summary["status"] == "done"
        assert summary["device"].startswith("2 x CPU")
