"""Let the policy of PPO play games to watch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from nero.games.animation import Frame
from nero.games.base import GameError
from nero.models.policy import FRAMES, SIDE
from nero.tasks.rollout import as_input

if TYPE_CHECKING:
    from nero.tasks.ppo import PPO


class Move(NamedTuple):
    """One action of a game and its result.

    frame:   the screen on which the action was chosen, RGB [height, width, 3]
    game:    number of the game, from 1
    length:  actions of the game so far, including this one
    score:   of the game so far, including this action's reward
    over:    whether this action ended the game
    """

    frame: Frame
    game: int
    length: int
    score: float
    over: bool


@torch.no_grad()
def moves(task: "PPO", games: int, steps: int, seed: int = 0, greedy: bool = False) -> Iterator[Move]:
    """Play `games` new games in turn, with at most `steps` actions in all; the games of training are not touched.

    The policy sees grey frames, as in training. The colour frames come from a second copy of the game, which gets the
    same seed and the same actions; GameError if the two diverge. The caller chooses the precision, by autocast.

    Args:
        seed: of the games, and of the sampled actions
        greedy: take the most probable action instead of sampling
    """
    device = task.context.device
    # On the CPU: a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed % 2**63)
    grey_game, colour_game = task.make_games(1), task.make_games(1, colour=True)
    grey, colour = grey_game.reset(seed), colour_game.reset(seed)
    stack = torch.zeros(1, FRAMES, SIDE, SIDE, dtype=torch.uint8, device=device)
    game, length, score = 1, 0, 0.0
    for _ in range(steps):
        newest = task.resize(torch.from_numpy(grey).to(device))
        stack = torch.cat([stack[:, 1:], newest[:, None]], dim=1)
        logits = task.network(as_input(stack))[0][0].float().cpu()
        probabilities = logits.double().softmax(dim=0)
        chosen = logits.argmax() if greedy else torch.multinomial(probabilities, 1, generator=generator)
        action = np.array([int(chosen)])
        grey_game.send(action)
        colour_game.send(action)
        turn, colour_turn = grey_game.receive(), colour_game.receive()
        length, score, over = length + 1, score + float(turn.rewards[0]), bool(turn.over[0])
        if not all(np.array_equal(getattr(turn, k), getattr(colour_turn, k)) for k in ("rewards", "ended", "over")):
            raise GameError(f"game {game}: its copy in colour diverged at action {length}")
        yield Move(colour[0], game, length, score, over)
        if over:
            if game == games:
                return
            game, length, score = game + 1, 0, 0.0
        if turn.ended[0]:
            stack.zero_()
        grey, colour = turn.frames, colour_turn.frames
