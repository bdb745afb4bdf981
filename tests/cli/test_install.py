"""The wheel installed beside torch alone: optimisers that train, and commands that say what they need."""

import shutil
import subprocess
import sys
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conftest import ROOT
from nero.cli.main import COMMANDS

pytestmark = pytest.mark.slow

TRAINING = """
import torch
from torch import nn
from nero import LAMB, Madam, Nero

for optimizer, lr in ((Nero, 0.01), (LAMB, 0.01), (Madam, 0.01)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 50), nn.Tanh(), nn.Linear(50, 2))
    inputs = torch.randn(256, 10)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    stepper = optimizer(model.parameters(), lr=lr)
    for _ in range(300):
        loss = nn.functional.cross_entropy(5 * model(inputs), labels)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
    errors = (model(inputs).argmax(1) != labels).float().mean().item()
    assert errors < 0.2, (optimizer.__name__, errors)

import sys
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"hydra", "omegaconf", "pandas", "matplotlib", "scipy", "torchvision"}, loaded
print("trained")
"""


def required_by_torch() -> set[str]:
    """torch and the distributions that it requires here, without extras."""
    found: set[str] = set()
    wanted = ["torch"]
    while wanted:
        name = wanted.pop()
        try:
            lines = metadata.requires(name) or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            requirements = map(Requirement, lines)
            wanted += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: links to torch and what it requires."""
    folder = tmp_path_factory.mktemp("torch")
    for name in required_by_torch():
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(distribution.locate_file(top)))
    return folder


def run_python(code: str, *path: Path) -> "subprocess.CompletedProcess[str]":
    """Run code that can import from these folders and the standard library alone."""
    start = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, cwd=path[0], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a wheel that was built from the tree, as pip installs them."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src" / "nero", source / "src" / "nero", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", source, source], check=True)
    [wheel] = source.glob("nero_optim-*.whl")
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel], check=True)
    return folder


def test_optimisers_train_with_torch_alone(installed: Path, torch_alone: Path) -> None:
    done = run_python(TRAINING, installed, torch_alone)
    assert done.stdout == "trained\n", done.stderr


def test_wheel_requires_torch_alone(installed: Path) -> None:
    [about] = metadata.distributions(name="nero-optim", path=[str(installed)])
    requirements = [Requirement(line) for line in about.requires or []]
    always = [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert always == ["torch"]
    assert {"suite", "cluster", "ray", "test", "docs"} <= set(about.metadata.get_all("Provides-Extra") or [])


@pytest.mark.parametrize("name", ["train", "runs", "translate"])
def test_suite_command_in_installed_package_needs_a_clone(installed: Path, torch_alone: Path, name: str) -> None:
    done = run_python(f"from nero.cli.main import main; sys.exit(main([{name!r}]))", installed, torch_alone)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error: nero {name} needs the configs of a clone, and this is an installed package: clone ")


def test_every_command_in_clone_without_suite_names_the_extra(torch_alone: Path) -> None:
    code = f"from nero.cli.main import main; print([main([name]) for name in {list(COMMANDS)!r}])"
    done = run_python(code, ROOT / "src", torch_alone)
    assert done.stdout == f"{[1] * len(COMMANDS)}\n"
    lines = done.stderr.splitlines()
    assert len(lines) == len(COMMANDS)
    for name, line in zip(COMMANDS, lines, strict=True):
        assert line.startswith(f"error: nero {name} needs the extra suite (there is no package ")
        assert line.endswith("pip install -c constraints.txt -e '.[suite]'")


def test_version_and_help_need_no_suite(installed: Path) -> None:
    code = "from nero.cli.main import main; sys.exit(main(['--version']) or main(['--help']))"
    done = run_python(code, installed)
    assert done.returncode == 0
    assert done.stdout.startswith(f"nero {metadata.version('nero-optim')}\nusage: nero COMMAND")


def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nero.cli import main

    monkeypatch.setattr(main.sys, "platform", "win32")
    assert main.main(["train"]) == 1
    assert capsys.readouterr().err == "error: the experiments run on Linux and macOS only: they lock files with fcntl\n"
