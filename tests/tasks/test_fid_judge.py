"""Tests of the FID judge: which network measures images, and in which precision."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import hflip, pil_to_tensor
from torchvision.utils import make_grid, save_image

from nero.data.synthetic.shapes import shapes
from nero.models.inception import StandIn
from nero.tasks.fid import Judge, Statistics, convolutions, stretched

CPU = torch.device("cpu")


def real() -> dict[str, Tensor]:
    images = shapes(train=60, test=40)
    return {"train": images.train_images, "val": images.test_images}


def test_distances_are_to_both_splits_of_real_images() -> None:
    judge = Judge(StandIn(), "fid", "FID", real(), CPU)
    images = shapes(seed=1, train=90, test=10).train_images
    found = judge.distances(images.split(33))
    statistics = Statistics.of(StandIn(), [images])
    references = {part: Statistics.of(StandIn(), [x]) for part, x in real().items()}
    expected = {f"{part}/fid": reference.distance(statistics) for part, reference in references.items()}
    assert found == pytest.approx(expected, rel=1e-6)
    assert judge.distances([real()["val"]])["val/fid"] == pytest.approx(0, abs=1e-9)


def test_stretched_matches_torchvision_grid_normalisation() -> None:
    images = torch.cat([real()["train"], torch.full((1, 3, 32, 32), 7, dtype=torch.uint8)])
    theirs = torch.stack([make_grid(image / 255, normalize=True, padding=0) for image in images])
    # The conversion to bytes in torchvision's `save_image`.
    expected = theirs.mul(255).add(0.5).clamp(0, 255).to(torch.uint8)
    ours = stretched(images)
    assert int((ours.int() - expected.int()).abs().max()) <= 1
    assert (ours != expected).float().mean() < 0.0005
    assert (ours[:-1].flatten(1).amin(1) == 0).all()
    assert (ours[:-1].flatten(1).amax(1) == 255).all()
    assert (ours[-1] == 0).all()


def test_released_fid_matches_images_saved_by_torchvision(tmp_path: Path) -> None:
    """Repeat the authors' procedure: flip real images at random and write all by `save_image(normalize=True)`."""

    def written(images: Tensor) -> Tensor:
        read = []
        for image in images:
            save_image(image / 127.5 - 1, tmp_path / "x.png", normalize=True)
            with Image.open(tmp_path / "x.png") as file:
                read.append(pil_to_tensor(file))
        return torch.stack(read)

    samples = shapes(seed=1, train=40, test=10).train_images // 2
    found = Judge(StandIn(), "fid", "FID", real(), CPU).released().distances(samples.split(15))
    assert list(found) == ["train/fid_released", "val/fid_released"]
    generated = Statistics.of(StandIn(), [written(samples)])
    for part, images in real().items():
        images = images[:40]  # as many training images as there are test images
        flips = torch.rand(40, generator=torch.Generator().manual_seed(0)) < 0.5
        assert 10 < flips.sum() < 30
        mixed = torch.stack([hflip(image) if flip else image for image, flip in zip(images, flips, strict=True)])
        expected = Statistics.of(StandIn(), [written(mixed)]).distance(generated)
        assert found[f"{part}/fid_released"] == pytest.approx(expected, rel=1e-3)
    plain = Judge(StandIn(), "fid", "FID", real(), CPU).distances([samples])["val/fid"]
    assert abs(found["val/fid_released"] - plain) > 0.05 * plain, "else the two could not be told apart"


def test_missing_judge_has_released_key_and_no_distances() -> None:
    judge = Judge(None, "fid", "FID", real(), CPU).released()
    assert (judge.key("val"), judge.distances([])) == ("val/fid_released", {})


def test_features_use_fixed_cudnn_flags_and_restore_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[bool, bool]] = set()
    cudnn = torch.backends.cudnn

    class Watching(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.add((cudnn.allow_tf32, cudnn.benchmark))
            return images.flatten(1)[:, :5].float()

    for wanted in (True, False):
        seen.clear()
        for allowed in (True, False):
            monkeypatch.setattr(cudnn, "allow_tf32", allowed)
            monkeypatch.setattr(cudnn, "benchmark", allowed)
            judge = Judge(Watching(), "fid", "FID", real(), CPU, tf32=wanted)
            judge.distances([real()["val"]])
            judge.released().distances([real()["val"]])
            assert (cudnn.allow_tf32, cudnn.benchmark) == (allowed, allowed)
        assert seen == {(wanted, False)}
    monkeypatch.setattr(cudnn, "allow_tf32", True)
    with pytest.raises(KeyError), convolutions(tf32=False):
        raise KeyError
    assert cudnn.allow_tf32
