"""CUDA's Multi-Process Service during a sweep. A stand-in for NVIDIA's program logs its arguments and input."""

import os
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from nero.plans.config import ConfigError
from nero.sweep import mps

STAND_IN = """#!/bin/sh
echo "$CUDA_MPS_PIPE_DIRECTORY:$*:$(if [ -z "$1" ]; then cat; fi)" >> {log}
test -d "$CUDA_MPS_PIPE_DIRECTORY" && exit {status}
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch, 0)


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> Path:
    program = tmp_path / "bin" / mps.CONTROL
    program.parent.mkdir()
    program.write_text(STAND_IN.format(log=tmp_path / "log", status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(mps.PIPES, raising=False)
    return tmp_path / "log"


def machine(wanted: object = "auto", device: str = "auto") -> DictConfig:
    return OmegaConf.create({"mps": wanted, "device": device})


def launcher(name: str, **settings: object) -> DictConfig:
    return OmegaConf.create({"_target_": f"plugin.{name}", **settings})


@pytest.mark.parametrize(
    ("wanted", "device", "target", "n_jobs", "expected"),
    [
        ("auto", "auto", "JoblibLauncher", 4, True),
        ("auto", "cuda", "JoblibLauncher", -1, True),
        ("auto", "auto", "JoblibLauncher", 1, False),
        ("auto", "cpu", "JoblibLauncher", 4, False),
        ("auto", "auto", "BasicLauncher", None, False),
        ("auto", "auto", "SlurmLauncher", None, False),
        ("auto", "auto", "LocalLauncher", None, True),
        ("auto", "auto", "RayLauncher", None, True),
        (False, "auto", "JoblibLauncher", 4, False),
        (True, "auto", "BasicLauncher", None, True),
    ],
)
def test_mps_is_wanted_only_for_parallel_runs_on_local_gpu(
    log: Path, wanted: object, device: str, target: str, n_jobs: int | None, expected: bool
) -> None:
    assert mps.is_wanted(machine(wanted, device), launcher(target, n_jobs=n_jobs)) is expected


def test_missing_mps_program_is_an_error_only_if_mps_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not mps.is_wanted(machine(), launcher("JoblibLauncher", n_jobs=4))
    with pytest.raises(ConfigError, match=r"^machine\.mps=true needs nvidia-cuda-mps-control"):
        mps.is_wanted(machine(True), launcher("JoblibLauncher", n_jobs=4))


def test_daemon_is_started_exported_to_environment_and_stopped(log: Path) -> None:
    with mps.daemon(True):
        folder = os.environ[mps.PIPES]
        assert Path(folder).is_dir()
        assert log.read_text() == f"{folder}:-d:\n"
    assert log.read_text().splitlines() == [f"{folder}:-d:", f"{folder}::quit -t 10"]
    assert mps.PIPES not in os.environ
    assert mps.LOGS not in os.environ
    assert not Path(folder).exists()


def test_daemon_is_stopped_when_sweep_raises(log: Path) -> None:
    with pytest.raises(KeyboardInterrupt), mps.daemon(True):
        raise KeyboardInterrupt
    assert log.read_text().splitlines()[-1].endswith("::quit -t 10")
    assert mps.PIPES not in os.environ


def test_existing_daemon_is_used_and_not_stopped(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mps.PIPES, "/their/pipes")
    with mps.daemon(True):
        assert os.environ[mps.PIPES] == "/their/pipes"
    assert os.environ[mps.PIPES] == "/their/pipes"
    assert not log.exists()


def test_failure_to_start_daemon_is_reported_and_sweep_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = install(tmp_path, monkeypatch, 1)
    with mps.daemon(True):
        assert mps.PIPES not in os.environ, "nobody would answer there"
    assert len(log.read_text().splitlines()) == 1
    assert "did not start: runs take turns on a GPU" in capsys.readouterr().err
