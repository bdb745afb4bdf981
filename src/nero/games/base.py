"""What a policy needs of games: frames of grey pixels, rewards, and when one has ended."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class GameError(ValueError):
    """A game cannot be had; the message is one line."""


class Turn(NamedTuple):
    """What became of one action in each game. A game that ended has begun anew: its frame is the new game's first."""

    frames: NDArray[np.uint8]  # [games, rows, columns]
    rewards: NDArray[np.float32]  # [games], as the game counts them
    ended: NDArray[np.bool_]  # [games]: what follows owes nothing to this action; also where only a life was lost
    over: NDArray[np.bool_]  # [games]: the whole game


class Games(Protocol):
    """`count` games of one kind, stepped together.

    A game is played in two halves, so that whoever plays can do something else while the games go on: `send` gives
    each its action and returns at once, `receive` waits for what became of it.
    """

    count: int
    actions: int  # that each game knows, numbered from 0
    screen: tuple[int, int]  # rows and columns of a frame

    def reset(self, seed: int) -> NDArray[np.uint8]:
        """Begin all games anew, and give their first frames. The same seed gives the same games."""

    def send(self, actions: NDArray[np.int64]) -> None: ...

    def receive(self) -> Turn: ...

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint needs to go on in the middle of games; None for games that can only begin anew."""

    def restore(self, state: dict[str, Any]) -> None: ...
