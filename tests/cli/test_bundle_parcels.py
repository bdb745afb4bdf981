"""One stream in parcels of any size, and back."""

import hashlib
import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.bundle.parcels import Entry, Parcels, in_order, pack, parse_size, sums_text
from nero.bundle.refusal import Refusal
from nero.bundle.unpack import Joined

names = st.lists(st.text("abcäß.-_ ", min_size=1, max_size=120), min_size=1, max_size=4).map("/".join)
paths = names.filter(lambda name: not {".", ".."} & set(name.split("/")))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 400))
def test_what_is_cut_joins_to_the_same_bytes(pieces: list[bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Parcels(folder, size) as parcels:
            for piece in pieces:
                parcels.write(piece)
        whole = b"".join(pieces)
        files = [folder / file for _, file in parcels.sums]
        assert sorted(folder.iterdir()) == sorted(files)
        assert [file.stat().st_size for file in files[:-1]] == [size] * (len(files) - 1)
        assert len(files) == -(-len(whole) // size)
        assert all(hashlib.sha256(path.read_bytes()).hexdigest() == digest for digest, path in zip_sums(parcels, files))
        assert io.BufferedReader(Joined(files), 7).read() == whole


def zip_sums(parcels: Parcels, files: list[Path]) -> list[tuple[str, Path]]:
    return [(digest, file) for (digest, _), file in zip(parcels.sums, files, strict=True)]


@settings(max_examples=40)
@given(st.dictionaries(paths, st.binary(max_size=2000), max_size=6), st.integers(1, 30_000))
def test_files_come_out_of_the_parcels_as_they_went_in(files: dict[str, bytes], size: int) -> None:
    entries = [Entry(path, content, executable=len(content) % 2 == 0) for path, content in files.items()]
    with tempfile.TemporaryDirectory() as name:
        with Parcels(Path(name), max(size, 512)) as parcels:
            packed = pack(reversed(entries), parcels)
        joined = Joined([Path(name, file) for _, file in parcels.sums])
        with tarfile.open(fileobj=io.BufferedReader(joined), mode="r|") as archive:
            for file, member in zip(packed, archive, strict=True):
                content = archive.extractfile(member)
                assert content is not None
                assert (member.name, member.mode & 0o100 != 0) == (file.path, file.executable)
                assert content.read() == files[file.path]
                assert hashlib.sha256(files[file.path]).hexdigest() == file.sha256
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
    assert [file.path for file in packed] == sorted(files)


def test_a_file_that_shrinks_while_it_is_packed_stops_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"ab")
    monkeypatch.setattr(Entry, "size", property(lambda entry: 3))
    with Parcels(tmp_path, 1 << 20) as parcels, pytest.raises(Refusal, match="file became shorter"):
        pack([Entry("file", tmp_path / "file")], parcels)


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = {"64M": 64 << 20, "1.5G": 3 << 29, "70000": 70_000, "64k": 1 << 16, "2GB": 2 << 30, "0.25 GiB": 1 << 28}
    assert {text: parse_size(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "M", "64X", "-1M", "1e9", "0", "10", "nan", "inf", "1.2.3G", "64M please"])
def test_nonsense_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"no size|too small") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../b", "a\\b", "./a", "a//b", ""])
def test_no_path_leads_out_of_a_bundle(path: str) -> None:
    with pytest.raises(Refusal, match="no path that a bundle can carry"):
        in_order([Entry(path, b"")])


def test_no_file_is_in_a_bundle_twice() -> None:
    with pytest.raises(Refusal, match="data/a would be in the bundle twice"):
        in_order([Entry("data/a", b"1"), Entry("b", b""), Entry("data/a", b"2")])


def test_sha256sum_understands_the_list(tmp_path: Path) -> None:
    with Parcels(tmp_path, 10) as parcels:
        parcels.write(bytes(range(25)))
    (tmp_path / "SHA256SUMS").write_text(sums_text(parcels.sums))
    try:
        done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True)
    except OSError:
        pytest.skip("no sha256sum here")
    assert done.returncode == 0
    assert done.stdout.count(b": OK") == 3
