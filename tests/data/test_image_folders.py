"""Tests of listing image folders, against torchvision's ImageFolder."""

import errno
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from nero.data.images.folders import SUFFIXES, ListedImages, list_images, some

# Names that sort differently by path component or character ("a-b" before "a/b"), byte or code point, or by case.
FILES = (
    "cat/b.jpg",
    "cat/B.JPEG",
    "cat/a.PnG",
    "cat/10.jpg",
    "cat/9.jpg",
    "cat/a/z.jpg",
    "cat/a/deep/y.webp",
    "cat/a-b/x.tiff",
    "cat/a.b/w.ppm",
    "cat/.jpg",
    "cat/ﬀ.jpg",
    "cat/\U0001f408.jpg",
    "Dog/one two.JPG",
    "dog/1.bmp",
    "dog/a.jpg.png",
    "n01440764/n01440764_10026.JPEG",
    "n01440764/n01440764_9.JPEG",
)
OTHERS = (".DS_Store", "cat/.DS_Store", "cat/a/notes.txt", "dog/b.jpg.part", "dog/c.gif", "dog/jpg", "loose.jpg")


def tree(root: Path, names: tuple[str, ...] = (*FILES, *OTHERS)) -> Path:
    """Create empty files in random order."""
    for name in random.Random(0).sample(names, len(names)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def make_unreadable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make `os.scandir` fail for a folder; permissions would not stop root, as whom tests may run."""
    real = os.scandir

    def scandir(path: str) -> Any:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def assert_as_image_folder(listed: ListedImages, root: Path) -> None:
    oracle = ImageFolder(str(root))
    assert list(listed.classes) == oracle.classes
    assert [(str(listed.path(i)), int(listed.labels[i])) for i in range(len(listed))] == oracle.samples


def test_listing_matches_torchvision_image_folder(tmp_path: Path) -> None:
    listed = list_images(tree(tmp_path))
    assert_as_image_folder(listed, tmp_path)
    assert len(listed) == len(FILES)
    assert sorted(listed.name(index) for index in range(len(listed))) == sorted(FILES)
    assert listed.classes == ("Dog", "cat", "dog", "n01440764")
    assert listed.labels.dtype == np.int64
    assert np.bincount(listed.labels).tolist() == [1, 12, 2, 2]


def test_skipped_files_are_listed_in_others(tmp_path: Path) -> None:
    assert list_images(tree(tmp_path)).others == OTHERS


def test_suffixes_match_torchvision() -> None:
    assert SUFFIXES == IMG_EXTENSIONS


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own")
def test_symlinks_to_folders_and_images_are_followed(tmp_path: Path) -> None:
    store, root = tree(tmp_path / "store"), tmp_path / "linked"
    (root / "own").mkdir(parents=True)
    (root / "cat").symlink_to(store / "cat")
    (root / "own" / "sub").symlink_to(store / "dog")
    (root / "own" / "link.jpg").symlink_to(store / "dog" / "1.bmp")
    (tmp_path / "again").symlink_to(root)
    for place in (root, tmp_path / "again"):
        listed = list_images(place)
        assert_as_image_folder(listed, place)
        assert len(listed) == 12 + 3


def test_relative_root_gives_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list_images(tree(tmp_path / "train"))
    monkeypatch.chdir(tmp_path / "train")
    assert_as_image_folder(list_images("../train/"), Path("../train"))
    here = list_images(".")
    assert [here.name(i) for i in range(len(here))] == [expected.name(i) for i in range(len(expected))]
    assert here.path(0) == Path(here.name(0))


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_non_utf8_file_names_are_preserved(tmp_path: Path) -> None:
    tree(tmp_path, ("cat/a.jpg",))
    odd = os.fsdecode(b"\xff\xfe.jpg")
    (tmp_path / "cat" / odd).write_bytes(b"content")
    listed = pickle.loads(pickle.dumps(list_images(tmp_path)))
    assert_as_image_folder(listed, tmp_path)
    assert listed.path(1).read_bytes() == b"content"


def test_listed_images_survive_pickling(tmp_path: Path) -> None:
    listed = list_images(tree(tmp_path))
    copy = pickle.loads(pickle.dumps(listed))
    assert_as_image_folder(copy, tmp_path)
    assert (copy.root, copy.others) == (listed.root, listed.others)


def test_names_are_stored_in_one_buffer(tmp_path: Path) -> None:
    """No Python object is kept per image; only `others` has one per skipped file."""
    listed = list_images(tree(tmp_path, tuple(f"class/{number}.jpg" for number in range(1000))))
    kept = {name: value for name, value in vars(listed).items() if isinstance(value, list | tuple | dict)}
    assert {name: len(value) for name, value in kept.items()} == {"classes": 1, "others": 0}
    assert {array.dtype.kind for array in (listed.names, listed.labels)} == {"S", "i"}, "no array of objects"


def test_listing_does_not_stat_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million stat calls to a network file system would take an hour."""
    tree(tmp_path)
    asked: list[str] = []
    for name in ("stat", "lstat"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, *a, _r=real, **k: (asked.append(str(path)), _r(path, *a, **k))[1])
    list_images(tmp_path)
    assert not [path for path in asked if Path(path).suffix]


@pytest.mark.parametrize("index", [-1, 2, 10**9])
def test_name_raises_index_error_out_of_range(tmp_path: Path, index: int) -> None:
    listed = list_images(tree(tmp_path, ("cat/a.jpg", "cat/b.jpg")))
    with pytest.raises(IndexError):
        listed.name(index)
    assert listed.name(np.int64(1)) == "cat/b.jpg"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "has no class folders$"),
        (("1.jpg", "2.jpg", "3.jpg", "4.jpg"), r"has no class folders, only files: 1.jpg, 2.jpg, 3.jpg and 1 more$"),
        (("cat/a.jpg", "dog/notes.txt", "emu/deep/x.gif"), "has class folders without an image: dog, emu$"),
    ],
)
def test_unlistable_folder_error_is_one_line(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path} {message}"):
        list_images(tree(tmp_path, names))


def test_root_that_is_not_a_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, why in (("gone", "is missing"), ("file", "is not a folder"), ("link", "is a broken link")):
        with pytest.raises(ValueError, match=f"^{tmp_path / name} {why}$"):
            list_images(tmp_path / name)


def test_unreadable_folder_raises_permission_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_unreadable(monkeypatch, tree(tmp_path) / "cat" / "a")
    with pytest.raises(PermissionError):
        list_images(tmp_path)


def test_some_abbreviates_long_name_lists() -> None:
    assert some(["a"]) == "a"
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some([str(number) for number in range(2003)]) == "0, 1, 2 and 2,000 more"


def test_listing_does_not_import_torch_or_torchvision() -> None:
    modules = "sys, nero.data.images.folders, nero.data.images.imagenet"
    code = f"import {modules}; print({{'torch', 'torchvision'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
