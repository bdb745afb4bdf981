"""Tests of splitting a stream of files into archives of any size, and of joining them."""

import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.bundle.making import Archives, pack, parse_size, write_sums
from nero.bundle.unpack import Joined
from nero.bundle.wheels import BundleError

names = st.lists(st.text("abcäß.-_ ", min_size=1, max_size=120), min_size=1, max_size=4).map("/".join)
paths = names.filter(lambda name: not {".", ".."} & set(name.split("/")))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 400))
def test_split_archives_join_to_the_same_bytes(pieces: list[bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        archives = Archives(Path(name), size)
        for piece in pieces:
            archives.write(piece)
        archives.file.close()
        whole, files = b"".join(pieces), sorted(Path(name).iterdir())
        assert [file.stat().st_size for file in files[:-1]] == [size] * (len(files) - 1)
        assert len(files) == -(-len(whole) // size)
        joined, read = Joined(files), b""
        while data := joined.read(7):
            read += data
        assert read == whole


@settings(max_examples=40)
@given(st.dictionaries(paths, st.binary(max_size=2000), max_size=6), st.integers(1, 30_000))
def test_packed_files_round_trip_through_archives(files: dict[str, bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        sources = {}
        for number, (path, content) in enumerate(files.items()):
            sources[path] = Path(name, f"source-{number}")
            sources[path].write_bytes(content)
            sources[path].chmod(0o755 if len(content) % 2 == 0 else 0o644)
        out = Path(name, "out")
        out.mkdir()
        packed = pack(sources, out, max(size, 512))
        joined = Joined(sorted(out.iterdir()))
        with tarfile.open(fileobj=joined, mode="r|") as archive:  # type: ignore[call-overload]
            for file, member in zip(packed, archive, strict=True):
                content = archive.extractfile(member)
                assert content is not None
                assert (member.name, member.mode & 0o100 != 0) == (file["path"], file["executable"])
                assert content.read() == files[file["path"]]
                assert hashlib.sha256(files[file["path"]]).hexdigest() == file["sha256"]
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
    assert [file["path"] for file in packed] == sorted(files)


def test_file_truncated_during_packing_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"ab")
    monkeypatch.setattr("nero.bundle.making.sha256", lambda path: path.write_bytes(b"a"))
    with pytest.raises(OSError, match="unexpected end of data"):
        pack({"file": tmp_path / "file"}, tmp_path, 1 << 20)


def test_parse_size_accepts_common_units() -> None:
    sizes = {"64M": 64 << 20, "1.5G": 3 << 29, "70000": 70_000, "64k": 1 << 16, "2GB": 2 << 30, "0.25 GiB": 1 << 28}
    assert {text: parse_size(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "M", "64X", "-1M", "1e9", "0", "10", "nan", "inf", "1.2.3G", "64M please"])
def test_parse_size_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a size|too small") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../b", "a\\b", "./a", "a//b", ""])
def test_pack_rejects_unsafe_paths(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="not a path that a bundle can contain"):
        pack({path: tmp_path / "file"}, tmp_path, 1 << 20)


def test_checksum_file_is_valid_for_sha256sum(tmp_path: Path) -> None:
    archives = Archives(tmp_path, 10)
    archives.write(bytes(range(25)))
    archives.file.close()
    write_sums(tmp_path)
    try:
        done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True)
    except OSError:
        pytest.skip("no sha256sum here")
    assert done.returncode == 0
    assert done.stdout.count(b": OK") == 3
