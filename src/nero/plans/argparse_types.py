"""Command lines: kinds of options, and settings of runs among them, as scripts/train.py takes them."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path


def parse_with_settings(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, lists: Sequence[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the words with `=`; ends with a message for any other word, and for an --out without its folder.

    lists:  options that take several words, and with them settings that follow: those are told by their equals sign

    The folder is looked for now: a table that cannot be written would else be found out when it has been measured.
    """
    options, words = parser.parse_known_args(arguments)
    if unknown := [word for word in words if "=" not in word or word.startswith("--")]:
        parser.error(f"unknown argument {unknown[0]}")
    for name in lists:
        given = getattr(options, name)
        words += [word for word in given if "=" in word]
        setattr(options, name, [word for word in given if "=" not in word])
    check_out(parser, options.out)
    return options, words


def check_out(parser: argparse.ArgumentParser, out: Path | None) -> None:
    """End with a message where the folder that is to be written into is not there."""
    if out and not out.parent.is_dir():
        parser.error(f"--out: there is no folder {out.parent}")


def whole(minimum: int) -> Callable[[str], int]:
    """The type of an option that is a whole number from `minimum`."""

    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() else None
        if number is None or number < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number from {minimum}, not {text!r}")
        return number

    return parse


def not_negative(text: str) -> float:
    """The type of an option that is a finite number from 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return number
