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

from tqdm import tqdm

from nero.checkpoints.loading import Trained, parse, run_command, run_parser
from nero.games.animation import Frame, check_path, write_animation
from nero.plans.argparse_types import non_negative_int, positive_int
from nero.tasks.playing import Move, moves
from nero.tasks.ppo import PPO


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
        played = moves(trained.task, options.games, options.steps, options.seed, options.greedy)
        with tqdm(played, unit=" actions", disable=None) as bar:
            for move in bar:
                bar.set_postfix(game=move.game, score=move.score, refresh=False)
                last[move.game] = move
                yield move.frame

    with trained.autocast():
        write_animation(path, frames(), options.scale)
    for game, move in last.items():
        cut = "" if move.over else f", cut off after {options.steps:,} in all (--steps)"
        print(f"game {game}: score {move.score:g}, {move.length:,} actions{cut}")
    print(f"{path}: {path.stat().st_size / 1000:,.0f} kB")
