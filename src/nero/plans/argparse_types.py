"""Types of command-line options."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path


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
