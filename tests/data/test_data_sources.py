"""Tests of the data set registry: which copies are accepted, and the errors for missing or damaged files."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nero.data import sources
from nero.data.download.files import CheckedFile, DamagedData
from nero.data.sources import DATASETS, Dataset, MissingData, default_root, problems, require
from support.real_data import root_with

ONE, TWO = b"first\nsecond\nthird\n", b"\x00\x01\x02"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data root with a complete copy of a synthetic data set called `toy`."""
    files = (CheckedFile.of("toy/lines.txt", ONE, any_line_order=True), CheckedFile.of("toy/deep/bytes", TWO))
    monkeypatch.setitem(DATASETS, "toy", Dataset(files, origins=()))
    for file, content in zip(files, (ONE, TWO), strict=True):
        file.put(tmp_path, content)
    return tmp_path


def test_registry_has_layout_expected_by_loaders() -> None:
    assert list(DATASETS) == ["mnist", "cifar10", "wikitext2", "multi30k", "inception"]
    paths = [file.path for name in DATASETS for file in DATASETS[name].files]
    assert len(set(paths)) == len(paths) == 4 + 6 + 3 + 6 + 1
    folders = {"MNIST", "cifar-10-batches-bin", "wikitext-2", "multi30k"}
    assert {path.split("/")[0] for path in paths} == {*folders, "inception-fid.pth"}
    for dataset in DATASETS.values():
        assert dataset.origins
        for file in dataset.files:
            assert file.limit > 0
            if isinstance(file, CheckedFile):
                assert re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_registry_sizes_match_file_formats() -> None:
    """idx: a header of 16 or 8 bytes and one byte per pixel or label; CIFAR-10: 10,000 records of 3073 bytes."""
    sizes = {file.name: file.limit for name in ("mnist", "cifar10") for file in DATASETS[name].files}
    assert sizes["train-images-idx3-ubyte"] == 16 + 60_000 * 28 * 28
    assert sizes["t10k-images-idx3-ubyte"] == 16 + 10_000 * 28 * 28
    assert sizes["train-labels-idx1-ubyte"] == 8 + 60_000
    assert sizes["t10k-labels-idx1-ubyte"] == 8 + 10_000
    assert {size for name, size in sizes.items() if name.endswith(".bin")} == {10_000 * 3073}


def test_complete_copy_is_accepted(toy: Path) -> None:
    assert not problems("toy", toy)
    assert not problems("toy", str(toy), checksums=True)
    require("toy", toy)


def test_same_length_corruption_is_detected_only_by_checksum(toy: Path) -> None:
    (toy / "toy/deep/bytes").write_bytes(b"\x00\x01\x03")
    assert not problems("toy", toy)
    assert problems("toy", toy, checksums=True)


def test_missing_file_error_names_file_and_command_on_one_line(toy: Path) -> None:
    (toy / "toy/deep/bytes").unlink()
    assert problems("toy", toy)
    with pytest.raises(MissingData) as caught:
        require("toy", toy)
    message = str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert "\n" not in message
    assert f"{toy}/toy/deep/bytes is missing" in message
    assert f"nero data toy --root {toy}" in message


def test_file_of_wrong_length_is_reported_as_damaged(toy: Path) -> None:
    (toy / "toy/lines.txt").write_bytes(ONE[:-1])
    with pytest.raises(MissingData, match=r"lines\.txt is damaged: 18 bytes instead of 19"):
        require("toy", toy)


def test_suggested_command_quotes_root_with_spaces(toy: Path) -> None:
    with pytest.raises(MissingData, match=r"--root '/no such/folder'$"):
        require("toy", "/no such/folder")


def test_directory_in_place_of_file_is_reported(toy: Path) -> None:
    (toy / "toy/deep/bytes").unlink()
    (toy / "toy/deep/bytes").mkdir()
    assert problems("toy", toy)


@pytest.mark.parametrize("call", [require, problems])
def test_unknown_dataset_error_lists_known_names(call: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'imagenet': choose from mnist, cifar10, wikitext2, multi30k"):
        call("imagenet", tmp_path)  # type: ignore[operator]


def test_default_root_reads_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_DATA", "/somewhere/else")
    assert default_root() == Path("/somewhere/else")
    monkeypatch.delenv("NERO_DATA")
    assert default_root() == Path("data")


def test_reordered_lines_pass_only_with_any_line_order(toy: Path) -> None:
    (toy / "toy/lines.txt").write_bytes(b"third\nfirst\nsecond\n")
    assert not problems("toy", toy, checksums=True)
    (toy / "toy/lines.txt").write_bytes(b"third\nfirst\nsecont\n")
    assert problems("toy", toy, checksums=True)
    strict = CheckedFile.of("toy/lines.txt", ONE)
    (toy / "toy/lines.txt").write_bytes(b"third\nfirst\nsecond\n")
    assert strict.problem(toy, checksums=True) is not None


@given(lines=st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), min_size=1), data=st.data())
def test_any_line_order_checksum_is_invariant_to_line_order(lines: list[bytes], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(lines))
    one, two = (CheckedFile.of("x", b"\n".join(order), any_line_order=True) for order in (lines, shuffled))
    assert one == two
    longer = CheckedFile.of("x", b"\n".join([*lines, b"more"]), any_line_order=True)
    assert one.sha256 != longer.sha256


def test_forged_file_with_the_same_md5_is_refused() -> None:
    """Two contents of one length and MD5 (Wang et al. 2004)."""
    ours, other = (
        bytes.fromhex(
            f"d131dd02c5e6eec4693d9a0698aff95c2fcab5{a}12467eab4004583eb8fb7f8955ad340609f4b30283e4888325{b}415a085125e8"
            f"f7cdc99fd91dbd{c}80373c5bd8823e3156348f5bae6dacd436c919c6dd53e2{d}87da03fd02396306d248cda0e99f33420f577ee8"
            f"ce54b67080{e}0d1ec69821bcb6a8839396f965{f}6ff72a70"
        )
        for a, b, c, d, e, f in (("87", "71", "f2", "b4", "a8", "2b"), ("07", "f1", "72", "34", "28", "ab"))
    )
    assert ours != other
    assert len({hashlib.md5(content).hexdigest() for content in (ours, other)}) == 1
    assert CheckedFile.of("x", ours).fault(len(other), other) == "its checksum is wrong"


@pytest.mark.parametrize("content", [b"", TWO + b"\x03", b"\x00\x01\x03"])
def test_put_rejects_wrong_content_and_keeps_existing_file(toy: Path, content: bytes) -> None:
    file = DATASETS["toy"].files[1]
    with pytest.raises(DamagedData, match="bytes came damaged"):
        file.put(toy, content)
    assert (toy / "toy/deep/bytes").read_bytes() == TWO
    assert [path.name for path in (toy / "toy/deep").iterdir()] == ["bytes"]


def test_put_leaves_no_partial_file_on_failure(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is gone"):
        DATASETS["toy"].files[1].put(toy, TWO)
    assert [path.name for path in (toy / "toy/deep").iterdir()] == ["bytes"]


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "cifar10", "wikitext2", "multi30k", "inception"])
def test_real_datasets_pass_checksums(name: str) -> None:
    assert sources.problems(name, root_with(name), checksums=True) == []
