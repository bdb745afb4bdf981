"""Which wheels a bundle gets: for another machine than this one, and without what that already has."""

from pathlib import Path

import pytest

from conftest import ROOT
from nero.bundle import wheels
from nero.bundle.making import Spec, listing
from nero.bundle.wheels import SOURCE_ONLY, BundleError, check_target, download, platform_tags, resolve
from support.bundles import little_project, only_index, write_wheel

X86 = ("3.12", "manylinux_2_28_x86_64")


def test_wheels_for_an_older_libc_fit_and_for_a_newer_one_do_not() -> None:
    found = platform_tags("manylinux_2_28_x86_64")
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= {*found}
    assert "manylinux_2_29_x86_64" not in found
    assert platform_tags("musllinux_1_1_aarch64") == ["musllinux_1_1_aarch64", "musllinux_1_0_aarch64"]
    assert platform_tags("macosx_11_0_arm64") == ["macosx_11_0_arm64"], "pip knows the older ones"


@pytest.mark.parametrize(("python", "platform"), [("3", "win_amd64"), ("2.7", "win_amd64"), ("three", "win_amd64"),
                                                  ("3.12", "cray"), ("3.12", "linux_x86_64")])  # fmt: skip
def test_a_target_that_makes_no_sense_is_refused(python: str, platform: str) -> None:
    with pytest.raises(BundleError, match=r"not a Python version|unknown platform") as caught:
        check_target(python, platform)
    assert "\n" not in str(caught.value)


def test_without_uv_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda *arguments, **options: None)  # type: ignore[attr-defined]
    with pytest.raises(BundleError, match=r"^uv, .* is not installed: pip install uv$"):
        resolve(ROOT, *X86, (), (), tmp_path)


def test_what_is_built_from_source_is_pinned() -> None:
    pinned = (ROOT / "constraints.txt").read_text()
    assert all(f"\n{name}==" in pinned for name in SOURCE_ONLY)


# ------------------------------------------------------------------------------------- uv and pip, without network


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which uv and pip look, and nowhere else."""
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
def test_markers_are_those_of_the_target(tmp_path: Path, index: Path, project: Path, machine: str, needs: str) -> None:
    """Whichever machine this is, one of the two is another."""
    target = ("3.12", f"manylinux_2_28_{machine}")
    lock, left_out = resolve(project, *target, (), (), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "heavy", "nvidia-big", "pip", "setuptools", needs}
    assert left_out == []
    found = download(lock, *target, tmp_path / "scratch")
    assert len(found) == len(lock)
    assert f"heavy-2.0-cp312-cp312-manylinux_2_17_{machine}.whl" in {wheel.name for wheel in found}


@pytest.mark.slow
def test_what_only_a_left_out_package_needs_is_left_out_and_it_need_not_exist(
    tmp_path: Path, index: Path, project: Path
) -> None:
    for wheel in index.glob("heavy-*"):
        wheel.unlink()
    lock, left_out = resolve(project, *X86, (), ("Heavy", "pip"), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "only-x86", "pip", "setuptools"}, "tools are never left out"
    assert left_out == ["heavy>=2"]


@pytest.mark.slow
def test_patterns_leave_out_what_they_match(tmp_path: Path, index: Path, project: Path) -> None:
    lock, left_out = resolve(project, *X86, (), ("nvidia-*", "set*"), tmp_path / "scratch")
    assert set(lock) == {"light", "small", "only-x86", "heavy", "pip", "setuptools"}
    assert left_out == ["nvidia-big"]


@pytest.mark.slow
def test_extras_of_the_project_are_followed_and_unknown_ones_refused(
    tmp_path: Path, index: Path, project: Path
) -> None:
    lock, _ = resolve(project, *X86, ("all",), (), tmp_path / "scratch")
    assert {"words", "more"} <= set(lock)
    with pytest.raises(BundleError, match=r"unknown extra 'cloud': choose from text, all"):
        resolve(project, *X86, ("cloud",), (), tmp_path / "scratch")


@pytest.mark.slow
def test_a_missing_wheel_is_named_in_one_line(tmp_path: Path, index: Path, project: Path) -> None:
    (index / "small-1.5-py3-none-any.whl").unlink()
    with pytest.raises(BundleError, match=r"^uv failed: .*small") as caught:
        resolve(project, *X86, (), (), tmp_path / "scratch")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_wheel_that_changed_since_it_was_resolved_is_refused(tmp_path: Path, index: Path, project: Path) -> None:
    lock, _ = resolve(project, *X86, (), (), tmp_path / "scratch")
    write_wheel(index, "small", "1.5", ["only-arm; platform_machine == 'arm64'"])
    with pytest.raises(BundleError, match=r"(HASHES|hashes)"):
        download(lock, *X86, tmp_path / "scratch")


@pytest.mark.slow
def test_a_wheel_built_here_for_this_machine_alone_is_refused(
    tmp_path: Path, index: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`light` stands for a package that comes as source only and has compiled parts."""
    lock, _ = resolve(project, *X86, (), (), tmp_path / "scratch")
    monkeypatch.setattr(wheels, "SOURCE_ONLY", {"light"})

    def build(*command: object) -> None:
        (tmp_path / "scratch/wheels").mkdir()
        (tmp_path / "scratch/wheels/light-1.0-cp311-cp311-linux_x86_64.whl").touch()

    monkeypatch.setattr(wheels, "run", build)
    with pytest.raises(BundleError, match=r"light-1.0-cp.* was built from source for this machine only"):
        download(lock, *X86, tmp_path / "scratch")


@pytest.mark.slow
def test_the_projects_own_wheels_are_found_for_another_machine(tmp_path: Path) -> None:
    """With the index that uv is set up for."""
    try:
        lines = listing(Spec(*X86, without=("torch", "torchvision", "triton")), tmp_path)
    except BundleError as error:
        pytest.skip(f"uv reaches no index: {error}")
    assert "left out, must already be installed there: torch>=2.10" in lines
    found = {line.removeprefix("wheel: ").partition("==")[0] for line in lines if line.startswith("wheel: ")}
    assert {"hydra-core", "omegaconf", "antlr4-python3-runtime", "numpy", "pip", "setuptools"} <= found
    assert not found & {"torch", "triton", "sympy", "nvidia-cublas-cu12"}
