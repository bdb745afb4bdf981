"""Area downscaling, compared with its definition and with OpenCV's, which the emulator uses."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nero.models.policy import AreaResize, area_weights

CPU = torch.device("cpu")


@given(target=st.integers(1, 30), more=st.integers(0, 60))
def test_area_weights_are_covered_fraction_of_each_pixel(target: int, more: int) -> None:
    size = target + more
    weights = area_weights(size, target)
    # In units in which all pixel edges are integers: each old pixel is `target` long, each new one `size`.
    for new in range(target):
        for old in range(size):
            covered = len(set(range(new * size, (new + 1) * size)) & set(range(old * target, (old + 1) * target)))
            assert weights[new, old].item() == pytest.approx(covered / size, abs=1e-12)


def test_area_resize_averages_blocks_and_rounds_half_to_even() -> None:
    image = torch.tensor([[0, 1, 4, 4], [0, 1, 4, 5], [7, 7, 1, 2], [7, 7, 2, 1]], dtype=torch.uint8)
    assert AreaResize((4, 4), 2, CPU)(image).tolist() == [[0, 4], [7, 2]]


def test_same_size_is_identity_and_upscaling_raises() -> None:
    image = torch.randint(0, 256, (3, 84, 84), dtype=torch.uint8)
    assert torch.equal(AreaResize((84, 84), 84, CPU)(image), image)
    with pytest.raises(ValueError, match="cannot downscale an image of 60 x 160 to 84 x 84"):
        AreaResize((60, 160), 84, CPU)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["pong", "breakout", "journey_escape"])
def test_area_resize_matches_emulator_resizing(game: str) -> None:
    """The emulator sums in float32, so it may round a mean close to a half in the other direction."""
    vector_env = pytest.importorskip("ale_py.vector_env")
    whole, small = (
        vector_env.AtariVectorEnv(game, 4, stack_num=1, **size, autoreset_mode="SameStep")
        for size in (dict(zip(("img_height", "img_width"), _screen(game), strict=True)), {})
    )
    resize = AreaResize(_screen(game), 84, CPU)
    draw = np.random.default_rng(0)
    ours, theirs = whole.reset(seed=3)[0], small.reset(seed=3)[0]
    different = pixels = 0
    for _ in range(150):
        difference = resize(torch.from_numpy(ours.copy())).numpy().astype(int) - theirs
        assert abs(difference).max() <= 1
        different, pixels = different + np.count_nonzero(difference), pixels + difference.size
        actions = draw.integers(0, whole.single_action_space.n, 4)
        ours, theirs = whole.step(actions)[0], small.step(actions)[0]
    assert different < 1e-3 * pixels


def _screen(game: str) -> tuple[int, int]:
    from nero.games.atari import AtariGames

    return AtariGames(game, 1).screen
