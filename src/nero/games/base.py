"""The interface of games: frames of grey pixels, rewards, and ends of episodes."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class GameError(ValueError):
    """A game is not available; the message is one line."""


class Turn(NamedTuple):
    """The outcome of one action in each game. A finished game restarts at once: its frame is the new game's first."""

    frames: NDArray[np.uint8]  # [games, rows, columns]
    rewards: NDArray[np.float32]  # [games], unclipped
    ended: NDArray[np.bool_]  # [games]: the episode ended, by the end of the game or the loss of a life
    over: NDArray[np.bool_]  # [games]: the whole game ended


class Games(Protocol):
    """`count` games of one kind, stepped together: `send` starts a step and returns at once, `receive` waits for it."""

    count: int
    actions: int  # of each game, numbered from 0
    screen: tuple[int, int]  # rows and columns of a frame

    def reset(self, seed: int) -> NDArray[np.uint8]:
        """Restart all games and return their first frames. The same seed gives the same games."""

    def send(self, actions: NDArray[np.int64]) -> None: ...

    def receive(self) -> Turn: ...

    def state(self) -> dict[str, Any] | None:
        """The state for a checkpoint; None if games can only be restarted."""

    def restore(self, state: dict[str, Any]) -> None: ...
