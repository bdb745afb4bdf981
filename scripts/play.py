#!/usr/bin/env python3
"""Let a trained policy play, and make an animation of it.

    python scripts/play.py RUN                                one game, to RUN's id and .gif
    python scripts/play.py RUN --out pong.mp4 --scale 3       a video, by ffmpeg; or .webp, or .png (animated)
    python scripts/play.py RUN --games 3 --seed 1 --greedy

RUN is the directory of a run that kept its checkpoint, or its id; `scripts/train.py task=pong_ppo` makes one, and
`data=embedded` a small one. The game is the run's own, in colour and at its own speed: 15 actions per second. Actions
are drawn from the policy, as in training, or the likeliest is taken (--greedy); on a CPU the same seed gives the same
games. The score is the game's own.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from nero.checkpoints.animation import check_place, write_animation
from nero.checkpoints.loading import Trained, load_trained
from nero.checkpoints.moves import Move, moves
from nero.checkpoints.options import run_parser
from nero.checkpoints.pictures import Frame
from nero.plans.argparse_types import whole
from nero.tasks.ppo import PPO


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.out is not None:
            check_place(options.out)
        trained = load_trained(options.run, options.store, PPO, options.data_root, options.device)
        print(trained.describe(), file=sys.stderr)
        _play(trained, options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _play(trained: Trained[PPO], options: argparse.Namespace) -> None:
    place = options.out or Path(f"{trained.run_id}.gif")
    last: dict[int, Move] = {}  # of each game
    write_animation(place, _frames(trained, options, last), options.scale)
    for game, move in last.items():
        cut = "" if move.over else f", cut off after {options.steps:,} in all (--steps)"
        print(f"game {game}: score {move.score:g}, {move.length:,} actions{cut}")
    print(f"{place}: {place.stat().st_size / 1000:,.0f} kB")


def _frames(trained: Trained[PPO], options: argparse.Namespace, last: dict[int, Move]) -> Iterator[Frame]:
    played = moves(trained, options.games, options.steps, options.seed, options.greedy)
    with tqdm(played, unit=" actions", disable=None) as bar:
        for move in bar:
            bar.set_postfix(game=move.game, score=move.score, refresh=False)
            last[move.game] = move
            yield move.frame


def _parser() -> argparse.ArgumentParser:
    parser = run_parser(__doc__)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=".gif, .png, .webp or .mp4 (default: RUN's id and .gif)"
    )
    parser.add_argument("--games", type=whole(1), default=1, metavar="N", help="default: 1")
    parser.add_argument("--steps", type=whole(1), default=5000, metavar="N", help="most actions in all (default: 5000)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="default: 0")
    parser.add_argument("--greedy", action="store_true", help="take the likeliest action, always")
    parser.add_argument(
        "--scale",
        type=whole(1),
        choices=range(1, 9),
        default=1,
        metavar="N",
        help="pixels per pixel, to 8 (default: 1); .mp4 takes the least memory",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
