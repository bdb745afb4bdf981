"""Which wheels a bundle gets: for another machine than this one, and without what that has already."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from nero.bundle.empty_wheel import write_empty_wheel
from nero.bundle.making import Order, listing
from nero.bundle.refusal import Refusal
from nero.bundle.requirements import needed_on, read_pins, read_project
from nero.bundle.selection import Selection, matches, reported, select
from nero.bundle.target import Target, this_platform, this_python
from nero.bundle.wheels import SOURCE_ONLY, Wanted, download, refuse_unfit, resolve
from support.bundles import little_project

X86 = Target("3.12", "manylinux_2_28_x86_64")


def entry(name: str, version: str, *requires: str) -> dict[str, Any]:
    """As in the report of `pip install --dry-run --report`, shortened."""
    archive = {"hashes": {"sha256": f"{name}-sum"}}
    return {
        "download_info": {"url": f"file:///wheels/{name}-{version}.whl", "archive_info": archive},
        "requested": False,
        "metadata": {"name": name, "version": version, "requires_dist": list(requires)},
    }


# pip on an ARM machine with Python 3.11 reported this for 3.12 on x86: what only markers of x86 or 3.12 need is absent.
REPORT = {
    "version": "1",
    "install": [
        entry(
            "torch",
            "2.10.0",
            "typing-extensions>=4.10.0",
            'setuptools; python_version >= "3.12"',
            "sympy>=1.13.3",
            'nvidia-cublas-cu12==12.8; platform_system == "Linux" and platform_machine == "x86_64"',
            'optree>=0.13.0; extra == "optree"',
        ),
        entry("torchvision", "0.25.0", "numpy", "torch (==2.10.0)", "pillow (!=8.3.*,>=5.3.0)"),
        entry("numpy", "2.4.6"),
        entry("pillow", "13.0.0"),
        entry("sympy", "1.14.0", "mpmath<1.4,>=1.1.0"),
        entry("mpmath", "1.3.0"),
        entry("typing_extensions", "4.16.0"),
        entry("Old_Backport", "1.0"),
        entry("launcher", "1.0", "numpy", 'Old.Backport; python_version < "3.12"', "tools[fast]"),
        entry("tools", "1.0", 'quick>=1; extra == "fast"'),
        entry("quick", "1.2", "tools"),
        entry("pip", "26.3"),
        entry("setuptools", "84.0"),
    ],
}
ROOTS = ("torch>=2.10", "torchvision>=0.25", "numpy>=2.0", "launcher")


def chosen(found: Selection) -> set[str]:
    return {package.name for package in found.packages}


def test_markers_are_those_of_the_machine_that_the_bundle_is_for() -> None:
    packages = reported(REPORT)
    found = select(packages, ROOTS, (), X86.environment)
    assert found.missing == ("nvidia-cublas-cu12==12.8",)
    assert "setuptools" in chosen(found)
    assert "old-backport" not in chosen(found)
    arm = select(packages, ROOTS, (), Target("3.11", "manylinux_2_28_aarch64").environment)
    assert arm.missing == ()
    assert "setuptools" not in chosen(arm)
    assert "old-backport" in chosen(arm)


def test_what_only_a_package_that_is_left_out_needs_is_left_out_too() -> None:
    found = select(reported(REPORT), ROOTS, ("torch", "torchvision"), X86.environment, ("pip", "setuptools>=77"))
    assert chosen(found) == {"numpy", "launcher", "tools", "quick", "pip", "setuptools"}
    assert found.left_out == ("torch>=2.10", "torchvision>=0.25")
    assert found.missing == ()


def test_what_somebody_else_needs_too_stays() -> None:
    found = select(reported(REPORT), ROOTS, ("torch",), X86.environment)
    assert {"torchvision", "pillow", "numpy"} <= chosen(found)
    assert found.left_out == ("torch==2.10.0", "torch>=2.10")


def test_patterns_leave_out_what_they_match_and_tools_never() -> None:
    found = select(reported(REPORT), ROOTS, ("nvidia-*", "P*", "set*"), X86.environment, ("pip",))
    assert found.missing == ()
    assert found.left_out == ("nvidia-cublas-cu12==12.8", "pillow!=8.3.*,>=5.3.0", "setuptools")
    assert "pip" in chosen(found)
    assert matches("Typing_Extensions", ["typing.extensions"])


def test_extras_of_a_requirement_are_followed() -> None:
    found = select(reported(REPORT), ("tools",), (), X86.environment)
    assert chosen(found) == {"tools"}
    assert chosen(select(reported(REPORT), ("tools[fast]",), (), X86.environment)) == {"tools", "quick"}


def test_the_sum_that_the_index_gave_is_kept() -> None:
    packages = reported(REPORT)
    assert packages["numpy"].sha256 == "numpy-sum"
    assert packages["old-backport"].version == "1.0"


def test_wheels_for_an_older_glibc_are_taken_and_for_a_newer_or_another_machine_not() -> None:
    assert X86.platforms[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} <= set(X86.platforms)
    fitting = [
        "a-1-py3-none-any.whl",
        "a-1-py2.py3-none-any.whl",
        "a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "a-1-cp39-abi3-manylinux_2_28_x86_64.whl",
    ]
    refuse_unfit(fitting, X86)
    for name in (
        "a-1-cp311-cp311-manylinux_2_17_x86_64.whl",
        "a-1-cp312-cp312-manylinux_2_34_x86_64.whl",
        "a-1-cp312-cp312-linux_aarch64.whl",
        "a-1-cp312-cp312t-manylinux_2_28_x86_64.whl",
        "a-1.tar.gz",
    ):
        with pytest.raises(Refusal, match=r"a-1.* does not fit Python 3\.12 on manylinux_2_28_x86_64"):
            refuse_unfit([name], X86)


@pytest.mark.parametrize(
    ("platform", "machine", "system"),
    [
        ("manylinux2014_x86_64", "x86_64", "linux"),
        ("manylinux_2_36_aarch64", "aarch64", "linux"),
        ("musllinux_1_2_x86_64", "x86_64", "linux"),
        ("macosx_11_0_arm64", "arm64", "darwin"),
        ("win_amd64", "AMD64", "win32"),
    ],
)
def test_platforms_have_their_markers(platform: str, machine: str, system: str) -> None:
    environment = Target("3.13", platform).environment
    assert (environment["platform_machine"], environment["sys_platform"]) == (machine, system)
    assert platform in Target("3.13", platform).platforms


@pytest.mark.parametrize(("python", "platform"), [("3", "win32"), ("three", "win32"), ("2.7", "win32"),
                                                  ("3.12", "cray"), ("3.12", "manylinux_2_4_x86_64")])  # fmt: skip
def test_a_target_that_makes_no_sense_is_refused(python: str, platform: str) -> None:
    with pytest.raises(Refusal, match=r"no version of Python|unknown platform") as caught:
        Target(python, platform)
    assert "\n" not in str(caught.value)


def test_the_machine_here_is_one_that_bundles_can_be_made_for() -> None:
    here = Target(this_python(), this_platform())
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert here.takes(f"a-1-{tag}-{tag}-{this_platform()}.whl")
    assert here.environment["python_version"] == this_python()


def test_extras_of_the_project_name_others() -> None:
    found = read_project(ROOT, ["translate", "cluster"])
    assert {"spacy>=3.8", "sacrebleu>=2.5", "hydra-submitit-launcher>=1.2", "torch>=2.10"} <= set(found.packages)
    assert found.tools[0] == "pip"
    assert needed_on(X86.environment, ["a>=1; sys_platform == 'linux'", "b; os_name == 'nt'"]) == ["a>=1"]
    with pytest.raises(Refusal, match=r"unknown extra 'cloud': choose from .*cluster"):
        read_project(ROOT, ["cloud"])


def test_what_is_built_from_source_is_pinned() -> None:
    assert set(SOURCE_ONLY) <= read_pins(ROOT).keys()


# ------------------------------------------------------------------------------------- pip itself, without network


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip looks, and nowhere else."""
    folder = tmp_path / "index of wheels"
    folder.mkdir()
    write_empty_wheel(folder, "light", "1.0", ["small>=1", "only-x86; platform_machine == 'x86_64'"])
    write_empty_wheel(folder, "small", "1.5", ["only-arm; platform_machine == 'aarch64'"])
    write_empty_wheel(folder, "heavy", "2.0", ["nvidia-big"], tag="cp312-cp312-manylinux_2_17_x86_64")
    write_empty_wheel(folder, "heavy", "2.0", ["nvidia-big"], tag="cp312-cp312-manylinux_2_17_aarch64")
    for name in ("only-x86", "only-arm", "nvidia-big", "words", "more", "pip", "setuptools"):
        write_empty_wheel(folder, name, "99")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


def wanted(root: Path, *without: str, target: Target = X86) -> Wanted:
    return Wanted(root, read_project(root), target, without)


@pytest.mark.parametrize(("machine", "needs", "not_needed"), [("x86_64", "only-x86", "only-arm"),
                                                              ("aarch64", "only-arm", "only-x86")])  # fmt: skip
def test_pip_is_asked_until_nothing_is_missing(
    tmp_path: Path, index: Path, machine: str, needs: str, not_needed: str
) -> None:
    """Whatever machine this is, one of the two is another."""
    root, scratch = little_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    order = wanted(root, target=Target("3.12", f"manylinux_2_28_{machine}"))
    found = resolve(order, scratch)
    assert chosen(found) == {"light", "small", "heavy", "nvidia-big", "pip", "setuptools", needs}
    wheels = download(found, order, scratch)
    assert len(wheels) == len(found.packages)
    assert f"heavy-2.0-cp312-cp312-manylinux_2_17_{machine}.whl" in {wheel.name for wheel in wheels}


def test_a_package_that_is_left_out_need_not_even_exist(tmp_path: Path, index: Path) -> None:
    for wheel in index.glob("heavy-*"):
        wheel.unlink()
    root, scratch = little_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    found = resolve(wanted(root, "heavy"), scratch)
    assert chosen(found) == {"light", "small", "only-x86", "pip", "setuptools"}
    assert found.left_out == ("heavy>=2",)


def test_what_pip_cannot_find_is_told_in_one_line(tmp_path: Path, index: Path) -> None:
    (index / "small-1.5-py3-none-any.whl").unlink()
    root, scratch = little_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(Refusal, match=r"pip install failed: .*small") as caught:
        resolve(wanted(root), scratch)
    assert "\n" not in str(caught.value)


def test_a_wheel_that_changed_since_pip_reported_it_is_refused(tmp_path: Path, index: Path) -> None:
    root, scratch = little_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    order = wanted(root)
    found = resolve(order, scratch)
    write_empty_wheel(index, "small", "1.5", ["only-arm; platform_machine == 'arm64'"])
    with pytest.raises(Refusal, match=r"pip download failed: .*(HASHES|hashes)"):
        download(found, order, scratch)


def test_a_wheel_built_here_for_this_machine_alone_is_refused(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`light` stands for a package that comes as source only and turns out to have compiled parts."""
    (index / "light-1.0-py3-none-any.whl").unlink()
    write_empty_wheel(index, "light", "1.0", tag=f"cp{''.join(this_python().split('.'))}-none-any")
    monkeypatch.setattr("nero.bundle.wheels.SOURCE_ONLY", ("light",))
    root, scratch = little_project(tmp_path / "project"), tmp_path / "scratch"
    scratch.mkdir()
    other = Target("3.14", "manylinux_2_28_x86_64")
    with pytest.raises(Refusal, match=r"light-1.0-cp.* built for this machine: it does not fit Python 3\.14"):
        resolve(wanted(root, target=other), scratch)


@pytest.mark.slow
def test_the_projects_own_wheels_are_found_for_another_machine(tmp_path: Path) -> None:
    """With the index that pip is set up for."""
    reach = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "--timeout=15"]
    done = subprocess.run([*reach, "--dest", str(tmp_path / "try"), "tqdm"], capture_output=True, timeout=120)
    if done.returncode != 0:
        pytest.skip("pip reaches no index")
    (tmp_path / "scratch").mkdir()
    order = Order(X86, without=("torch", "torchvision", "triton"))
    lines = listing(order, tmp_path / "scratch")
    assert "left out, to be there already: torch>=2.10" in lines
    found = {line.split()[1] for line in lines if line.startswith("wheel: ")}
    assert {"hydra-core", "omegaconf", "antlr4-python3-runtime", "numpy", "pip", "setuptools"} <= found
    assert not found & {"torch", "triton", "sympy", "nvidia-cublas-cu12"}
    report = json.loads((tmp_path / "scratch" / "report.json").read_text())
    urls = {entry["metadata"]["name"]: entry["download_info"]["url"] for entry in report["install"]}
    assert "x86_64" in urls["numpy"]
