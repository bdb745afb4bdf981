"""Types of command-line options, and overrides of runs among options, as scripts/train.py takes them."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path


def parse_with_overrides(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, lists: Sequence[str] = ()
) -> tuple[argparse.Namespace, list[str]]:
    """Parse options and overrides (arguments with `=`). Exits with a message for any other argument, or a bad --out.

    Args:
        lists: options with several values; overrides after them are recognised by their equals sign
    """
    options, overrides = parser.parse_known_args(arguments)
    if unknown := [word for word in overrides if "=" not in word or word.startswith("--")]:
        parser.error(f"unknown argument {unknown[0]}")
    for name in lists:
        given = getattr(options, name)
        overrides += [word for word in given if "=" in word]
        setattr(options, name, [word for word in given if "=" not in word])
    check_out(parser, options.out)
    return options, overrides


def check_out(parser: argparse.ArgumentParser, out: Path | None) -> None:
    """Exit with a message if the folder of an output file does not exist: now, not when the output is computed."""
    if out and not out.parent.is_dir():
        parser.error(f"--out: there is no folder {out.parent}")


def int_at_least(minimum: int) -> Callable[[str], int]:
    allowed = {0: "a non-negative integer", 1: "a positive integer"}.get(minimum, f"an integer of at least {minimum}")

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
        return int(text)

    return parse


non_negative_int, positive_int = int_at_least(0), int_at_least(1)


def non_negative_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a non-negative number, not {text!r}")
    return number
