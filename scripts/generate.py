#!/usr/bin/env python3
"""Write text with a trained language model.

    python scripts/generate.py RUN
    python scripts/generate.py RUN --prompt "the game was" --words 50 --temperature 0.8 --top-k 40 --seed 1
    python scripts/generate.py RUN --words 0 --evaluate       only the perplexities of validation and test

RUN is the directory of a run that kept its checkpoint, or its id. The text begins a new line. Each word is drawn after
no more words than the run was trained to see (35 in the paper's); <eos> is shown as a line break. On a CPU the same
seed gives the same text. Words of a prompt that the vocabulary lacks become <unk> where the vocabulary has that.
"""

import argparse
import sys
from collections.abc import Sequence

from tqdm import tqdm

from nero.checkpoints.evaluation import perplexities
from nero.checkpoints.loading import Trained, load_trained
from nero.checkpoints.options import run_parser
from nero.checkpoints.prompts import UNKNOWN, as_lines, known_words
from nero.checkpoints.sampling import continuation
from nero.data.text.corpus import END_OF_LINE
from nero.plans.argparse_types import not_negative, whole
from nero.tasks.language_model import LanguageModelling


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        trained = load_trained(options.run, options.store, LanguageModelling, options.data_root, options.device)
        print(trained.describe(), file=sys.stderr)
        if options.words:
            print(_text(trained, options))
        if options.evaluate:
            print(*(f"{part} perplexity {value:.2f}" for part, value in perplexities(trained).items()), sep="\n")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _text(trained: Trained[LanguageModelling], options: argparse.Namespace) -> str:
    """The prompt and what follows it."""
    task = trained.task
    prompt, unknown = known_words(options.prompt, task.vocabulary)
    if unknown:
        print(f"not in the vocabulary, read as {UNKNOWN}: {' '.join(unknown)}", file=sys.stderr)
    following = continuation(
        task.network,
        task.vocabulary.encode([END_OF_LINE, *prompt]),
        words=options.words,
        block=trained.settings["block"],
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
    )
    with trained.arithmetic():
        ids = list(tqdm(following, total=options.words, unit=" words", disable=None))
    return as_lines([*prompt, *task.vocabulary.decode(ids)])


def _parser() -> argparse.ArgumentParser:
    parser = run_parser(__doc__)
    parser.add_argument("--words", type=whole(0), default=100, metavar="N", help="to write (default: 100)")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="words with spaces between them, to go on from")
    parser.add_argument(
        "--temperature", type=not_negative, default=1.0, metavar="T", help="0 takes the likeliest word (default: 1)"
    )
    parser.add_argument("--top-k", type=whole(0), default=0, metavar="K", help="draw from so many (default: 0, all)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="default: 0")
    parser.add_argument("--evaluate", action="store_true", help="print the perplexities of validation and test")
    return parser


if __name__ == "__main__":
    sys.exit(main())
