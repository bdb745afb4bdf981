"""Let a trained policy play, and write an animation of the games."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from nero.checkpoints.loading import Trained, run_command
from nero.games.animation import Frame, write_animation
from nero.tasks.playing import Move, moves
from nero.tasks.ppo import PPO


def run(options: argparse.Namespace) -> int:
    """The command, with the options of `nero.cli.trained`; gives its exit status."""
    return run_command(options, PPO, _play)


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
