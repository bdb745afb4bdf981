#!/usr/bin/env python3
"""Translate with a trained network, from German to English, and measure BLEU.

    python scripts/translate.py RUN                           the 1,000 test sentences (test_2016_flickr)
    python scripts/translate.py RUN --part val --beam 1 --out val.en
    python scripts/translate.py RUN --text "Ein Hund läuft durch den Schnee."
    python scripts/translate.py RUN --input sentences.de      one sentence a line; - for standard input

RUN is the directory of a run that kept its checkpoint, or its id. The run's config says which data, vocabulary and
network it has; a run on embedded data is tested on that.

The paper gives perplexity only, so what BLEU is here: beam search looks for the best log probability / (words +
1)**alpha; the words found are put together as written English by a few rules, and scored by sacrebleu in lower case
against the reference lines as they were written. The rules alone, on the words of the references, score 100.0. Words
that the vocabulary lacks stay <unk>.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from nero.atomic import write_atomic
from nero.checkpoints.bleu import bleu_metric
from nero.checkpoints.joining import join_words
from nero.checkpoints.loading import Trained, Unusable, load_trained
from nero.checkpoints.options import run_parser
from nero.checkpoints.sentences import PARTS, load_part, split_words
from nero.checkpoints.translations import translations
from nero.data.text.parallel_text import BEGIN, END
from nero.models.translator import Translator
from nero.plans.argparse_types import not_negative, whole
from nero.tasks.translation import Translation


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        trained = load_trained(options.run, options.store, Translation, options.data_root, options.device)
        print(trained.describe(), file=sys.stderr)
        if options.text is None and options.input is None:
            _measure(trained, options)
        else:
            _translate_own(trained, options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(trained: Trained[Translation], options: argparse.Namespace) -> None:
    """Translate a part of the data; print its BLEU and some of its sentences."""
    metric = bleu_metric()  # first: whoever lacks it should not wait for translations
    part = load_part(trained.context, trained.settings, options.part)
    ours = _translate(trained, part.ids, options)
    _write(ours, options.out)
    for i in range(min(options.examples, len(ours))):
        print(f"source:    {part.sources[i]}\nreference: {part.references[i]}\nours:      {ours[i]}\n")
    score = metric.corpus_score(ours, [part.references]).score
    print(f"BLEU {score:.2f} on {len(ours):,} sentences of {part.name}, beam {options.beam}, alpha {options.alpha:g}")
    print(f"sacrebleu: {metric.get_signature()}")


def _translate_own(trained: Trained[Translation], options: argparse.Namespace) -> None:
    """Print a line for each line, a blank one for a blank one."""
    lines = options.text if options.input is None else _lines(options.input)
    words = split_words([line.strip() for line in lines], trained.identity["data"])
    vocabulary = trained.task.vocabulary
    if unknown := dict.fromkeys(word for line in words for word in line if word not in vocabulary.ids):
        print(f"not in the vocabulary: {' '.join(unknown)}", file=sys.stderr)
    full = [i for i, line in enumerate(words) if line]
    found = _translate(trained, [[BEGIN, *vocabulary.encode(words[i]), END] for i in full], options)
    by_line = dict(zip(full, found, strict=True))
    ours = [by_line.get(i, "") for i in range(len(words))]
    _write(ours, options.out)
    print("\n".join(ours))


def _translate(trained: Trained[Translation], sources: list[list[int]], options: argparse.Namespace) -> list[str]:
    network = trained.task.network
    if not isinstance(network, Translator):
        raise Unusable(f"{trained.run_id}: a {type(network).__name__} is no Translator, which alone can be looked into")
    search = translations(network, sources, options.beam, options.alpha, options.longest, options.batch_size)
    with trained.arithmetic():
        found = dict(tqdm(search, total=len(sources), unit=" sentences", disable=None))
    return [join_words(trained.task.vocabulary.decode(found[i])) for i in range(len(sources))]


def _lines(place: str) -> list[str]:
    text = sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n") if text else []


def _write(lines: Sequence[str], place: Path | None) -> None:
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, "".join(f"{line}\n" for line in lines).encode())


def _parser() -> argparse.ArgumentParser:
    parser = run_parser(__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--part", choices=list(PARTS), default="test", help="of the run's data (default: test)")
    what.add_argument("--text", action="append", metavar="SENTENCE", help="translate this; may be given several times")
    what.add_argument("--input", metavar="FILE", help="translate its lines; - for standard input")
    parser.add_argument("--beam", type=whole(1), default=5, metavar="N", help="1 is greedy (default: 5)")
    parser.add_argument("--alpha", type=not_negative, default=0.6, help="length penalty, 0 for none (default: 0.6)")
    parser.add_argument(
        "--longest", type=whole(1), metavar="N", help="most words (default: twice those of the source, and ten more)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all translations, one a line")
    parser.add_argument("--examples", type=whole(0), default=3, metavar="N", help="sentences to show (default: 3)")
    parser.add_argument("--batch-size", type=whole(1), default=128, metavar="N", help="sentences (default: 128)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
