"""Tests of the wheels in a bundle: for another platform, and without packages that are already installed there."""

from pathlib import Path

import pytest

from conftest import ROOT
from nero.bundle import wheels
from nero.bundle.making import Spec, listing
from nero.bundle.wheels import SOURCE_ONLY, BundleError, check_target, download, platform_tags, resolve
from support.bundles import little_project, only_index, write_wheel

X86 = ("3.12", "manylinux_2_28_x86_64")


def test_platform_tags_include_older_but_not_newer_libc() -> None:
    found = platform_tags("manylinux_2_28_x86_64")
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= {*found}
    assert "manylinux_2_29_x86_64" not in found
    assert platform_tags("musllinux_1_1_aarch64") == ["musllinux_1_1_aarch64", "musllinux_1_0_aarch64"]
    assert platform_tags("macosx_11_0_arm64") == ["macosx_11_0_arm64"], "pip knows the older ones"


@pytest.mark.parametrize(("python", "platform"), [("3", "win_amd64"), ("2.7", "win_amd64"), ("three", "win_amd64"),
                                                  ("3.12", "cray"), ("3.12", "linux_x86_64")])  # fmt: skip
def test_invalid_target_raises_bundle_error(python: str, platform: str) -> None:
    with pytest.raises(BundleError, match=r"not a Python version|unknown platform") as caught:
        check_target(python, platform)
    assert "\n" not in str(caught.value)


def test_missing_uv_error_includes_install_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda *arguments, **options: None)  # type: ignore[attr-defined]
    with pytest.raises(BundleError, match=r"^uv, .* is not installed: pip install uv$"):
        resolve(ROOT, *X86, (), (), tmp_path)


def test_source_only_packages_are_pinned() -> None:
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(f"\n{name}==" in pinned for name in SOURCE_ONLY)


# ------------------------------------------------------------------------------------- uv and pip, without network


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only package index of uv and pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "light", "1.0", ["small>=1", "only-x86; platform_machine == 'x86_64'"])
    write_wheel(folder, "small", "1.5", ["only-arm; platform_machine == 'aarch64'"])
    for machine in ("x86_64", "aarch64"):
        write_wheel(folder, "heavy", "2.0", ["nvidia-big"], tag=f"cp312-cp312-manylinux_2_17_{machine}")
    for name in ("only-x86", "only-arm", "nvidia-big", "words", "more", "pip", "setuptools"):
        write_wheel(folder, name, "99")
    only_index(monkeypatch, folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return little_project(tmp_path / "project")


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "needs"), [("x86_64", "only-x86"), ("aarch64", "only-arm")])
def test_environment_markers_are_evaluated_for_target_platform(
    tmp_path: Path, index: Path, project: Path, machine: str, needs: str
) -> None:
    """At least one of the two platforms is not that of this machine."""
    target = ("3.12", f"manylinux_2_28_{machine}")
    lock, left_out = resolve(project, *target, (), (), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "heavy", "nvidia-big", "pip", "setuptools", needs}
    assert left_out == []
    found = download(lock, *target, tmp_path / "scratch")
    assert len(found) == len(lock)
    assert f"heavy-2.0-cp312-cp312-manylinux_2_17_{machine}.whl" in {wheel.name for wheel in found}


@pytest.mark.slow
def test_dependencies_of_excluded_package_are_excluded(tmp_path: Path, index: Path, project: Path) -> None:
    for wheel in index.glob("heavy-*"):
        wheel.unlink()
    lock, left_out = resolve(project, *X86, (), ("Heavy", "pip"), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "only-x86", "pip", "setuptools"}, "tools are never left out"
    assert left_out == ["heavy>=2"]


@pytest.mark.slow
def test_exclude_patterns_match_package_names(tmp_path: Path, index: Path, project: Path) -> None:
    lock, left_out = resolve(project, *X86, (), ("nvidia-*", "set*"), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "only-x86", "heavy", "pip", "setuptools"}
    assert left_out == ["nvidia-big"]


@pytest.mark.slow
def test_extras_are_resolved_and_unknown_extra_raises(tmp_path: Path, index: Path, project: Path) -> None:
    lock, _ = resolve(project, *X86, ("all",), (), tmp_path / "scratch")
    assert {"words", "more"} <= set(lock)
    with pytest.raises(BundleError, match=r"unknown extra 'cloud': choose from text, all"):
        resolve(project, *X86, ("cloud",), (), tmp_path / "scratch")


@pytest.mark.slow
def test_missing_wheel_raises_one_line_error_naming_it(tmp_path: Path, index: Path, project: Path) -> None:
    (index / "small-1.5-py3-none-any.whl").unlink()
    with pytest.raises(BundleError, match=r"^uv failed: .*small") as caught:
        resolve(project, *X86, (), (), tmp_path / "scratch")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_wheel_with_changed_hash_is_rejected(tmp_path: Path, index: Path, project: Path) -> None:
    lock, _ = resolve(project, *X86, (), (), tmp_path / "scratch")
    write_wheel(index, "small", "1.5", ["only-arm; platform_machine == 'arm64'"])
    with pytest.raises(BundleError, match=r"(HASHES|hashes)"):
        download(lock, *X86, tmp_path / "scratch")


@pytest.mark.slow
def test_platform_specific_wheel_built_from_source_is_rejected(
    tmp_path: Path, index: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`light` stands for a package with compiled parts that is only distributed as source."""
    lock, _ = resolve(project, *X86, (), (), tmp_path / "scratch")
    monkeypatch.setattr(wheels, "SOURCE_ONLY", {"light"})

    def build(*command: object) -> None:
        (tmp_path / "scratch/wheels").mkdir()
        (tmp_path / "scratch/wheels/light-1.0-cp311-cp311-linux_x86_64.whl").touch()

    monkeypatch.setattr(wheels, "run", build)
    with pytest.raises(BundleError, match=r"light-1.0-cp.* was built from source for this machine only"):
        download(lock, *X86, tmp_path / "scratch")


@pytest.mark.slow
def test_project_dependencies_resolve_for_another_platform(tmp_path: Path) -> None:
    """Uses the package index that uv is configured for."""
    try:
        lines = listing(Spec(*X86, extras=("suite",), without=("torch", "torchvision", "triton")), tmp_path)
    except BundleError as error:
        pytest.skip(f"uv reaches no index: {error}")
    assert "left out, must already be installed there: torch>=2.10" in lines
    found = {line.removeprefix("wheel: ").partition("==")[0] for line in lines if line.startswith("wheel: ")}
    assert {"hydra-core", "omegaconf", "antlr4-python3-runtime", "numpy", "pip", "setuptools"} <= found
    assert not found & {"torch", "triton", "sympy", "nvidia-cublas-cu12"}
