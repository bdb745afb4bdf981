"""Who judges images, and in which arithmetic."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.utils import make_grid

from nero.data.synthetic import shapes
from nero.tasks.fid import Reference, StandIn, Statistics
from nero.tasks.fid_of_images import Judge, exact_convolutions, stretched

CPU = torch.device("cpu")


def real() -> dict[str, Tensor]:
    images = shapes(train=60, test=40)
    return {"train": images.train_images, "val": images.test_images}


def test_distances_are_from_both_parts_of_the_real_images() -> None:
    judge = Judge(StandIn(), "fid", "FID", real(), CPU)
    images = shapes(seed=1, train=90, test=10).train_images
    found = judge.distances(images.split(33))
    statistics = Statistics.of(StandIn(), [images])
    references = {part: Reference(Statistics.of(StandIn(), [x])) for part, x in real().items()}
    expected = {f"{part}/fid": reference.distance(statistics) for part, reference in references.items()}
    assert found == pytest.approx(expected, rel=1e-6)
    assert judge.distances([real()["val"]])["val/fid"] == pytest.approx(0, abs=1e-9)


def test_images_are_stretched_as_torchvision_normalises_what_it_writes() -> None:
    images = torch.cat([real()["train"], torch.full((1, 3, 32, 32), 7, dtype=torch.uint8)])
    theirs = torch.stack([make_grid(image / 255, normalize=True, padding=0) for image in images])
    # What torchvision's save_image makes of it.
    expected = theirs.mul(255).add(0.5).clamp(0, 255).to(torch.uint8)
    ours = stretched(images)
    assert int((ours.int() - expected.int()).abs().max()) <= 1
    assert (ours != expected).float().mean() < 0.0005
    assert (ours[:-1].flatten(1).amin(1) == 0).all()
    assert (ours[:-1].flatten(1).amax(1) == 255).all()
    assert (ours[-1] == 0).all()


def test_of_stretched_images_both_sides_are() -> None:
    judge = Judge(StandIn(), "fid", "FID", real(), CPU)
    darker = real()["val"] // 2
    found = judge.of_stretched_images().distances([darker])
    assert list(found) == ["train/stretched_fid", "val/stretched_fid"]
    assert found["val/stretched_fid"] < 0.01 * judge.distances([darker])["val/fid"]


def test_features_are_exact_whatever_the_run_allows_and_that_stays_as_it_was() -> None:
    seen: list[bool] = []

    class Watching(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(torch.backends.cudnn.allow_tf32)
            return images.flatten(1)[:, :5].float()

    for allowed in (True, False):
        torch.backends.cudnn.allow_tf32 = allowed
        Judge(Watching(), "fid", "FID", real(), CPU).distances([real()["val"]])
        assert torch.backends.cudnn.allow_tf32 == allowed
    assert seen
    assert not any(seen)
    torch.backends.cudnn.allow_tf32 = True
    with pytest.raises(KeyError), exact_convolutions():
        raise KeyError
    assert torch.backends.cudnn.allow_tf32
