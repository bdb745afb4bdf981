"""Tests of checking the ImageNet folder: problems, data sets that are usable nevertheless, and damaged files."""

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from data.test_image_folders import make_unreadable
from nero.data.images import imagenet
from nero.data.images.folders import list_images
from nero.data.sources import MissingData
from nero.data.synthetic.jpeg_folders import jpeg_folders

Counts = dict[str, dict[str, int]]

LITTLE: Counts = {"train": {"n01440764": 3, "n01443537": 2}, "val": {"n01440764": 2, "n01443537": 2}}


def patch_imagenet_to_tiny_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set ImageNet's size to that of LITTLE: 5 training images, 2 or 3 per class, and 2 validation images per class."""
    monkeypatch.setattr(imagenet, "CLASSES", 2)
    monkeypatch.setitem(imagenet.SPLITS, "train", imagenet.SPLITS["train"]._replace(images=5, fewest=2, most=3))
    monkeypatch.setitem(imagenet.SPLITS, "val", imagenet.SPLITS["val"]._replace(images=4, fewest=2, most=2))


@pytest.fixture
def little_imagenet(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_imagenet_to_tiny_counts(monkeypatch)


def encoded(kind: str, side: int = 8) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (side, side), (200, 30, 60)).save(target, kind)
    return target.getvalue()


def lay_out(root: Path, counts: Counts) -> Path:
    """Create the given number of small JPEG files in each class of each split, and return the root."""
    content = encoded("JPEG")
    for split, classes in counts.items():
        for name, count in classes.items():
            folder = root / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.JPEG").write_bytes(content)
    return root


def test_expected_counts_are_those_of_ilsvrc2012() -> None:
    assert imagenet.CLASSES == 1000
    train, val = imagenet.SPLITS["train"], imagenet.SPLITS["val"]
    assert (train.images, train.fewest, train.most) == (1_281_167, 732, 1_300)
    assert (val.images, val.fewest, val.most) == (50_000, 50, 50)


# --------------------------------------------------------------------------------------------------- contents


@pytest.mark.usefixtures("little_imagenet")
def test_complete_imagenet_has_no_problems(tmp_path: Path) -> None:
    lay_out(tmp_path, LITTLE)
    assert imagenet.survey(tmp_path).problems == []
    train, val = imagenet.require(tmp_path)
    assert (train.root, val.root) == (tmp_path / "imagenet/train", tmp_path / "imagenet/val")
    assert (train.labels.tolist(), val.labels.tolist()) == ([0, 0, 0, 1, 1], [0, 0, 1, 1])
    assert imagenet.remarks(train, val) == ()
    assert imagenet.summary(train, val) == "5 training and 4 validation images in 2 classes"


@pytest.mark.usefixtures("little_imagenet")
def test_symlink_to_imagenet_is_accepted(tmp_path: Path) -> None:
    lay_out(tmp_path / "elsewhere", LITTLE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "imagenet").symlink_to(tmp_path / "elsewhere" / "imagenet")
    assert imagenet.survey(tmp_path / "data").problems == []


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (
            {**LITTLE, "train": {"n01440764": 1, "n01443537": 2}},
            [
                "{train} has 3 images in 2 classes instead of 5 in 2",
                "{train} has classes of other than 2 to 3 images: n01440764 (1)",
            ],
        ),
        (
            {**LITTLE, "val": {"n01440764": 3, "n01443537": 1}},  # the total is correct
            ["{val} has classes of other than 2 images: n01440764 (3), n01443537 (1)"],
        ),
        (
            {"train": dict.fromkeys("abcdef", 2), "val": dict.fromkeys("abcdef", 1)},
            [
                "{train} has 12 images in 6 classes instead of 5 in 2",
                "{val} has 6 images in 6 classes instead of 4 in 2",
                "{val} has classes of other than 2 images: a (1), b (1), c (1) and 3 more",
            ],
        ),
    ],
)
@pytest.mark.usefixtures("little_imagenet")
def test_unexpected_counts_are_reported_but_usable(tmp_path: Path, counts: Counts, found: list[str]) -> None:
    lay_out(tmp_path, counts)
    places = {split: tmp_path / "imagenet" / split for split in ("train", "val")}
    assert imagenet.survey(tmp_path).problems == [line.format(**places) for line in found]
    train, val = imagenet.require(tmp_path)
    (line,) = imagenet.remarks(train, val)
    assert line.startswith(f"not ImageNet: {len(train)} training and {len(val)} validation images in ")
    same = (len(train), len(val)) == (5, 4)
    assert line.endswith(" classes, but not its numbers in each class") == same


def test_remark_identifies_dataset_other_than_imagenet(tmp_path: Path) -> None:
    train, val = (list_images(folder) for folder in jpeg_folders(tmp_path, 1000, 20))
    assert imagenet.remarks(train, val) == ("not ImageNet: 1,000 training and 20 validation images in 10 classes",)


@pytest.mark.usefixtures("little_imagenet")
def test_skipped_files_are_reported(tmp_path: Path) -> None:
    lay_out(tmp_path, LITTLE)
    for name in ("train/a.txt", "train/n01440764/b", "train/n01443537/c.tar", "train/n01443537/d.md", "val/loose.JPEG"):
        (tmp_path / "imagenet" / name).touch()
    expected = [
        "4 files in train skipped (not an image by suffix): a.txt, n01440764/b, n01443537/c.tar and 1 more",
        "1 file in val skipped (image outside of a class folder): loose.JPEG",
    ]
    assert imagenet.survey(tmp_path).problems == expected
    assert imagenet.remarks(*imagenet.require(tmp_path)) == tuple(expected)


# ------------------------------------------------------------------------------------------------- unusable folders


def refused(root: Path) -> str:
    """The error message of `require`, checked to be one line that ends with the command for instructions."""
    with pytest.raises(MissingData) as caught:
        imagenet.require(root)
    message = str(caught.value)
    assert message.startswith("imagenet: ")
    assert message.endswith(f"; for instructions run: nero data imagenet --root {shlex.quote(str(root))}")
    assert "\n" not in message
    return message


def test_missing_imagenet_folder_is_one_problem(tmp_path: Path) -> None:
    assert imagenet.survey(tmp_path / "a folder").problems == [f"{tmp_path}/a folder/imagenet is missing"]
    assert f"{tmp_path}/a folder/imagenet is missing;" in refused(tmp_path / "a folder")


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.usefixtures("little_imagenet")
def test_missing_split_raises(tmp_path: Path, split: str) -> None:
    lay_out(tmp_path, {each: classes for each, classes in LITTLE.items() if each != split})
    assert imagenet.survey(tmp_path).problems == [f"{tmp_path}/imagenet/{split} is missing"]
    assert f"/imagenet/{split} is missing;" in refused(tmp_path)


def test_flat_val_folder_error_explains_how_to_sort_it(tmp_path: Path) -> None:
    lay_out(tmp_path, {"train": {"n01440764": 1}, "val": {"": 1_234}})
    found = [line for line in imagenet.survey(tmp_path).problems if "/val" in line]
    assert found == [
        f"{tmp_path}/imagenet/val has 1,234 images outside of class folders: rename it, and let"
        " torchvision.datasets.ImageNet sort ILSVRC2012_img_val.tar into classes"
    ]
    assert found[0] in refused(tmp_path)


@pytest.mark.usefixtures("little_imagenet")
def test_unextracted_archives_raise(tmp_path: Path) -> None:
    lay_out(tmp_path, {**LITTLE, "train": {}})
    (tmp_path / "imagenet/train").mkdir()
    (tmp_path / "imagenet/train/n01440764.tar").touch()
    assert "train has no class folders, only files: n01440764.tar;" in refused(tmp_path)


@pytest.mark.usefixtures("little_imagenet")
def test_empty_class_folder_raises(tmp_path: Path) -> None:
    lay_out(tmp_path, {**LITTLE, "val": {"n01440764": 2, "n01443537": 0}})
    assert "val has class folders without an image: n01443537;" in refused(tmp_path)


@pytest.mark.usefixtures("little_imagenet")
def test_different_classes_in_train_and_val_raise(tmp_path: Path) -> None:
    """An additional class in the training set would shift all later labels."""
    lay_out(tmp_path, {"train": {"a": 2, "b": 1, "d": 2}, "val": {"b": 2, "c": 2, "d": 1}})
    places = f"{tmp_path}/imagenet/train and {tmp_path}/imagenet/val"
    line = f"{places} have different classes; only in train: a; only in val: c"
    assert line in imagenet.survey(tmp_path).problems
    assert line in refused(tmp_path)
    (tmp_path / "imagenet/val/c").rename(tmp_path / "imagenet/val/a")
    imagenet.require(tmp_path)


def test_error_counts_further_problems(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    assert f"{tmp_path}/imagenet/train is missing (and 1 more);" in refused(tmp_path)


@pytest.mark.usefixtures("little_imagenet")
def test_unreadable_folder_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = lay_out(tmp_path, LITTLE) / "imagenet/train/n01440764"
    make_unreadable(monkeypatch, closed)
    assert f"{closed} cannot be read: Permission denied;" in refused(tmp_path)


# ----------------------------------------------------------------------------------------------- instructions


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which torchvision.datasets.ImageNet only prints its arguments."""
    (tmp_path / "stand-in/torchvision").mkdir(parents=True)
    (tmp_path / "stand-in/torchvision/__init__.py").touch()
    (tmp_path / "stand-in/torchvision/datasets.py").write_text("def ImageNet(root, split): print(root, split)\n")
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(tmp_path / "stand-in"), "PATH": path}


def test_suggested_extraction_command_runs_as_printed(tmp_path: Path, stand_in: dict[str, str]) -> None:
    root = tmp_path / 'the "good" $data'
    lines = imagenet.explanation(root).splitlines()
    (line,) = (line for line in lines if line.strip().startswith("python -c"))
    done = subprocess.run(line, shell=True, env=stand_in, capture_output=True, text=True)
    assert done.stdout == f"{root}/imagenet train\n{root}/imagenet val\n", done.stderr


def test_explanation_names_all_archives_and_the_folder() -> None:
    text = imagenet.explanation("data")
    archives = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz")
    for words in (*archives, "https://image-net.org", "ln -s /where/it/is data/imagenet", "pip install scipy"):
        assert words in text
    assert {split.archive for split in imagenet.SPLITS.values()} < set(archives)


# ---------------------------------------------------------------------------------------------- damaged files


def faults(root: Path, contents: dict[str, bytes]) -> dict[str, str]:
    for name, content in contents.items():
        (root / "class").mkdir(parents=True, exist_ok=True)
        (root / "class" / name).write_bytes(content)
    lines = imagenet.unreadable(list_images(root))
    return dict(line.removeprefix(f"{root}/class/").split(" ", 1) for line in lines)


def test_intact_images_pass_regardless_of_suffix(tmp_path: Path) -> None:
    kinds = {kind: encoded(kind) for kind in ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP")}
    contents = {f"{kind}.JPEG": content for kind, content in kinds.items()}
    contents["longer.JPEG"] = kinds["JPEG"] + bytes(1000)  # some programs append data after the end
    contents["large.JPEG"] = encoded("JPEG", side=2000)
    assert faults(tmp_path, contents) == {}


def test_damaged_files_are_reported_with_reason(tmp_path: Path) -> None:
    jpeg, png = encoded("JPEG", side=300), encoded("PNG", side=300)
    assert (
        faults(
            tmp_path,
            {
                "a.JPEG": jpeg,
                "b.JPEG": b"",
                "c.JPEG": jpeg[:-2],
                "d.JPEG": jpeg[: len(jpeg) // 2],
                "e.JPEG": jpeg[: len(jpeg) // 2] + bytes(len(jpeg)),  # as after a crash of the machine
                "f.JPEG": png[:-8],
                "g.JPEG": b"<html>404</html>",
                "h.JPEG": bytes(len(jpeg)),
                "i.JPEG": jpeg[:1],
            },
        )
        == {
            "b.JPEG": "is empty",
            "c.JPEG": "is a JPEG without its end",
            "d.JPEG": "is a JPEG without its end",
            "e.JPEG": "is a JPEG without its end",
            "f.JPEG": "is a PNG without its end",
            "g.JPEG": "does not begin like an image: 3c 68 74 6d 6c 3e 34 30",
            "h.JPEG": "does not begin like an image: 00 00 00 00 00 00 00 00",
            "i.JPEG": "does not begin like an image: ff",
        }
    )


def test_broken_symlink_is_reported_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class/a.JPEG").symlink_to(tmp_path / "nowhere")
    (line,) = imagenet.unreadable(list_images(tmp_path))
    assert line == f"{tmp_path}/class/a.JPEG cannot be read: No such file or directory"


def test_file_check_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet, "CHUNK", 3)
    lay_out(tmp_path, {"val": {"a": 4, "b": 4}})
    (tmp_path / "imagenet/val/b/3.JPEG").write_bytes(b"")
    images = list_images(tmp_path / "imagenet/val")
    said: list[str] = []
    assert len(list(imagenet.unreadable(images, said.append, every=0))) == 1
    assert said == [f"val: checked {count} of 8 files" for count in (3, 6, 8)]
    said.clear()
    assert len(list(imagenet.unreadable(images, said.append, every=60))) == 1
    assert said == []
