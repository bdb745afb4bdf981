"""Bundles that were cut, changed or made by somebody else: unpacking refuses them in one line."""

import json
import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from nero.bundle import unpack
from nero.bundle.making import Spec, make_bundle, write_sums
from nero.bundle.unpack import CONTENTS, SUMS
from support.bundles import FILES, little_project, tree

FIRST = "README.md"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of several archives."""
    monkeypatch.setenv("NERO_COMMIT", "abc")
    project = little_project(tmp_path / "project", {**FILES, "large.txt": "0123456789" * 20_000})
    make_bundle(Spec(archive_size=64 << 10, root=project), tmp_path / "out")
    return tmp_path / "out"


def unpacked(out: Path, to: Path) -> str:
    """Unpack as the script does; returns what it ends with, or nothing."""
    try:
        contents, archives = unpack.checked(out)
        unpack.unpack(contents, archives, to)
    except SystemExit as end:
        return str(end.code)
    return ""


def change_contents(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    contents = json.loads((out / CONTENTS).read_text())
    change(contents)
    (out / CONTENTS).write_text(json.dumps(contents))
    write_sums(out)


def write_archive(out: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    """Replace all archives by one, which contents.json counts."""
    for path in out.glob("nero-bundle.*"):
        path.unlink()
    with tarfile.open(out / "nero-bundle.000", "w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, BytesIO(data))
    os.truncate(out / "nero-bundle.000", 1 << 20)  # room for all that contents.json lists
    change_contents(out, lambda contents: contents.update(archives=1))


def test_whole_bundle_is_unpacked(out: Path, tmp_path: Path) -> None:
    assert unpacked(out, tmp_path / "there") == ""
    assert tree(tmp_path / "there").keys() >= {FIRST, "large.txt"}


def test_list_of_checksums_must_be_complete(out: Path, tmp_path: Path) -> None:
    lines = (out / SUMS).read_text().splitlines(keepends=True)
    assert len(lines) >= 5
    for number in range(len(lines)):
        (out / SUMS).write_text("".join(lines[:number]))
        assert f"{SUMS} is damaged: it does not list " in unpacked(out, tmp_path / "there"), number
        (out / SUMS).write_text("".join([*lines[:number], *lines[number + 1 :]]))
        name = lines[number].split()[1]
        assert unpacked(out, tmp_path / "there").endswith((f"list {name}", f"list {name!r}"))
    (out / SUMS).write_text("".join([*lines, lines[0].replace(CONTENTS, FIRST)]))
    (out / FIRST).write_bytes((out / CONTENTS).read_bytes())
    assert f"it lists, unlike {CONTENTS}, {FIRST!r}" in unpacked(out, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_lost_archive_is_noticed_though_it_is_not_listed(out: Path, tmp_path: Path) -> None:
    last = max(out.glob("nero-bundle.*"))
    last.unlink()
    write_sums(out)
    assert f"it does not list {last.name!r}" in unpacked(out, tmp_path / "there")


def sparse(name: str, size: int) -> tuple[tarfile.TarInfo, bytes]:
    """Five bytes that are a file of `size` bytes, in GNU's format for tar's PAX headers."""
    data = b"1\n0\n5\n".ljust(512, b"\0") + b"hello"
    member = tarfile.TarInfo(name)
    member.size = len(data)
    numbers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name}
    member.pax_headers = {**numbers, "GNU.sparse.realsize": str(size)}
    return member, data


@pytest.mark.parametrize("listed", [5, 3 << 30, "its own size"])
def test_sparse_member_writes_nothing(out: Path, tmp_path: Path, listed: int | str) -> None:
    write_archive(out, sparse(FIRST, 3 << 30))
    if isinstance(listed, int):
        change_contents(out, lambda contents: _entry(contents, FIRST).update(size=listed))
    said = unpacked(out, tmp_path / "there")
    if listed == 3 << 30:
        assert f"{CONTENTS} is damaged: it lists " in said
        assert not (tmp_path / "there").exists()
    else:
        assert f"'{FIRST}' twice, or not of the size that the bundle lists" in said
        assert tree(tmp_path / "there").keys() == {unpack.RECORD}


def _entry(contents: dict[str, Any], name: str) -> dict[str, Any]:
    return next(file for file in contents["files"] if file["path"] == name)


def test_member_of_another_size_or_twice_is_refused(out: Path, tmp_path: Path) -> None:
    member = tarfile.TarInfo(FIRST)
    for size, times in ((1 << 20, 1), (len(FILES[FIRST]), 2)):
        member.size = size
        write_archive(out, *([(member, FILES[FIRST].encode().ljust(size))] * times))
        assert "twice, or not of the size" in unpacked(out, tmp_path / "there")


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "more bytes than there are": lambda c: c["files"][0].update(size=1 << 40),
    "a negative size": lambda c: c["files"][0].update(size=-1),
    "a size in words": lambda c: c["files"][0].update(size="many"),
    "no checksum": lambda c: c["files"][0].pop("sha256"),
    "no path": lambda c: c["files"][0].update(path=None),
    "a path of two lines": lambda c: c["files"][0].update(path="one\ntwo"),
    "half a character": lambda c: c["files"][0].update(path="\udcff"),
    "a path twice": lambda c: c["files"].append(c["files"][0]),
    "a file that is none": lambda c: c["files"].append(3),
    "executable in words": lambda c: c["files"][0].update(executable="yes"),
    "no files": lambda c: c.pop("files"),
    "files in words": lambda c: c.update(files="many"),
    "no archives": lambda c: c.update(archives=0),
    "archives in words": lambda c: c.update(archives="many"),
    "endless archives": lambda c: c.update(archives=10**12),
    "more archives": lambda c: c.update(archives=c["archives"] + 1),
    "fewer archives": lambda c: c.update(archives=c["archives"] - 1),
    "a size to install in words": lambda c: c.update(install_bytes="many"),
    "a number as Python": lambda c: c.update(python=3.11),
    "a number as left out": lambda c: c.update(left_out=[3]),
}


@pytest.mark.parametrize("what", WRONG)
def test_contents_that_describe_no_bundle_are_refused(out: Path, tmp_path: Path, what: str) -> None:
    change_contents(out, WRONG[what])
    said = unpacked(out, tmp_path / "there")
    assert said.startswith("error: ")
    assert "\n" not in said
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"files": ' * 5000], ids=range(7)
)
def test_contents_that_are_not_json_are_refused(out: Path, tmp_path: Path, data: bytes) -> None:
    (out / CONTENTS).write_bytes(data)
    write_sums(out)
    said = unpacked(out, tmp_path / "there")
    assert said.startswith("error: ")
    assert "\n" not in said


@pytest.mark.parametrize("name", [SUMS, CONTENTS])
def test_large_files_are_not_read(out: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unpack.MOST_BYTES, name, 100)
    assert "it must be a file of at most 100 bytes" in unpacked(out, tmp_path / "there")


def nested_headers() -> bytes:
    """Thousands of headers that each belong to the next: tarfile reads them by recursion."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, 0
    return member.tobuf(tarfile.USTAR_FORMAT) * 5000


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"garbage" * 1000, nested_headers(), b"\xff" * 2048], ids=range(5))
def test_archives_that_are_no_tar_are_refused(out: Path, tmp_path: Path, data: bytes) -> None:
    write_archive(out)
    (out / "nero-bundle.000").write_bytes(data.ljust(1 << 20, b"\0") if data else data)
    write_sums(out)
    said = unpacked(out, tmp_path / "there")
    assert said.startswith("error: ")
    assert said.count("\n") < len(FILES) + 3
    assert "Traceback" not in said
    assert tree(tmp_path / "there").keys() <= {unpack.RECORD}


def test_partial_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody")

    (tmp_path / f".file.{os.getpid()}.part").symlink_to(outside)
    unpack.write(tmp_path / "file", BytesIO(b"ours"), executable=False)
    assert ((tmp_path / "file").read_bytes(), outside.read_text()) == (b"ours", "of somebody")
