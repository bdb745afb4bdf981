"""A parser with errors of one line, and types of command-line options."""

import argparse
import math
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that keeps the lines of its description and reports errors in one line, with a suggestion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (\S+)", message):
            word = unknown[1].partition("=")[0]
            message = f"unknown {'option' if word.startswith('-') else 'argument'} {word}"
            message += nearest(word, self._options()) if word.startswith("-") else ""
        elif choice := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            known = re.findall(r"[^', ]+", choice[3])
            message = f"unknown {choice[1]} {choice[2]}{nearest(choice[2], known)}; there are: {', '.join(known)}"
        self.exit(2, f"error: {message}; see {self.prog} --help\n")

    def _options(self) -> list[str]:
        """All options, those of subcommands too: argparse leaves it to the outermost parser to complain."""
        nested = [a.choices.values() for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        return [
            o for parser in (self, *(p for parsers in nested for p in parsers)) for o in parser._option_string_actions
        ]


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown word: a suggestion, or nothing."""
    return "".join(f" (did you mean {name}?)" for name in get_close_matches(word, list(known), n=1))


def check_out(parser: argparse.ArgumentParser, out: Path | None) -> None:
    """Exit with a message if the folder of an output file does not exist: now, not when the output is computed."""
    if out and not out.parent.is_dir():
        parser.error(f"--out: there is no folder {out.parent}")


def folder(text: str) -> str:
    """A folder's name; an empty one is most likely a variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a folder, not ''")
    return text


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
