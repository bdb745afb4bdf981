"""`nero sample`, `translate`, `generate` and `play`: their options, and whether there is such a run.

Only then is torch imported, which takes seconds.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from PIL import Image

from nero.checkpoints.options import find_run, parse, run_parser
from nero.cli.main import exit_on_interrupt
from nero.games.animation import check_path
from nero.plans.argparse_types import check_out, non_negative_float, non_negative_int, positive_int
from nero.runs.store import Store

GUIDE = 'RUN is the directory, the id or the hash of a run. More: docs/runs.md, "Trained networks".'
SAMPLE = f"""Draw images with a trained generator, and measure their FID.

    nero sample RUN
    nero sample RUN --out frogs.png --classes 6 --rows 10 --columns 10 --scale 4 --seed 1
    nero sample RUN --fid                 from the training and the test images; minutes without a GPU

The picture has a row per draw of z and a column per class, in order of class number; with --columns, that many columns
that repeat the classes. The suffix of --out decides the format.

{GUIDE}
"""
TRANSLATE = f"""Translate with a trained network, from German to English, and measure BLEU.

    nero translate RUN                           the 1,000 test sentences (test_2016_flickr)
    nero translate RUN --part val --beam 1 --out val.en
    nero translate RUN --text "Ein Hund läuft durch den Schnee."
    nero translate RUN --input sentences.de      one sentence per line; - for standard input

{GUIDE}
"""
GENERATE = f"""Write text with a trained language model.

    nero generate RUN
    nero generate RUN --prompt "the game was" --words 50 --temperature 0.8 --top-k 40 --seed 1
    nero generate RUN --words 0 --evaluate       only validation and test perplexity

The text starts on a new line, and <eos> is shown as a line break. Words of the prompt outside the vocabulary become
<unk> if the vocabulary has it.

{GUIDE}
"""
PLAY = f"""Let a trained policy play, and write an animation of the games.

    nero play RUN                                one game, written to <run id>.gif
    nero play RUN --out pong.mp4 --scale 3       a video; or .webp, or .png (animated)
    nero play RUN --games 3 --seed 1 --greedy

{GUIDE}
"""


def sample(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("sample", SAMPLE)
    number = partial(parser.add_argument, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("samples.png"), metavar="FILE", help="default: %(default)s")
    number("--classes", type=non_negative_int, nargs="+", help="class numbers (default: all)")
    number("--rows", type=positive_int, default=8, help="default: %(default)s")
    number("--columns", type=positive_int, help="default: one per class")
    number("--scale", type=positive_int, default=1, help="enlarge by (default: %(default)s)")
    number("--seed", type=non_negative_int, default=0, help="of z (default: %(default)s)")
    parser.add_argument("--fid", action="store_true", help="measure FID")
    options = parse(parser, arguments)
    if options.out.suffix.lower() not in Image.registered_extensions():
        parser.error(f"--out: {options.out.name} does not end with the suffix of an image format, such as .png or .jpg")
    check_out(parser, options.out)
    return _run("sample", options)


def translate(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("translate", TRANSLATE)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--part", choices=["test", "val"], default="test", help="of the run's data (default: test)")
    what.add_argument("--text", action="append", metavar="SENTENCE", help="translate this; may be repeated")
    what.add_argument("--input", metavar="FILE", help="translate its lines; - for standard input")
    number = partial(parser.add_argument, metavar="N")
    number("--beam", type=positive_int, default=5, help="1 is greedy (default: 5)")
    number("--alpha", type=non_negative_float, default=0.6, help="length penalty, 0 for none (default: 0.6)")
    number("--longest", type=positive_int, help="most words (default: twice those of the source plus ten)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all translations, one per line")
    number("--examples", type=non_negative_int, default=3, help="sentences to show (default: 3)")
    number("--batch-size", type=positive_int, default=128, help="sentences (default: 128)")
    options = parse(parser, arguments)
    return _run("translate", options)


def generate(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("generate", GENERATE)
    number = partial(parser.add_argument, metavar="N")
    number("--words", type=non_negative_int, default=100, help="to write (default: 100)")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="words to continue, separated by spaces")
    number("--temperature", type=non_negative_float, default=1.0, help="0: the most probable word (default: 1)")
    number("--top-k", type=non_negative_int, default=0, help="sample from N words (default: 0, all)")
    number("--seed", type=non_negative_int, default=0, help="default: 0")
    parser.add_argument("--evaluate", action="store_true", help="print validation and test perplexity")
    return _run("generate", parse(parser, arguments))


def play(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("play", PLAY)
    number = partial(parser.add_argument, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".gif, .png, .webp or .mp4 (default: <run id>.gif)")
    number("--games", type=positive_int, default=1, help="default: 1")
    number("--steps", type=positive_int, default=5000, help="most actions in all (default: 5000)")
    number("--seed", type=non_negative_int, default=0, help="default: 0")
    parser.add_argument("--greedy", action="store_true", help="always take the most probable action")
    scale_help = "enlarge by 1 to 8 (default: 1); .mp4 takes the least memory"
    number("--scale", type=positive_int, choices=range(1, 9), default=1, help=scale_help)
    options = parse(parser, arguments)
    return _run("play", options, check=lambda: check_path(options.out or Path("default.gif")))


def _run(module: str, options: argparse.Namespace, check: Callable[[], None] = lambda: None) -> int:
    try:
        check()
        find_run(options.run, Store(options.store))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with exit_on_interrupt():
        command = import_module(f"nero.checkpoints.{module}")
    return int(command.run(options))
