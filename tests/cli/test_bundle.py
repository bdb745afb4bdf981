"""Tests of making, unpacking and installing bundles; the real unpacking script runs in a separate process."""

import ensurepip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from packaging import tags

from conftest import ROOT, exit_status
from nero.bundle.making import SCRATCH, SUMS, Spec, data_files, git_files, make_bundle, tracked_files, write_sums
from nero.bundle.wheels import BundleError
from nero.data.download.files import CheckedFile
from nero.data.sources import DATASETS, Dataset
from support.bundles import FILES, little_project, only_index, tree, unpack, write_wheel

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PLATFORM = next(tag for tag in tags.platform_tags() if not tag.startswith("linux_"))
CODE = {name for name in FILES if not name.startswith("results/runs/")}
DATA = bytes(range(256)) * 800


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NERO_COMMIT", "abc")
    return little_project(tmp_path / "project")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a synthetic data set called `toy`."""
    file = CheckedFile.of("toy/values.bin", DATA)
    monkeypatch.setitem(DATASETS, "toy", Dataset((file,), origins=()))
    file.put(tmp_path / "data", DATA)
    return tmp_path / "data"


def bundle(project: Path, out: Path, force: bool = False, **order: object) -> Path:
    make_bundle(Spec(archive_size=64 << 10, root=project, **order), out, force)  # type: ignore[arg-type]
    return out


# ---------------------------------------------------------------------------------------------------------- contents


def test_tracked_files_match_git_ls_files() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    assert set(tracked_files(runs=True)) == names
    assert set(tracked_files()) == {name for name in names if not name.startswith("results/runs/")}


def test_bundle_includes_modified_but_not_untracked_or_deleted_files(project: Path) -> None:
    (project / "README.md").write_text("changed")
    (project / "new.py").write_text("")
    (project / "scripts/run.sh").unlink()
    entries = tracked_files(project)
    assert set(entries) == CODE - {"scripts/run.sh"}
    assert entries["README.md"].read_bytes() == b"changed"
    assert git_files(project, "--others") == ["new.py"]


def test_untracked_files_are_reported(project: Path, tmp_path: Path) -> None:
    (project / "new.py").write_text("")
    said: list[str] = []
    make_bundle(Spec(root=project), tmp_path / "out", log=said.append)
    assert said == ["left out, since git does not track it: new.py"]


def test_non_git_folder_and_symlink_raise_bundle_error(tmp_path: Path, project: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(BundleError, match="not a git work tree"):
        tracked_files(tmp_path / "plain")
    (project / "README.md").unlink()
    (project / "README.md").symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match=r"README\.md is a symbolic link"):
        tracked_files(project)


def test_data_files_are_verified_before_packing(data: Path) -> None:
    assert data_files(["toy", "toy"], data) == {"data/toy/values.bin": data / "toy/values.bin"}
    place = data / "toy/values.bin"
    place.write_bytes(bytes(len(DATA)))
    with pytest.raises(BundleError, match=r"values.bin is damaged.*; get it with: nero data toy"):
        data_files(["toy"], data)
    place.unlink()
    with pytest.raises(BundleError, match=r"values.bin is missing; get it with: "):
        data_files(["toy"], data)
    with pytest.raises(BundleError, match="unknown data set 'toys': choose from mnist"):
        data_files(["toys"], data)


def test_fid_statistics_are_bundled_with_inception_data(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "fid-statistics-train-50.pt").write_bytes(b"1")
    monkeypatch.setitem(DATASETS, "inception", DATASETS["toy"])
    assert set(data_files(["toy"], data)) == {"data/toy/values.bin"}
    with_kept = set(data_files(["inception"], data))
    assert with_kept == {"data/toy/values.bin", "data/fid-statistics-train-50.pt"}


def test_bundle_is_reproducible(project: Path, data: Path, tmp_path: Path) -> None:
    first = tree(bundle(project, tmp_path / "one", data=("toy",), data_root=data))
    again = little_project(tmp_path / "elsewhere")
    for path in again.rglob("*.*"):
        os.utime(path, (1, 1))
    assert tree(bundle(again, tmp_path / "two", data=("toy",), data_root=data)) == first
    assert len([name for name in first if name.startswith("nero-bundle.")]) > 2


def test_contents_json_describes_bundle(project: Path, data: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out", data=("toy",), data_root=data)
    contents = json.loads((out / "contents.json").read_text())
    archives = sorted(out.glob("nero-bundle.*"))
    assert (contents["archives"], contents["archive_size"]) == (len(archives), 64 << 10)
    assert {file["path"] for file in contents["files"]} == {*CODE, "COMMIT", "data/toy/values.bin"}
    assert (contents["data"], contents["python"], contents["runs"]) == (["toy"], None, False)
    assert (contents["name"], contents["version"], contents["commit"]) == ("nero", "0.1.0", "abc")
    assert all(archive.stat().st_size <= 64 << 10 for archive in archives)
    assert str(tmp_path) not in (out / "contents.json").read_text()


# ------------------------------------------------------------------------------------------------------ output folder


def test_bundle_is_written_only_to_empty_folder_or_old_bundle(project: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out")
    before = tree(out)
    with pytest.raises(BundleError, match="already has a bundle; --force replaces it"):
        bundle(project, out)
    (project / "README.md").write_text("changed")
    assert tree(out) == before
    assert tree(bundle(project, out, force=True)).keys() == before.keys()
    (out / "letter.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(BundleError, match=r"not empty and not a bundle, it has letter\.txt"):
            bundle(project, out, force)
    assert (out / "letter.txt").exists()
    with pytest.raises(BundleError, match="not a bundle"):
        bundle(project, out / "letter.txt")


def test_interrupted_bundle_has_no_checksums_and_is_replaced(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    out = bundle(project, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("nero.bundle.making.pack", full)
        with pytest.raises(OSError, match="No space"):
            bundle(project, out, force=True)
    assert SUMS not in tree(out)
    (out / SCRATCH).mkdir()
    (out / "nero-bundle.000").write_bytes(b"half")
    assert unpack(bundle(project, out), "--check").returncode == 0


def test_old_bundle_is_kept_if_collecting_new_one_fails(project: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out")
    before = tree(out)
    with pytest.raises(BundleError, match="unknown data set"):
        bundle(project, out, force=True, data=("no such",))
    assert tree(out) == before


# --------------------------------------------------------------------------------------------------------- unpacking


def test_unpack_restores_all_files_and_permissions(project: Path, data: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out", data=("toy",), data_root=data, runs=True)
    done = unpack(out, "--to", tmp_path / "there")
    assert (done.returncode, done.stderr) == (0, "")
    found = tree(tmp_path / "there")
    assert {name: found[name].decode() for name in FILES} == FILES
    assert found["data/toy/values.bin"] == DATA
    assert found.keys() == {*FILES, "data/toy/values.bin", "COMMIT", ".bundle.json"}
    assert os.access(tmp_path / "there/scripts/run.sh", os.X_OK)
    assert not os.access(tmp_path / "there/README.md", os.X_OK)


def test_unpack_works_with_oldest_supported_python(project: Path, tmp_path: Path) -> None:
    found = filter(None, (shutil.which(f"python3.{minor}") for minor in (9, 10)))
    python = next((path for path in found if not subprocess.run([path, "-V"], capture_output=True).returncode), None)
    if python is None:
        pytest.skip("no Python 3.9 or 3.10 here")
    done = unpack(bundle(project, tmp_path / "out"), "--to", tmp_path / "there", python=python)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(tmp_path / "there").keys() >= CODE


def test_unpack_lists_missing_and_damaged_archives_and_writes_nothing(
    project: Path, data: Path, tmp_path: Path
) -> None:
    out = bundle(project, tmp_path / "out", data=("toy",), data_root=data)
    (out / "nero-bundle.000").unlink()
    (out / "nero-bundle.001").write_bytes((out / "nero-bundle.001").read_bytes()[:-1] + b"?")
    (out / "contents.json").unlink()
    done = unpack(out, "--to", tmp_path / "there")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: contents.json is missing",
        "error: nero-bundle.000 is missing",
        "error: nero-bundle.001 is damaged: its checksum is wrong",
    ]
    assert not (tmp_path / "there").exists()


def test_check_fails_without_checksum_file(project: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out")
    (out / SUMS).unlink()
    done = unpack(out, "--check")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "SHA256SUMS is missing: the bundle is incomplete" in done.stderr


def test_unpacking_again_repairs_only_missing_or_changed_files(project: Path, tmp_path: Path) -> None:
    out, there = bundle(project, tmp_path / "out"), tmp_path / "there"
    unpack(out, "--to", there)
    (there / "data").mkdir()
    (there / "data/own.bin").write_bytes(b"mine")
    (there / "README.md").unlink()
    (there / "pyproject.toml").write_text("half of it")
    times = {name: (there / name).stat().st_mtime_ns for name in CODE - {"README.md", "pyproject.toml"}}
    done = unpack(out, "--to", there)
    assert f"2 of {len(CODE) + 1} files were unpacked" in done.stdout
    assert {name: (there / name).read_text() for name in CODE} == {name: FILES[name] for name in CODE}
    assert {name: (there / name).stat().st_mtime_ns for name in times} == times
    assert (there / "data/own.bin").read_bytes() == b"mine"
    assert f"all {len(CODE) + 1} files are already in {there}" in unpack(out, "--to", there).stdout


def test_unpacking_again_does_not_overwrite_changed_runs(project: Path, tmp_path: Path) -> None:
    out, there = bundle(project, tmp_path / "out", runs=True), tmp_path / "there"
    unpack(out, "--to", there)
    run = there / "results/runs/task/task-1"
    (run / "metrics.jsonl").write_text("longer than it was\n")
    (run / "summary.json").unlink()
    done = unpack(out, "--to", there)
    assert done.returncode == 0
    assert f"1 runs in {there} differ" in done.stdout
    assert tree(run) == {"metrics.jsonl": b"longer than it was\n"}


def test_unpack_refuses_foreign_folder_but_accepts_existing_data(project: Path, tmp_path: Path) -> None:
    out, there = bundle(project, tmp_path / "out"), tmp_path / "there"
    (there / "data").mkdir(parents=True)
    (there / "README.md").write_text("mine")
    done = unpack(out, "--to", there)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {there} is not empty and not an unpacked bundle: choose another folder with --to\n",
    )
    assert (there / "README.md").read_text() == "mine"
    (there / "README.md").unlink()
    assert unpack(out, "--to", there).returncode == 0


def test_unpack_reports_insufficient_disk_space_before_writing(project: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out")
    contents = json.loads((out / "contents.json").read_text())
    contents["install_bytes"] = 10**18
    rewrite(out, contents)
    done = unpack(out, "--to", tmp_path / "there")
    assert done.returncode == 1
    assert "GB free, but 1100000000.0 GB are needed" in done.stderr
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", "C:outside"])
def test_unpack_refuses_paths_outside_target_folder(project: Path, tmp_path: Path, name: str) -> None:
    """The list of files is changed and its checksum updated, as in a malicious bundle."""
    out = bundle(project, tmp_path / "out")
    contents = json.loads((out / "contents.json").read_text())
    contents["files"][0]["path"] = name
    rewrite(out, contents)
    done = unpack(out, "--to", tmp_path / "there")
    assert done.returncode == 1
    assert "leads out of the folder" in done.stderr
    assert not (tmp_path / "there").exists()


def test_unpack_refuses_symlinks_and_unlisted_files(project: Path, tmp_path: Path) -> None:
    out = bundle(project, tmp_path / "out")
    for kind, name in ((tarfile.SYMTYPE, "README.md"), (tarfile.REGTYPE, "surprise.py")):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/hostname"
        with tarfile.open(out / "nero-bundle.000", "w") as archive:
            archive.addfile(member)
        rewrite(out, json.loads((out / "contents.json").read_text()))
        done = unpack(out, "--to", tmp_path / "there")
        assert done.returncode == 1
        assert f"the archives contain '{name}', which the bundle does not list" in done.stderr
        assert tree(tmp_path / "there").keys() == {".bundle.json"}


def rewrite(out: Path, contents: dict) -> None:
    """Replace contents.json and update the checksums."""
    (out / "contents.json").write_text(json.dumps(contents))
    write_sums(out)


# -------------------------------------------------------------------------------------------------------- installing


def test_install_fails_without_wheels_or_on_wrong_platform(project: Path, tmp_path: Path) -> None:
    out, there = bundle(project, tmp_path / "out"), tmp_path / "there"
    assert "made without wheels" in unpack(out, "--to", there, "--install").stderr
    contents = json.loads((out / "contents.json").read_text())
    for python, platform, why in (
        ("3.99", PLATFORM, "this is CPython"),
        (PYTHON, "win_arm64" if sys.platform != "win32" else "macosx_11_0_arm64", "this machine is "),
        (PYTHON, "manylinux_2_28_riscv64", "this machine is "),
        (PYTHON, PLATFORM.replace("manylinux_2_", "manylinux_2_9"), "this machine has glibc"),
    ):
        if sys.platform != "linux" and "linux" in platform:
            continue
        rewrite(out, {**contents, "python": python, "platform": platform})
        done = unpack(out, "--to", there, "--install")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"the bundle is for Python {python} on {platform}, but this " in done.stderr
        assert why in done.stderr
    assert not there.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pip's folders are set up as on Linux")
def test_install_uses_only_bundled_wheels_and_marks_venv_ready(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if not tools:
        pytest.skip("this Python brings no wheel of pip")
    index = tmp_path / "index"
    index.mkdir()
    for tool in tools:
        shutil.copy(tool, index)
    write_wheel(index, "setuptools", "99")
    write_wheel(index, "light", "1.0", modules={"light.py": "weight = 1\n"})
    only_index(monkeypatch, index)
    out, there = tmp_path / "out", tmp_path / "there"
    made = make_bundle(Spec(PYTHON, PLATFORM, root=project, without=("heavy",)), out)
    assert made["left_out"] == ["heavy>=2"]
    shutil.rmtree(index)

    refused = unpack(out, "--to", tmp_path / "other", "--install")
    assert refused.returncode == 1
    assert "heavy>=2 was left out of the bundle, but this Python has none" in refused.stderr
    assert not (tmp_path / "other/.venv/.ready").exists()

    # A virtual environment that has `heavy` stands in for the target machine; its Python unpacks the bundle.
    machine = tmp_path / "machine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(machine)], check=True)
    (site,) = machine.glob("lib/python*/site-packages")
    wheel = write_wheel(tmp_path, "heavy", "2.5a0+own", modules={"heavy.py": ""})
    shutil.unpack_archive(wheel, site, "zip")
    shutil.unpack_archive(tmp_path / "other/wheels/light-1.0-py3-none-any.whl", site, "zip")
    done = unpack(out, "--to", there, "--install", python=str(machine / "bin/python"))
    assert (done.returncode, done.stderr) == (0, "")
    asked = (
        "import nero, light, heavy, importlib.metadata as m; print(nero.__file__, m.version('nero'), light.__file__)"
    )
    python = there / ".venv/bin/python"
    answer = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, cwd=tmp_path)
    # Bundled wheels are installed even if the machine has the same version, which may change later.
    (light,) = there.glob(".venv/lib/python*/site-packages/light.py")
    assert answer.stdout == f"{there / 'src/nero/__init__.py'} 0.1.0 {light}\n"
    ready = (there / ".venv/.ready").stat().st_mtime_ns
    assert ready > max((there / name).stat().st_mtime_ns for name in ("pyproject.toml", "constraints.txt"))
    again = unpack(out, "--to", there, "--install", python=str(machine / "bin/python"))
    assert "is already complete" in again.stdout
    assert (there / ".venv/.ready").stat().st_mtime_ns == ready


# -------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--archive-size", "big"], 2, "'big' is not a size"),
        (["--platform", "abacus"], 2, "unknown platform 'abacus'"),
        (["--python", "2.7"], 2, "'2.7' is not a Python version"),
        (["--python", "3.10"], 1, "the project needs Python >=3.11"),
        (["--data", "minst"], 1, "unknown data set 'minst'"),
        (["--extras", "cloud"], 1, "unknown extra 'cloud'"),
    ],
)
def test_invalid_arguments_give_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    assert exit_status("bundle", ["--out", str(tmp_path / "out"), *words]) == status
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert not tree(tmp_path)


def test_bundling_and_unpacking_the_project_preserves_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NERO_COMMIT", raising=False)
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    out = tmp_path / "out"
    assert exit_status("bundle", ["--no-wheels", "--out", str(out), "--archive-size", "4M"]) == 0
    assert "archives:" in capsys.readouterr().out
    assert unpack(out, "--to", tmp_path / "there").returncode == 0
    assert (tmp_path / "there/src/nero/bundle/unpack.py").read_bytes() == (out / "unpack.py").read_bytes()
    asked = "from nero.runs.provenance import code_version; print(*code_version())"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "there/src")}
    done = subprocess.run([sys.executable, "-c", asked], env=env, cwd=tmp_path, capture_output=True, text=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert done.stdout.split()[0] == head.strip()
