"""Consistency of the project's files: requirements, versions, Makefile and documentation."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from conftest import PAGES, ROOT

TARGETS = {"setup", "data", "smoke", "test", "test-all", "lint", "report", "figures", "notebooks", "bench", "clean"}
MADE_BY_MAKE = {"results/notebooks", "results/report.html", "results/smoke", "results/smoke/report.html"}
LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
TRACKED = [Path(name) for name in LISTED.stdout.split("\0") if name]  # none if this is no git checkout
EXPERIMENTS = {path.stem for path in TRACKED if path.match("experiments/*.yaml")}  # a user may have more
needs_git = pytest.mark.skipif(LISTED.returncode != 0, reason="not a git checkout")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required(extras: list[str]) -> set[str]:
    """Requirements of the package with some of its extras, including extras of extras."""
    found = set(project()["dependencies"])
    for extra in extras:
        for requirement in project()["optional-dependencies"][extra]:
            if match := re.fullmatch(r"nero-optim\[(.*)\]", requirement):
                found |= required(match[1].split(","))
            else:
                found.add(requirement)
    return found


def test_conda_environment_has_locked_test_requirements() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, _, pip = environment["dependencies"]
    assert python == f"python{project()['requires-python']}"
    assert pip["pip"] == ["--constraint constraints.txt", "--editable .[test]"]


def test_every_requirement_is_pinned_in_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {line.split("==")[0].lower().replace("_", "-") for line in lines if not line.startswith("#")}
    needed = {re.split(r"[<>=!~\[ ]", requirement)[0].lower() for requirement in required(["dev"])}
    assert needed <= pins
    assert {"torch==2.10.0", "torchvision==0.25.0"} <= set(lines)


def test_version_is_consistent_across_files() -> None:
    import nero

    version = project()["version"]
    assert nero.__version__ == version == importlib.metadata.version("nero-optim")
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_optimisers_are_exported_from_top_level_typed_package() -> None:
    from nero import LAMB, Madam, Nero
    from nero.optim import Nero as same

    assert Nero is same
    assert {cls.__name__ for cls in (LAMB, Madam)} == {"LAMB", "Madam"}
    assert (ROOT / "src" / "nero" / "py.typed").exists()
    with pytest.raises(ImportError):
        exec("from nero import Neron")


@pytest.mark.skipif(sys.platform == "win32", reason="make")
def test_make_help_describes_every_target() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    explained = {line.split()[1] for line in text.splitlines() if line.startswith("  make ") and len(line.split()) > 3}
    assert explained >= TARGETS | EXPERIMENTS
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z][a-z0-9-]*)", page.read_text(), re.MULTILINE):
            assert target in explained, f"{page.name} speaks of make {target}"


@needs_git
def test_experiments_page_has_a_row_for_every_experiment() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    assert {"table1", "mnist", "pong", "ablation"} <= EXPERIMENTS
    for name in EXPERIMENTS - TARGETS:
        assert f"| `experiments/{name}.yaml` |" in text, name
        assert f"| `make {name}` |" in text, name


@needs_git
@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_pages_list_the_make_target_of_every_experiment(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in EXPERIMENTS:
        assert re.search(rf"(`|\bmake ){name}\b", text), name


def test_contributing_guide_mentions_every_subpackage() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    packages = {path.parent.name for path in (ROOT / "src" / "nero").glob("*/__init__.py")}
    assert {"optim", "games", "checkpoints", "train"} <= packages
    for name in packages:
        assert f"`{name}`" in text, name


def test_make_clean_does_not_remove_results_or_data() -> None:
    result = subprocess.run(["make", "--dry-run", "clean"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "results" not in result.stdout
    assert "data" not in result.stdout


def test_file_references_in_documentation_exist() -> None:
    folders = "src|configs|experiments|scripts|benchmarks|results|notebooks|docs"
    for page in PAGES:
        for path in re.findall(rf"`((?:{folders})/[A-Za-z0-9_./-]*)`", page.read_text()):
            placeholder = any(part.isupper() for part in Path(path).with_suffix("").parts)
            assert placeholder or (ROOT / path).exists() or path in MADE_BY_MAKE, f"{page.name}: {path}"


def test_links_in_documentation_lead_to_files() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


@needs_git
def test_git_does_not_track_datasets_checkpoints_or_large_files() -> None:
    assert not [
        path for path in TRACKED if path.suffix in {".pt", ".pth", ".bin", ".gz", ".npz"} or path.parts[0] == "data"
    ]
    assert not [path for path in TRACKED if (ROOT / path).exists() and (ROOT / path).stat().st_size > 2**20]


@pytest.mark.parametrize(
    ("disguise", "message"),
    [
        ("sys.version_info = (3, 9, 1)", "error: Python 3.11 or newer is needed, not 3.9; set PYTHON=python3.11"),
        ("sys.platform = 'win32'", "error: Linux or macOS is needed, not win32"),
    ],
)
def test_setup_refuses_other_pythons_and_platforms_in_one_line(tmp_path: Path, disguise: str, message: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; {disguise}; exec(sys.argv[1])" "$2"\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0
    assert len(lines) == 1
    assert lines[0].startswith(message)
    assert not (tmp_path / ".venv").exists()
