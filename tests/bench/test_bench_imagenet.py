"""Tests of the ResNet-50 benchmark: its table, failing measurements and the generated photographs."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.photographs import SIZES, write_photographs
from PIL import Image

from conftest import bench_module

WORDS = (
    "machine=cpu",
    "task.batch_size=10",
    "task.image_size=16",
    "task.resize=18",
    f"task.network._target_={__name__}.small",
    "task.network.norm_parts=1",
    "machine.workers=1",
)


def small(num_classes: int, norm_parts: int, layers: list[int]) -> torch.nn.Module:
    """A small network that takes the arguments of `resnet50`."""
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, num_classes))


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch):
    module = bench_module("imagenet")
    for name in ("CLASSES", "JOBS"):
        monkeypatch.setattr(module, name, 2)
    return module.main


@pytest.mark.slow
def test_table_has_one_row_per_measurement_and_marks_failures(
    main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    words = [*WORDS, "--images", "40", "--epochs", "2", "--steps", "2", "--variant", "", "precision=bf16"]
    assert main([*words, "--decode", "cpu", "gpu", "--out", str(out)]) == 1, "there is no GPU to decode"
    captured = capsys.readouterr()
    assert "machine.decode=gpu needs a CUDA GPU" in captured.err
    assert out.read_text() == captured.out
    lines = [line for line in captured.out.splitlines() if line.startswith(("| step", "| input"))]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cells[:2] for cells in found] == [
        ["step", "sgd"],
        ["input", "sgd"],
        ["input", "sgd"],
        ["step", "nero"],
        ["step", "sgd"],
        ["step", "nero"],
    ]
    assert found[2][3:] == ["failed", "", "", ""], captured.err
    for cells in (found[0], found[1], found[3]):
        assert cells[3] != "failed", captured.err
        low, high = (float(number.replace(",", "")) for number in cells[4].split(" - "))
        assert 0 < low <= float(cells[3].replace(",", "")) <= high
    assert 0 <= float(found[1][5].removesuffix(" %")) <= 100
    assert found[1][6] == "1"
    assert "precision=bf16" in found[4][2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "--steps and --epochs must be at least 1"),
        (["nonsense"], "unknown argument nonsense"),
        (["--out", "nowhere/table.md"], "there is no folder nowhere"),
        (["--decode", "tpu"], "--decode: must be one of auto, cpu, gpu, not 'tpu'"),
    ],
)
def test_invalid_arguments_raise_system_exit_with_message(
    main, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_generated_photographs_resemble_imagenet_in_size_and_bytes(tmp_path: Path) -> None:
    total = write_photographs(tmp_path, ["a", "b"], 12, seed=0)
    files = sorted(tmp_path.glob("*/*.JPEG"))
    assert [path.parent.name for path in files] == ["a"] * 12 + ["b"] * 12
    assert total == sum(os.path.getsize(path) for path in files)
    assert 60_000 < total / len(files) < 160_000
    images = [Image.open(path) for path in files]
    assert {image.size for image in images} <= set(SIZES)
    assert len({image.size for image in images}) > 3
    assert all(np.asarray(image).std() > 20 for image in images), "neither empty nor even"
    again = write_photographs(tmp_path / "again", ["a", "b"], 12, seed=0)
    assert again == total
