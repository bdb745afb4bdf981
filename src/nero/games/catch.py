"""The embedded game: a ball falls, drifting and bouncing off the walls, and a paddle should catch it."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nero.games.base import Turn

SIDE = 84  # pixels of the square screen
BALL, PADDLE, THICKNESS = 6, 18, 4  # pixels: the ball's side, the paddle's width and thickness
FALL, MOVE = 4, 6  # pixels per step of the ball's fall and the paddle's moves
DRIFTS = (-3, -2, -1, 1, 2, 3)  # pixels per step of the ball's drift
BALLS = 3  # of a game: its score is from -3 to 3
STAY, LEFT, RIGHT = range(3)
BACKGROUND, PADDLE_GREY, BALL_GREY = 40, 150, 255


class Catch:
    """`count` games in arrays: an action moves the paddle; a caught ball scores 1, a missed one -1."""

    actions = 3
    screen = (SIDE, SIDE)

    def __init__(self, count: int, colour: bool = False) -> None:
        self.count, self.colour = count, colour
        self._random = np.random.default_rng()
        # Left edges and tops in pixels, the drift, and the balls left, of each game.
        self._ball_x, self._ball_y, self._drift, self._paddle, self._left = np.zeros((5, count), dtype=np.int64)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        self._random = np.random.default_rng(seed)
        self._begin(np.ones(self.count, dtype=bool))
        return self._frames()

    def send(self, actions: NDArray[np.int64]) -> None:
        moved = self._paddle + MOVE * ((actions == RIGHT).astype(np.int64) - (actions == LEFT))
        self._paddle = moved.clip(0, SIDE - PADDLE)
        self._ball_y = self._ball_y + FALL
        x, most = self._ball_x + self._drift, SIDE - BALL
        self._drift = np.where((x < 0) | (x > most), -self._drift, self._drift)
        self._ball_x = np.where(x < 0, -x, np.where(x > most, 2 * most - x, x))

    def receive(self) -> Turn:
        landed = self._ball_y + BALL > SIDE - THICKNESS
        caught = (self._ball_x + BALL > self._paddle) & (self._ball_x < self._paddle + PADDLE)
        rewards = np.where(landed, np.where(caught, 1.0, -1.0), 0.0).astype(np.float32)
        self._left = self._left - landed
        over = self._left == 0
        self._drop(landed)
        self._begin(over)
        return Turn(self._frames(), rewards, over, over)

    def state(self) -> dict[str, Any]:
        arrays = [self._ball_x, self._ball_y, self._drift, self._paddle, self._left]
        return {"random": json.dumps(self._random.bit_generator.state), "places": np.stack(arrays).tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        self._random.bit_generator.state = json.loads(state["random"])
        self._ball_x, self._ball_y, self._drift, self._paddle, self._left = np.array(state["places"])

    def _begin(self, where: NDArray[np.bool_]) -> None:
        self._paddle = np.where(where, (SIDE - PADDLE) // 2, self._paddle)
        self._left = np.where(where, BALLS, self._left)
        self._drop(where)

    def _drop(self, where: NDArray[np.bool_]) -> None:
        """Drop a new ball. Drawn for every game, so that games do not influence each other's random numbers."""
        places = self._random.integers(0, SIDE - BALL, self.count, endpoint=True)
        drifts = self._random.choice(DRIFTS, self.count)
        self._ball_x = np.where(where, places, self._ball_x)
        self._drift = np.where(where, drifts, self._drift)
        self._ball_y = np.where(where, 0, self._ball_y)

    def _frames(self) -> NDArray[np.uint8]:
        pixels = np.arange(SIDE)
        ball = _within(pixels, self._ball_y, BALL)[:, :, None] & _within(pixels, self._ball_x, BALL)[:, None, :]
        paddle = (pixels >= SIDE - THICKNESS)[None, :, None] & _within(pixels, self._paddle, PADDLE)[:, None, :]
        grey = np.where(ball, BALL_GREY, np.where(paddle, PADDLE_GREY, BACKGROUND)).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1) if self.colour else grey


def _within(pixels: NDArray[np.int64], begin: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """[games, pixels]: which pixels lie in each game's interval."""
    return (pixels >= begin[:, None]) & (pixels < begin[:, None] + length)
