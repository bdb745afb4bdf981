"""Tests of `nero sample` on a run trained on embedded data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nero.cli.trained import sample as main
from nero.models.biggan import Generator, Z
from nero.runs.store import RunDirectory
from support.whole_runs import assert_only_runs_of_a_kind, trained

TINY = (
    "task=cifar10_cgan",
    "data=embedded",
    "task.train_examples=100",
    "task.batch_size=50",
    "task.epochs=1",
    "task.generator.width=8",
    "task.generator.rows=10",
    "task.discriminator.width=8",
    "task.discriminator.rows=10",
    "optim=adam",
    "machine=cpu",
)
Sample = Callable[..., tuple[Image.Image, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("store"), TINY)


@pytest.fixture
def sample(run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sample:
    def call(*words: str) -> tuple[Image.Image, str]:
        out = tmp_path / "samples.png"
        assert main([str(run.path), "--device", "cpu", "--out", str(out), *words]) == 0
        with Image.open(out) as picture:
            return picture.convert("RGB"), capsys.readouterr().out

    return call


def tiles(picture: Image.Image) -> np.ndarray:
    """The images of a picture as [rows, columns, 32, 32, 3]."""
    pixels = np.asarray(picture)
    rows, columns = pixels.shape[0] // 32, pixels.shape[1] // 32
    return pixels.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4)


def test_picture_matches_generator_output(sample: Sample, run: RunDirectory) -> None:
    """The reference loads the checkpoint into a generator and evaluates it."""
    picture, said = sample("--rows", "2", "--seed", "5")
    assert said.strip().endswith("samples.png")
    generator = Generator(width=8, rows=10).eval()
    (place,) = run.path.glob("checkpoint-*.pt")
    generator.load_state_dict(torch.load(place, weights_only=True)["networks"]["generator"])
    z = torch.randn(20, Z, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        images = generator(z, torch.arange(10).repeat(2))
    expected = ((images + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).reshape(2, 10, 32, 32, 3)
    assert np.abs(tiles(picture).astype(int) - expected.numpy().astype(int)).max() <= 1


def test_picture_is_determined_by_seed(sample: Sample) -> None:
    pictures = [np.asarray(sample("--rows", "1", "--seed", seed)[0]) for seed in ("3", "3", "4")]
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])


def test_classes_columns_and_scale_options(sample: Sample) -> None:
    assert sample()[0].size == (320, 256)
    picture, _ = sample("--classes", "6", "2", "--columns", "5", "--rows", "3", "--scale", "2")
    assert picture.size == (5 * 64, 3 * 64)
    small, _ = sample("--classes", "6", "2", "--columns", "5", "--rows", "3")
    assert np.array_equal(np.asarray(picture)[::2, ::2], np.asarray(small))
    turns, _ = sample("--classes", "6", "2", "6", "2", "6", "--rows", "3")
    assert np.array_equal(np.asarray(turns), np.asarray(small))
    assert sample("--classes", "6", "--rows", "3")[0].size == (32, 96)


def test_fid_option_prints_named_distances(sample: Sample) -> None:
    found = [line.split() for line in sample("--fid")[1].splitlines()[1:]]
    names = [f"{part}/stand_in_fid{kind}" for kind in ("", "_released") for part in ("train", "val")]
    assert [name for name, _ in found] == names
    assert len({value for _, value in found}) == 4
    assert sample("--fid")[1].splitlines()[1:] == [" ".join(line) for line in found]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "0"], "must be a positive integer, not '0'"),
        (
            ["--out", "samples.txt"],
            "--out: samples.txt does not end with the suffix of an image format, such as .png or .jpg",
        ),
        (["--out", "nowhere/samples.png"], "--out: there is no folder nowhere"),
    ],
)
def test_invalid_options_are_rejected(
    run: RunDirectory, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(run.path), *words])
    assert message in capsys.readouterr().err


def test_class_out_of_range_gives_one_line_error(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path), "--device", "cpu", "--classes", "10"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: --classes must be from 0 to 9, not 10"


def test_sample_rejects_runs_of_other_tasks(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_only_runs_of_a_kind(main, run, "ConditionalGAN", tmp_path, capsys)
