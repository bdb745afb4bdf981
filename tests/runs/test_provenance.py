"""Code version of a run, with and without git."""

import subprocess
from pathlib import Path

import pytest

from nero.runs import provenance
from nero.runs.provenance import code_version


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of a copy of the code without a git history; `_git_describe` returns a fixed version."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_git_describe", lambda: "of-git-dirty")
    monkeypatch.delenv("NERO_COMMIT", raising=False)
    return tmp_path


def test_code_version_is_read_from_commit_file_without_git(root: Path) -> None:
    (root / "COMMIT").write_text("abc\n")
    assert code_version() == ("abc", False)
    (root / "COMMIT").write_text("abc-dirty\n")
    assert code_version() == ("abc", True)


def test_git_history_takes_precedence_over_commit_file(root: Path) -> None:
    (root / "COMMIT").write_text("abc")
    (root / ".git").mkdir()
    assert code_version() == ("of-git", True)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_missing_or_unreadable_commit_file_falls_back_to_git(root: Path, content: bytes | None) -> None:
    if content is not None:
        (root / "COMMIT").write_bytes(content)
    assert code_version() == ("of-git", True)


def test_environment_variable_takes_precedence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "COMMIT").write_text("abc")
    monkeypatch.setenv("NERO_COMMIT", "def")
    assert code_version() == ("def", False)


def test_code_version_is_git_head_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NERO_COMMIT", raising=False)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=provenance.ROOT, capture_output=True, text=True)
    if head.returncode != 0:
        pytest.skip("not a git checkout")
    assert code_version()[0] == head.stdout.strip()
