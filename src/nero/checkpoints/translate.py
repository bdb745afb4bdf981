"""Translate with a trained network, from German to English, and measure BLEU."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from nero.atomic import write_atomic
from nero.checkpoints.beam_search import CachedDecoder, search
from nero.checkpoints.loading import Trained, run_command
from nero.checkpoints.options import Unusable
from nero.data.text.buckets import padded
from nero.data.text.parallel_text import BEGIN, END, tokeniser
from nero.models.translator import Translator
from nero.tasks.translation import Translation, load_text

PARTS = {"test": "test_2016_flickr", "val": "val"}  # parts of the data, and Multi30k's names for them
NO_SPACE_BEFORE = {".", ",", ";", ":", "!", "?", ")", "]", "-", "'", "n't", "'s", "'re", "'ll", "'ve", "'d", "'m"}
NO_SPACE_AFTER = {"(", "[", "#", "$", "-"}


def run(options: argparse.Namespace) -> int:
    """The command, with the options of `nero.cli.trained`; gives its exit status."""
    own = options.text is not None or options.input is not None
    return run_command(options, Translation, _translate_lines if own else _measure)


def _measure(trained: Trained[Translation], options: argparse.Namespace) -> None:
    """Translate a part of the data; print some sentences and the BLEU score."""
    metric = bleu_metric()  # first: if it is missing, nothing needs to be translated
    settings = trained.identity["task"]
    text = load_text(trained.context, settings["minimum_count"], settings.get("train_examples"))
    pairs, lines = (text.test, text.test_lines) if options.part == "test" else (text.valid, text.valid_lines)
    name = PARTS[options.part] if trained.context.data == "real" else f"embedded {options.part}"
    ours = _translate(trained, pairs.source, options)
    for source, reference, own in list(zip(lines.source, lines.target, ours, strict=True))[: options.examples]:
        print(f"source:    {source}\nreference: {reference}\nours:      {own}\n")
    score = metric.corpus_score(ours, [lines.target]).score
    print(f"BLEU {score:.2f} on {len(ours):,} sentences of {name}, beam {options.beam}, alpha {options.alpha:g}")
    print(f"sacrebleu: {metric.get_signature()}")


def _translate_lines(trained: Trained[Translation], options: argparse.Namespace) -> None:
    """Print the translation of each line; an empty line stays empty."""
    lines = options.text
    if options.input is not None:
        text = sys.stdin.read() if options.input == "-" else Path(options.input).read_text(encoding="utf-8")
        lines = text.removesuffix("\n").split("\n") if text else []
    words = split_words([line.strip() for line in lines], trained.identity["data"])
    vocabulary = trained.task.vocabulary
    if unknown := dict.fromkeys(word for line in words for word in line if word not in vocabulary.ids):
        print(f"not in the vocabulary: {' '.join(unknown)}", file=sys.stderr)
    sources = [[BEGIN, *vocabulary.encode(line), END] if line else [] for line in words]
    print("\n".join(_translate(trained, sources, options)))


def _translate(trained: Trained[Translation], sources: list[list[int]], options: argparse.Namespace) -> list[str]:
    """Translate the sources, of which empty ones stay empty, and write the translations to --out."""
    network = trained.task.network
    if not isinstance(network, Translator):
        raise Unusable(f"{trained.run_id}: beam search needs a Translator, not a {type(network).__name__}")
    places = [place for place, source in enumerate(sources) if source]
    given = [sources[place] for place in places]
    found = translations(network, given, options.beam, options.alpha, options.longest, options.batch_size)
    ours = [""] * len(sources)
    with trained.autocast():
        for index, ids in tqdm(found, total=len(given), unit=" sentences", disable=None):
            ours[places[index]] = join_words(trained.task.vocabulary.decode(ids))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(options.out, "".join(f"{line}\n" for line in ours).encode())
    return ours


@torch.no_grad()
def translations(
    network: Translator,
    sources: Sequence[Sequence[int]],
    beam: int = 5,
    alpha: float = 0.6,
    longest: int | None = None,
    batch_size: int = 128,
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index of a source, token ids of its translation without BEGIN and END), shortest sources first.

    Args:
        sources: token ids, from BEGIN to END
        beam, alpha: see `search`
        longest: maximum number of words; default: twice those of the source plus ten. The network's positions limit it
        batch_size: sentences at a time

    Raises:
        ValueError: a source has more tokens than the network has positions
    """
    network.eval()
    device, positions = network.output_weight.device, len(network.positions)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    for start in range(0, len(order), batch_size):
        group = order[start : start + batch_size]
        lengths = [len(sources[index]) for index in group]
        if lengths[-1] > positions:
            raise ValueError(f"a sentence has {lengths[-1] - 2} words, and the network takes at most {positions - 2}")
        source = padded([sources[index] for index in group], len(group), lengths[-1]).to(device)
        # BEGIN and all words precede the position that predicts END.
        limits = [min(2 * (n - 2) + 10 if longest is None else longest, positions - 1) for n in lengths]
        found = search(CachedDecoder(network, source), torch.tensor(limits, device=device), beam, alpha)
        yield from zip(group, found, strict=True)


def split_words(lines: Sequence[str], data: str) -> list[list[str]]:
    """Tokenise lines as the `real` or `embedded` data are; Unusable without spaCy."""
    if data == "embedded":
        return [line.split() for line in lines]
    try:
        tokenise = tokeniser("de")
    except ImportError as error:
        raise Unusable("tokenising German needs spaCy; get it with: pip install -e '.[suite]'") from error
    return [tokenise(line) for line in lines]


def join_words(words: Sequence[str]) -> str:
    """Undo spaCy's English tokenisation: punctuation without spaces, quotation marks that open and close in turn.

    The tokeniser does not keep the spaces, so some lines differ from the original.
    """
    text, close, quoted = "", True, False  # close: no space before the next word
    for word in (word for word in words if not word.isspace()):
        is_quote = word == '"'
        if not (close or (is_quote and quoted) or word in NO_SPACE_BEFORE):
            text += " "
        text += word
        quoted ^= is_quote
        close = word in NO_SPACE_AFTER or (is_quote and quoted)
    return text


def bleu_metric() -> Any:
    """sacrebleu's BLEU in lower case, as the networks learn lower case only; Unusable without sacrebleu."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise Unusable("BLEU needs sacrebleu; get it with: pip install -e '.[suite]'") from error
    return BLEU(lowercase=True)
