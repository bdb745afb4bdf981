"""Tests of Atari games, frame by frame, against Gymnasium's environment with the wrappers defined here.

Both use the same emulator but share no other code. `AtariGames` draws the number of no-ops at the start of a game,
which is then passed to the wrappers.
"""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("ale_py")

from ale_py.env import AtariEnv  # noqa: E402

from nero.games.atari import AtariGames  # noqa: E402

COUNT = 2
SEED = 40
FIRE = "FIRE"


class Begin(gymnasium.Wrapper):
    """Starts a game with the given number of frames: FIRE first if the game has it, then no-ops."""

    def reset(self, *, seed=None, options):
        if seed is not None:  # set in the emulator, since Gymnasium would derive another seed from it
            self.unwrapped.ale.setInt("random_seed", seed)
            self.unwrapped.load_game()
        frame, info = self.env.reset()
        meanings = self.unwrapped.get_action_meanings()
        for number in range(options["frames"]):
            action = meanings.index(FIRE) if number == 0 and FIRE in meanings else 0
            frame, *_, info = self.env.step(action)
        return frame, info


class SkipAndMax(gymnasium.Wrapper):
    """Repeats each action for four frames and returns the pixel-wise maximum of the last two."""

    def step(self, action):
        total, seen = 0.0, []
        for _ in range(4):
            frame, reward, terminated, truncated, info = self.env.step(action)
            total, seen = total + reward, [*seen, frame][-2:]
            if terminated or truncated:
                break
        return np.maximum(*seen) if len(seen) > 1 else seen[0], total, terminated, truncated, info


class LifeEnds(gymnasium.Wrapper):
    """Reports the loss of a life as the end of an episode without a reset."""

    def reset(self, **words):
        frame, info = self.env.reset(**words)
        self.lives = info["lives"]
        return frame, info

    def step(self, action):
        frame, reward, terminated, truncated, info = self.env.step(action)
        lost, self.lives = info["lives"] < self.lives, info["lives"]
        return frame, reward, terminated or lost, truncated, {**info, "over": terminated or truncated}


def by_hand(game: str, colours: str = "grayscale") -> gymnasium.Env:
    return LifeEnds(SkipAndMax(Begin(AtariEnv(game, obs_type=colours, frameskip=1, repeat_action_probability=0.0))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "steps", "ends", "overs"), [("pong", 1500, 2, 2), ("breakout", 1500, 40, 8), ("freeway", 300, 0, 0)]
)
def test_rewards_ends_and_frames_match_gymnasium_wrappers(game: str, steps: int, ends: int, overs: int) -> None:
    """`ends` and `overs` are lower bounds. A step is one action in each of two games."""
    ours, theirs = AtariGames(game, COUNT), [by_hand(game) for _ in range(COUNT)]
    assert ours.actions == theirs[0].action_space.n
    frames = ours.reset(SEED)
    for number, wrapped in enumerate(theirs):
        # The emulator's seeds start at 1, and each game uses the next one.
        frame, _ = wrapped.reset(seed=1 + SEED + number, options={"frames": int(ours._frame_number[number])})
        assert np.array_equal(frames[number], frame)
    draw = np.random.default_rng(0)
    seen_ends = seen_overs = rewards = 0
    for _ in range(steps):
        actions = draw.integers(0, ours.actions, COUNT)
        ours.send(actions)
        turn = ours.receive()
        for number, (wrapped, action) in enumerate(zip(theirs, actions, strict=True)):
            frame, reward, terminated, truncated, info = wrapped.step(action)
            assert turn.rewards[number] == reward
            assert turn.ended[number] == (terminated or truncated)
            assert turn.over[number] == info["over"]
            if info["over"]:
                frame, _ = wrapped.reset(options={"frames": int(ours._frame_number[number])})
            assert np.array_equal(turn.frames[number], frame)
        seen_ends, seen_overs = seen_ends + turn.ended.sum(), seen_overs + turn.over.sum()
        rewards += np.abs(turn.rewards).sum()
    assert seen_ends >= ends
    assert seen_overs >= overs
    assert game == "freeway" or rewards > 0


@pytest.mark.slow
def test_game_starts_after_up_to_thirty_frames() -> None:
    games = AtariGames("pong", 16)
    games.reset(0)
    begun = games._frame_number
    assert begun.min() >= 1
    assert begun.max() <= 30
    assert len(set(begun.tolist())) > 5
    games.reset(1)
    assert not np.array_equal(games._frame_number, begun)


def test_greyscale_is_within_two_levels_of_converted_rgb() -> None:
    """The paper's code took the maximum of each RGB channel first and converted the result to greyscale."""
    grey, colour = by_hand("pong"), by_hand("pong", "rgb")
    frames = [wrapped.reset(seed=1, options={"frames": 5})[0] for wrapped in (grey, colour)]
    draw = np.random.default_rng(0)
    most = 0.0
    for _ in range(200):
        weighed = np.round(frames[1] @ np.array([0.299, 0.587, 0.114]))
        most = max(most, np.abs(weighed - frames[0]).max())
        action = draw.integers(0, 6)
        frames = [wrapped.step(action)[0] for wrapped in (grey, colour)]
    assert most <= 2
