"""A small project and wheels for tests of bundles; unpacking runs in its own process."""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
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
    "src/nero/train/__init__.py": "",
    "src/nero/train/run.py": "",
    "scripts/run.sh": "#!/bin/sh\n",
    "results/runs/task/task-1/summary.json": '{"status": "done"}\n',
    "results/runs/task/task-1/metrics.jsonl": '{"epoch": 1}\n',
    "results/table.md": "| 1 |\n",
}


def little_project(root: Path, files: Mapping[str, str] = FILES) -> Path:
    """Create a git work tree in which the given files are tracked."""
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
    """Run the unpack script with `python -I`, which ignores PYTHON* variables and user site-packages."""
    line = [python, "-I", str(bundle / UNPACK), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=env or None)


def tree(folder: Path) -> dict[str, bytes]:
    """Contents of every file below a folder, keyed by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel with the given modules (path -> text; default: none)."""
    stem = f"{name.replace('-', '_')}-{version}"
    requirements = "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        **(modules or {}),
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: nero\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = [f"{path},sha256={_digest(text.encode())},{len(text.encode())}\n" for path, text in files.items()]
    files[f"{stem}.dist-info/RECORD"] = "".join([*record, f"{stem}.dist-info/RECORD,,\n"])
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def _digest(data: bytes) -> str:
    """The SHA-256 digest in the format of a wheel's RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def only_index(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make uv and pip look for wheels only in this folder; skip the test if uv is not installed."""
    if not (shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))):
        pytest.skip("uv is not installed")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    config = folder.parent / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{folder}"]\n')
    settings = {"UV_CONFIG_FILE": str(config), "UV_NO_CACHE": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1"}
    for name, value in {**settings, "PIP_FIND_LINKS": str(folder), "PIP_NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(name, value)
