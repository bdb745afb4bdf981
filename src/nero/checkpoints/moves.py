"""A trained policy at play, seen in colour."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nero.checkpoints.loading import Trained, Unusable
from nero.games.base import Turn
from nero.models.policy import FRAMES, SIDE
from nero.tasks.ppo import PPO, as_input


class Move(NamedTuple):
    """One action of a game, and what came of it.

    frame:   [rows, columns, 3], the screen on which the action was chosen, in red, green and blue
    game:    its number, from 1
    length:  actions of the game, this one among them
    score:   of the game, with what this action won, as the game counts
    over:    whether this action ended the game
    """

    frame: NDArray[np.uint8]
    game: int
    length: int
    score: float
    over: bool


@torch.no_grad()
def moves(trained: Trained[PPO], games: int, steps: int, seed: int = 0, greedy: bool = False) -> Iterator[Move]:
    """So many whole games, one after another, or as much of them as `steps` actions are.

    seed:    of the games' luck, and of the policy's, which draws its actions as in training
    greedy:  take the likeliest action instead

    The policy sees grey frames, as it always did. The colours are those of a twin of the game, which gets the same seed
    and the same actions; Unusable if it is not the same game after all.
    """
    task, device = trained.task, trained.context.device
    # Drawn on the CPU, so that a seed means the same on every device.
    generator = None if greedy else torch.Generator().manual_seed(seed % 2**63)
    played, twin = task.make_games(1), task.make_games(1, colour=True)
    grey, colour = played.reset(seed), twin.reset(seed)
    stack = torch.zeros(1, FRAMES, SIDE, SIDE, dtype=torch.uint8, device=device)
    game, length, score = 1, 0, 0.0
    for _ in range(steps):
        newest = task.resize(torch.from_numpy(grey).to(device))
        stack = torch.cat([stack[:, 1:], newest[:, None]], dim=1)
        with trained.arithmetic():
            logits, _ = task.network(as_input(stack))
        action = np.array([choose(logits[0].float().cpu(), generator)])
        played.send(action)
        twin.send(action)
        turn, seen = played.receive(), twin.receive()
        length, score, over = length + 1, score + float(turn.rewards[0]), bool(turn.over[0])
        if not _same(turn, seen):
            raise Unusable(f"game {game}: its twin in colour went another way at action {length}")
        yield Move(colour[0], game, length, score, over)
        if over:
            if game == games:
                return
            game, length, score = game + 1, 0, 0.0
        if turn.ended[0]:
            stack.zero_()
        grey, colour = turn.frames, seen.frames


def choose(logits: Tensor, generator: torch.Generator | None) -> int:
    """An action as likely as its logit says; the likeliest without a generator."""
    if generator is None:
        return int(logits.argmax())
    return int(torch.multinomial(logits.double().softmax(dim=0), 1, generator=generator))


def _same(turn: Turn, seen: Turn) -> bool:
    """Frames cannot be compared: one is grey."""
    pairs = ((turn.rewards, seen.rewards), (turn.ended, seen.ended), (turn.over, seen.over))
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)
