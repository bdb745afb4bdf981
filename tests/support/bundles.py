"""A little project with made-up wheels for tests of bundles; the unpacking is a process of its own."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nero.bundle.making import UNPACK

FILES = {
    "README.md": "A project.\n",
    "constraints.txt": "# what was tested\nlight==1.0\nheavy==2.0\n",
    "pyproject.toml": """
[build-system]
requires = ["setuptools>=60"]
build-backend = "backend"
backend-path = ["."]
[project]
name = "nero"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["light>=1", "heavy>=2"]
[project.optional-dependencies]
text = ["words>=1"]
all = ["nero[text]", "more>=1; sys_platform == 'linux'"]
""",
    "backend.py": """
# Installs the project from where it lies, as setuptools does, which not every Python brings in a wheel.
import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(os.path.join(folder, "nero-0.1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("nero-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: nero\\nVersion: 0.1.0\\n")
        wheel.writestr("nero-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("nero-0.1.0.dist-info/RECORD", "")
        wheel.writestr("nero.pth", os.path.join(os.getcwd(), "src"))
    return "nero-0.1.0-py3-none-any.whl"
""",
    "src/nero/__init__.py": "import light\n\n\nclass Nero: ...\n",
    "src/nero/train.py": "",
    "scripts/run.sh": "#!/bin/sh\n",
    "results/runs/task/task-1/summary.json": '{"status": "done"}\n',
    "results/runs/task/task-1/metrics.jsonl": '{"epoch": 1}\n',
    "results/table.md": "| 1 |\n",
}


def little_project(root: Path, files: Mapping[str, str] = FILES) -> Path:
    """A git work tree with these files, tracked."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "scripts/run.sh").chmod(0o755)
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    return root


def unpack(
    bundle: Path, *words: str | Path, python: str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    """Isolated: no package of this environment helps."""
    line = [python, "-I", str(bundle / UNPACK), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=env or None)


def tree(folder: Path) -> dict[str, bytes]:
    """What lies below a folder, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
