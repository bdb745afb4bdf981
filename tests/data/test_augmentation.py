"""Tests of augmentation by a single index map, against torchvision on PIL images, and of its random parameters."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision.transforms.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip, RandomRotation

from nero.data.augmentation import CHUNK, Augmentation, Draws
from nero.data.synthetic.shapes import shapes

PAPERS = Augmentation(padding=4, flip=True, degrees=15)


def noise(count: int, side: int = 32, seed: int = 0) -> Tensor:
    """Random images without black pixels, so that every misplaced pixel is detected."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def by_torchvision(image: Tensor, padding: int, top: int, left: int, flipped: bool, angle: float) -> Tensor:
    """One image transformed by torchvision's three functions, in the order of the paper's code."""
    side = image.shape[-1]
    picture: Image.Image = F.crop(F.pad(F.to_pil_image(image), padding), top, left, side, side)
    if flipped:
        picture = F.hflip(picture)
    return F.pil_to_tensor(F.rotate(picture, angle, fill=0))


def entry(draws: Draws, number: int) -> tuple[int, int, bool, float]:
    return tuple(column[number].item() for column in (draws.top, draws.left, draws.flipped, draws.angles))


def one(top: int, left: int, flipped: bool, angle: float) -> Draws:
    return Draws(
        torch.tensor([top]), torch.tensor([left]), torch.tensor([flipped]), torch.tensor([angle], dtype=torch.float64)
    )


def assert_matches_torchvision(device: str) -> None:
    images = torch.cat([noise(200), shapes(train=200, test=10).train_images])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    draws = PAPERS.draw(len(images), torch.Generator().manual_seed(2))
    ours = PAPERS(images.to(device, memory_format=torch.channels_last), order.to(device), draws).cpu()
    for number, which in enumerate(order.tolist()):
        assert torch.equal(ours[number], by_torchvision(images[which], 4, *entry(draws, number))), f"image {number}"


def test_augmentation_matches_torchvision_on_cpu() -> None:
    assert_matches_torchvision("cpu")


@pytest.mark.gpu
def test_augmentation_matches_torchvision_on_gpu() -> None:
    assert_matches_torchvision("cuda")


@settings(max_examples=150)
@given(st.data())
def test_augmentation_matches_torchvision_for_any_size_padding_and_angle(data: st.DataObject) -> None:
    side = data.draw(st.integers(1, 40))
    padding = data.draw(st.integers(0, 6))
    corner = st.integers(0, 2 * padding)
    special = st.sampled_from([0.0, -0.0, 1e-9, 45.0, 90.0, -90.0, 180.0, -180.0])
    drawn = (data.draw(corner), data.draw(corner), data.draw(st.booleans()), data.draw(special | st.floats(-180, 180)))
    image = noise(1, side, seed=side)
    ours = Augmentation(padding, True, 180)(image, torch.tensor([0]), one(*drawn))
    assert torch.equal(ours[0], by_torchvision(image[0], padding, *drawn))


def test_augmentation_matches_torchvision_random_transforms_for_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference composes RandomCrop, RandomHorizontalFlip and RandomRotation like the paper's code."""
    drawn: list[Any] = []

    def spy(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        drawn.extend([name, *{"crop": args[1:3], "hflip": (), "rotate": args[1:2]}[name]])
        return original(*args, **kwargs)

    for name in ("crop", "hflip", "rotate"):
        monkeypatch.setattr(F, name, partial(spy, name, getattr(F, name)))
    transform = Compose([RandomCrop(32, padding=4), RandomHorizontalFlip(), RandomRotation(15)])
    torch.manual_seed(0)
    flips = 0
    for number, image in enumerate(noise(40)):
        drawn.clear()
        theirs = F.pil_to_tensor(transform(F.to_pil_image(image)))
        flips += "hflip" in drawn
        top, left = drawn[1:3]
        draws = one(top, left, "hflip" in drawn, drawn[-1])
        assert torch.equal(PAPERS(image[None], torch.tensor([0]), draws)[0], theirs), f"image {number}"
    assert 0 < flips < 40


def test_augmentation_differs_from_tensor_transforms_in_few_pixels() -> None:
    # On tensors torchvision computes in float32 and resolves near-ties differently, so PIL is the reference elsewhere.
    images = noise(100)
    draws = PAPERS.draw(100, torch.Generator().manual_seed(3))
    ours = PAPERS(images, torch.arange(100), draws)
    different = 0
    for number in range(100):
        top, left, flipped, angle = entry(draws, number)
        theirs = F.crop(F.pad(images[number], 4), top, left, 32, 32)
        theirs = F.rotate(F.hflip(theirs) if flipped else theirs, angle, fill=[0.0, 0.0, 0.0])
        different += int((ours[number] != theirs).any(dim=0).sum())
    assert different < 0.001 * 100 * 32 * 32


def test_augmentation_is_unaffected_by_chunking() -> None:
    images = noise(7, side=2)
    order = torch.randint(7, (CHUNK + 5,), generator=torch.Generator().manual_seed(0))
    draws = Augmentation(1, True, 90).draw(len(order), torch.Generator().manual_seed(1))
    ours = Augmentation(1, True, 90)(images, order, draws)
    for number in (0, CHUNK - 1, CHUNK, CHUNK + 4):
        assert torch.equal(ours[number], by_torchvision(images[order[number]], 1, *entry(draws, number)))


def test_augmentation_preserves_memory_format() -> None:
    images = noise(3)
    order, draws = torch.arange(3), PAPERS.draw(3, torch.Generator().manual_seed(0))
    usual = PAPERS(images, order, draws)
    last = PAPERS(images.contiguous(memory_format=torch.channels_last), order, draws)
    assert torch.equal(usual, last)
    assert usual.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_default_augmentation_is_identity() -> None:
    images, still = noise(5), Augmentation()
    draws = still.draw(5, torch.Generator().manual_seed(0))
    assert torch.equal(still(images, torch.arange(5), draws), images)


def test_draws_have_expected_ranges_and_distributions() -> None:
    draws = PAPERS.draw(20_000, torch.Generator().manual_seed(0))
    for corner in (draws.top, draws.left):
        counts = corner.bincount(minlength=9)
        assert len(counts) == 9
        assert (counts / 20_000 - 1 / 9).abs().max() < 0.01
    assert abs(draws.flipped.float().mean().item() - 0.5) < 0.015
    assert draws.angles.abs().max() <= 15
    # The standard deviation of a uniform distribution.
    assert math.isclose(draws.angles.std().item(), 30 / math.sqrt(12), rel_tol=0.02)
    assert abs(torch.corrcoef(torch.stack([draws.top.double(), draws.angles]))[0, 1].item()) < 0.03


def test_disabling_one_transform_does_not_change_other_draws() -> None:
    whole = PAPERS.draw(50, torch.Generator().manual_seed(0))
    still = Augmentation(padding=4, flip=False, degrees=0).draw(50, torch.Generator().manual_seed(0))
    assert torch.equal(whole.top, still.top)
    assert torch.equal(whole.left, still.left)
    assert not still.flipped.any()
    assert not still.angles.any()
    uncropped = Augmentation(padding=0, flip=True, degrees=15).draw(50, torch.Generator().manual_seed(0))
    assert not uncropped.top.any()
    assert torch.equal(whole.flipped, uncropped.flipped)
    assert torch.equal(whole.angles, uncropped.angles)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": -1}, "padding must be a non-negative integer, not -1"),
        ({"padding": 1.5}, "padding must be a non-negative integer, not 1.5"),
        ({"degrees": -3}, "degrees must be from 0 to 180, not -3"),
        ({"degrees": 181}, "degrees must be from 0 to 180, not 181"),
        ({"degrees": math.nan}, "degrees must be from 0 to 180, not nan"),
        ({"degrees": "ten"}, "degrees must be from 0 to 180, not 'ten'"),
        ({"flip": 0.5}, "flip must be true or false, not 0.5"),
    ],
)
def test_invalid_settings_raise(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**settings)


def test_non_square_images_raise() -> None:
    images = torch.zeros(1, 3, 4, 5, dtype=torch.uint8)
    with pytest.raises(ValueError, match="images must be square, not 4 x 5"):
        PAPERS(images, torch.tensor([0]), one(0, 0, False, 0.0))
