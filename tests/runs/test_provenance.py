"""Which code a run is of, with git and without."""

import subprocess
from pathlib import Path

import pytest

from nero.runs import provenance
from nero.runs.provenance import code_version


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a copy of the code, which git, as it is asked where the code lies, does not describe."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "_git_describe", lambda: "of-git-dirty")
    monkeypatch.delenv("NERO_COMMIT", raising=False)
    return tmp_path


def test_a_copy_without_git_says_it_in_a_file(root: Path) -> None:
    (root / "COMMIT").write_text("abc\n")
    assert code_version() == ("abc", False)
    (root / "COMMIT").write_text("abc-dirty\n")
    assert code_version() == ("abc", True)


def test_a_history_of_its_own_counts_for_more_than_the_file(root: Path) -> None:
    (root / "COMMIT").write_text("abc")
    (root / ".git").mkdir()
    assert code_version() == ("of-git", True)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_without_the_file_git_is_asked(root: Path, content: bytes | None) -> None:
    if content is not None:
        (root / "COMMIT").write_bytes(content)
    assert code_version() == ("of-git", True)


def test_the_environment_counts_most(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "COMMIT").write_text("abc")
    monkeypatch.setenv("NERO_COMMIT", "def")
    assert code_version() == ("def", False)


def test_git_describes_this_very_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NERO_COMMIT", raising=False)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=provenance.ROOT, capture_output=True, text=True)
    if head.returncode != 0:
        pytest.skip("not a git checkout")
    assert code_version()[0] == head.stdout.strip()
