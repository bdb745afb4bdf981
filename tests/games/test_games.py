"""Tests of the embedded game and of the errors of Atari games."""

import sys

import numpy as np
import pytest

from nero.games import catch
from nero.games.atari import AtariGames, known_games
from nero.games.base import GameError
from nero.games.catch import BALL, BALLS, FALL, LEFT, PADDLE, RIGHT, SIDE, STAY, THICKNESS, Catch

LANDING = -(-(SIDE - THICKNESS - BALL + 1) // FALL)  # steps until a ball lands
GAME = BALLS * LANDING


def actions_toward_ball(frames: np.ndarray) -> np.ndarray:
    """Actions that move the centre of the paddle below that of the ball, as located in the frames."""
    columns = np.arange(SIDE)
    ball = np.where(frames == catch.BALL_GREY, columns, 0).max(axis=(1, 2)) - (BALL - 1) / 2
    paddle = np.where(frames == catch.PADDLE_GREY, columns, 0).max(axis=(1, 2)) - (PADDLE - 1) / 2
    return np.where(ball > paddle + 3, RIGHT, np.where(ball < paddle - 3, LEFT, STAY))


def play(games: Catch, steps: int, seed: int | None = 0) -> list[tuple[np.ndarray, ...]]:
    """The turns of games with random actions."""
    draw = np.random.default_rng(5)
    if seed is not None:
        games.reset(seed)
    turns = []
    for _ in range(steps):
        games.send(draw.integers(0, 3, games.count))
        turns.append(tuple(games.receive()))
    return turns


def same(some: list[tuple[np.ndarray, ...]], others: list[tuple[np.ndarray, ...]]) -> bool:
    pairs = (zip(one, other, strict=True) for one, other in zip(some, others, strict=True))
    return all(np.array_equal(a, b) for pair in pairs for a, b in pair)


def test_following_the_ball_catches_all_balls_of_each_game() -> None:
    games = Catch(16)
    frames, total, lengths = games.reset(3), np.zeros(16), []
    for step in range(1, 2 * GAME + 1):
        games.send(actions_toward_ball(frames))
        frames, rewards, ended, over = games.receive()
        total += rewards
        assert np.array_equal(ended, over)
        if over.all():
            lengths.append(step)
    assert (total == 2 * BALLS).all()
    assert lengths == [GAME, 2 * GAME]


def test_moving_left_only_misses_most_balls() -> None:
    games = Catch(64)
    games.reset(0)
    total = np.zeros(64)
    for _ in range(GAME):
        games.send(np.full(64, LEFT))
        total += games.receive().rewards
    assert -BALLS < total.mean() < 0
    assert total.min() == -BALLS


def test_frames_show_only_ball_and_paddle() -> None:
    frames = Catch(5).reset(0)
    assert frames.shape == (5, SIDE, SIDE)
    assert frames.dtype == np.uint8
    assert ((frames == catch.BALL_GREY).sum(axis=(1, 2)) == BALL**2).all()
    assert ((frames == catch.PADDLE_GREY).sum(axis=(1, 2)) == PADDLE * THICKNESS).all()
    assert set(np.unique(frames)) == {catch.BACKGROUND, catch.PADDLE_GREY, catch.BALL_GREY}
    assert np.array_equal(Catch(5, colour=True).reset(0)[..., 1], frames)


def test_ball_never_leaves_screen() -> None:
    for frames, *_ in play(Catch(32), 200):
        assert ((frames == catch.BALL_GREY).sum(axis=(1, 2)) == BALL**2).all()


def test_games_are_determined_by_seed() -> None:
    assert same(play(Catch(4), 80), play(Catch(4), 80))
    assert not same(play(Catch(4), 80), play(Catch(4), 80, seed=1))


def test_restored_games_continue_identically() -> None:
    games, other = Catch(4), Catch(4)
    play(games, 31)
    other.restore(games.state())
    assert same(play(games, 80, seed=None), play(other, 80, seed=None))


def test_games_are_independent_of_each_other() -> None:
    ends = []
    for action in (LEFT, RIGHT):
        games = Catch(2)
        games.reset(0)
        for _ in range(2 * GAME):
            games.send(np.array([action, STAY]))
            turn = games.receive()
        ends.append(turn.frames[1])
    assert np.array_equal(*ends)


def test_unknown_game_gives_one_line_error_with_suggestion() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(GameError, match=r"no game 'Pong' among its .*; it has pong") as error:
        AtariGames("Pong", 1)
    assert "\n" not in str(error.value)
    for game in ("combat", "none", ""):  # for two players only; unknown; empty
        with pytest.raises(GameError, match="no game"):
            AtariGames(game, 1)
    assert {"pong", "breakout", "ms_pacman"} < set(known_games())


def test_missing_emulator_error_names_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(GameError, match=r"pip install -e '\.\[suite\]'"):
        AtariGames("pong", 1)
