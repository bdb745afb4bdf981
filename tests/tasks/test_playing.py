"""Tests of the inputs and actions of a policy that plays games with known frames."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nero.games.atari import AtariGames
from nero.games.base import GameError, Games, Turn
from nero.games.catch import Catch
from nero.models.policy import AreaResize, Policy
from nero.tasks.playing import Move, moves
from nero.tasks.ppo import PPO


class Watched(nn.Module):
    """A policy with constant action probabilities that records its inputs."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__()
        self.logits = torch.tensor(probabilities).log()
        self.saw: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert not torch.is_grad_enabled()
        self.saw.append(x)
        return self.logits[None], torch.zeros(1)


class Counting:
    """A game with n at every pixel of screen n and reward 2. Action 3 loses a life, and action 5 ends the game."""

    count, actions, screen = 1, 2, (84, 84)
    lives, ends, reward, tells_end = 3, 5, 2.0, True

    def __init__(self, colour: bool = False, **otherwise: Any) -> None:
        self.colour, self.screens, self.step = colour, 0, 0
        self.__dict__.update(otherwise)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        self.seed = seed
        return self._screen()

    def send(self, actions: NDArray[np.int64]) -> None:
        assert actions.shape == (1,)
        assert actions.dtype == np.int64

    def receive(self) -> Turn:
        self.step += 1
        over = self.step == self.ends
        ended = over or self.step == self.lives
        self.step = 0 if over else self.step
        rewards = np.array([self.reward], dtype=np.float32)
        return Turn(self._screen(), rewards, np.array([ended]), np.array([over and self.tells_end]))

    def _screen(self) -> NDArray[np.uint8]:
        self.screens += 1
        return np.full((1, 84, 84, 3) if self.colour else (1, 84, 84), self.screens % 256, dtype=np.uint8)


def at_play(network: nn.Module, make_games: Callable[..., Any]) -> PPO:
    """The parts of a task that `moves` uses."""
    screen = cast(Games, make_games(1)).screen
    resize = AreaResize(screen, 84, torch.device("cpu"))
    context = SimpleNamespace(device=torch.device("cpu"))
    return cast(PPO, SimpleNamespace(network=network, resize=resize, make_games=make_games, context=context))


def counting(**twin: Any) -> Callable[..., Counting]:
    """Makes `Counting` games; `twin` sets attributes of the colour copy only."""
    return lambda count, colour=False: Counting(colour, **(twin if colour else {}))


def test_frame_stack_is_zeroed_when_life_starts() -> None:
    network = Watched(0.5, 0.5)
    played = list(moves(at_play(network, counting()), games=2, steps=100))
    saw = [tuple((x[0, :, 7, 9] * 255).round().int().tolist()) for x in network.saw]
    first = [(0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 2, 3), (0, 0, 0, 4), (0, 0, 4, 5)]
    second = [(0, 0, 0, 6), (0, 0, 6, 7), (0, 6, 7, 8), (0, 0, 0, 9), (0, 0, 9, 10)]
    assert saw == first + second
    assert all(x.shape == (1, 4, 84, 84) for x in network.saw)
    assert [move.frame[0, 0].tolist() for move in played] == [[n, n, n] for n in range(1, 11)]


def test_scores_and_lengths_cover_whole_games() -> None:
    played = list(moves(at_play(Watched(0.5, 0.5), counting()), games=2, steps=100))
    assert [move[1:] for move in played] == [(g, n, 2.0 * n, n == 5) for g in (1, 2) for n in (1, 2, 3, 4, 5)]
    cut = list(moves(at_play(Watched(0.5, 0.5), counting()), games=2, steps=7))
    assert [move[1:] for move in cut] == [move[1:] for move in played[:7]]


@pytest.mark.parametrize(
    ("twin", "at"),
    [({"reward": 1.0}, 1), ({"lives": 2}, 2), ({"lives": 4}, 3), ({"ends": 6}, 5), ({"tells_end": False}, 5)],
)
def test_diverging_colour_copy_of_game_raises(twin: dict[str, Any], at: int) -> None:
    played: list[Move] = []
    with pytest.raises(GameError, match=f"^game 1: its copy in colour diverged at action {at}$"):
        played.extend(moves(at_play(Watched(0.5, 0.5), counting(**twin)), games=1, steps=100))
    assert not played or len(played) == at - 1


def test_actions_follow_policy_distribution() -> None:
    sent: list[int] = []

    class Sent(Counting):
        def send(self, actions: NDArray[np.int64]) -> None:
            sent.append(int(actions[0]))

    def games(count: int, colour: bool = False) -> Counting:
        return Counting(colour) if colour else Sent()

    def actions(probabilities: tuple[float, ...], **options: Any) -> list[int]:
        sent.clear()
        assert len(list(moves(at_play(Watched(*probabilities), games), games=1000, steps=600, **options))) == 600
        return list(sent)

    drawn = actions((0.6, 0.3, 0.1))
    for action, probability in enumerate((0.6, 0.3, 0.1)):
        deviation = math.sqrt(probability * (1 - probability) / 600)
        assert abs(drawn.count(action) / 600 - probability) < 4 * deviation
    assert actions((0.6, 0.3, 0.1)) == drawn != actions((0.6, 0.3, 0.1), seed=1)
    assert actions((0.3, 0.6, 0.1), greedy=True) == [1] * 600


def test_both_copies_of_game_get_same_seed() -> None:
    def first_frames(seed: int) -> list[NDArray[np.uint8]]:
        task = at_play(Watched(0.2, 0.5, 0.3), Catch)
        return [move.frame for move in moves(task, games=3, steps=400, seed=seed)][::57]

    for seed in (0, 7):
        frames = first_frames(seed)
        assert len(frames) == 3
        assert np.array_equal(frames[0], Catch(1, colour=True).reset(seed)[0])
    assert not np.array_equal(first_frames(0)[0], first_frames(7)[0])


def test_colour_frames_match_greyscale_frames_seen_by_policy() -> None:
    """Each colour of the emulator has a single grey level, which fits only if both frames are from the same step."""
    pytest.importorskip("ale_py")
    torch.manual_seed(0)
    grey: list[NDArray[np.uint8]] = []

    class Seen(AtariGames):
        def reset(self, seed: int) -> NDArray[np.uint8]:
            return self._note(super().reset(seed))

        def receive(self) -> Turn:
            turn = super().receive()
            self._note(turn.frames)
            return turn

        def _note(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
            grey.append(frames[0].copy())
            return frames

    def games(count: int, colour: bool = False) -> AtariGames:
        return AtariGames("pong", count, colour=True) if colour else Seen("pong", count)

    played = list(moves(at_play(Policy(actions=6, hidden=16).eval(), games), games=1, steps=60))
    assert len(played) == 60
    pairs: set[int] = set()
    for move, frame in zip(played, grey, strict=False):
        assert move.frame.shape == (210, 160, 3)
        pairs |= set(np.dstack([frame, move.frame]).view(np.uint32).flatten().tolist())
    colours = {pair >> 8 for pair in pairs}
    assert 3 < len(colours) == len(pairs)
    assert len({frame.tobytes() for frame in grey}) > 30, "things move"
