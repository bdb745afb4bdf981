"""Let a trained policy play, and write an animation of the games.

    nero play RUN                                one game, written to <run id>.gif
    nero play RUN --out pong.mp4 --scale 3       a video; or .webp, or .png (animated)
    nero play RUN --games 3 --seed 1 --greedy

RUN is the directory, the id or the hash of a run; --retrain trains it again if it has no checkpoint. The animation
shows the run's own game, in colour and at its own speed: 15 actions per second. Actions are sampled from the policy, as
in training, or the most probable one is taken (--greedy). On a CPU the same seed gives the same games. The score is the
game's own.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from nero.checkpoints.animation import Frame, check_path, write_animation
from nero.checkpoints.loading import Trained, Unusable, parse, run_command, run_parser
from nero.models.policy import FRAMES, SIDE
from nero.plans.argparse_types import non_negative_int, positive_int
from nero.tasks.ppo import PPO, as_input


def main(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("play", __doc__)
    number = partial(parser.add_argument, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".gif, .png, .webp or .mp4 (default: <run id>.gif)")
    number("--games", type=positive_int, default=1, help="default: 1")
    number("--steps", type=positive_int, default=5000, help="most actions in all (default: 5000)")
    number("--seed", type=non_negative_int, default=0, help="default: 0")
    parser.add_argument("--greedy", action="store_true", help="always take the most probable action")
    scale_help = "enlarge by 1 to 8 (default: 1); .mp4 takes the least memory"
    number("--scale", type=positive_int, choices=range(1, 9), default=1, help=scale_help)
    options = parse(parser, arguments)
    return run_command(options, PPO, _play, check=lambda: check_path(options.out or Path("default.gif")))


def _play(trained: Trained[PPO], options: argparse.Namespace) -> None:
    path = options.out or Path(f"{trained.run_id}.gif")
    last: dict[int, Move] = {}  # of each game

    def frames() -> Iterator[Frame]:
        played = moves(trained, options.games, options.steps, options.seed, options.greedy)
        with tqdm(played, unit=" actions", disable=None) as bar:
            for move in bar:
                bar.set_postfix(game=move.game, score=move.score, refresh=False)
                last[move.game] = move
                yield move.frame

    write_animation(path, frames(), options.scale)
    for game, move in last.items():
        cut = "" if move.over else f", cut off after {options.steps:,} in all (--steps)"
        print(f"game {game}: score {move.score:g}, {move.length:,} actions{cut}")
    print(f"{path}: {path.stat().st_size / 1000:,.0f} kB")


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
def moves(trained: Trained[PPO], games: int, steps: int, seed: int = 0, greedy: bool = False) -> Iterator[Move]:
    """Play `games` games in turn, with at most `steps` actions in all.

    The policy sees grey frames, as in training. The colour frames come from a second copy of the game, which gets the
    same seed and the same actions; Unusable if the two diverge.

    Args:
        seed: of the games, and of the sampled actions
        greedy: take the most probable action instead of sampling
    """
    task, device = trained.task, trained.context.device
    # On the CPU: a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed % 2**63)
    grey_game, colour_game = task.make_games(1), task.make_games(1, colour=True)
    grey, colour = grey_game.reset(seed), colour_game.reset(seed)
    stack = torch.zeros(1, FRAMES, SIDE, SIDE, dtype=torch.uint8, device=device)
    game, length, score = 1, 0, 0.0
    for _ in range(steps):
        newest = task.resize(torch.from_numpy(grey).to(device))
        stack = torch.cat([stack[:, 1:], newest[:, None]], dim=1)
        with trained.autocast():
            logits = task.network(as_input(stack))[0][0].float().cpu()
        probabilities = logits.double().softmax(dim=0)
        chosen = logits.argmax() if greedy else torch.multinomial(probabilities, 1, generator=generator)
        action = np.array([int(chosen)])
        grey_game.send(action)
        colour_game.send(action)
        turn, colour_turn = grey_game.receive(), colour_game.receive()
        length, score, over = length + 1, score + float(turn.rewards[0]), bool(turn.over[0])
        if not all(np.array_equal(getattr(turn, k), getattr(colour_turn, k)) for k in ("rewards", "ended", "over")):
            raise Unusable(f"game {game}: its copy in colour diverged at action {length}")
        yield Move(colour[0], game, length, score, over)
        if over:
            if game == games:
                return
            game, length, score = game + 1, 0, 0.0
        if turn.ended[0]:
            stack.zero_()
        grey, colour = turn.frames, colour_turn.frames
