"""Command lines and Markdown tables, shared by the benchmarks."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nero.atomic import write_atomic
from nero.data.sources import MissingData
from nero.games.base import GameError
from nero.plans.argparse_types import check_out
from nero.plans.config import ConfigError
from nero.report.tables.sheets import markdown_line
from nero.runs.provenance import code_version, versions

RowKey = tuple[str, ...]
"""The first cells of a row, which identify a measurement."""


class NotMeasured(Exception):
    """A measurement is impossible; the message is one line."""


def benchmark_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table to this file")
    return parser


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


def exit_status(work: Callable[[], object]) -> int:
    """The exit status that `work` returns, else 0; 2 for an expected error, which is printed in one line."""
    try:
        result = work()
        return result if isinstance(result, int) else 0
    except (ConfigError, MissingData, GameError, NotMeasured) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def code_in_words() -> str:
    """For the head of a table."""
    commit, dirty = code_version()
    return f"code of {commit or 'an unknown commit'}{' with changes' if dirty else ''}"


def with_versions(*facts: str, packages: Sequence[str]) -> str:
    """The facts and the versions of installed packages, separated by commas."""
    return ", ".join([*facts, *(f"{package} {version}" for package, version in versions(packages).items())])


def column_heads(columns: Sequence[str], numbers: Sequence[int] = ()) -> list[str]:
    """The first two lines of a table; columns with indices in `numbers` are aligned to the right."""
    rule = ["---:" if index in numbers else "---" for index in range(len(columns))]
    return [markdown_line(columns), markdown_line(rule)]


def table_head(title: str, about: str, columns: Sequence[str], numbers: Sequence[int] = ()) -> list[str]:
    """The first lines of a file with one table."""
    return [f"# {title}", "", about, "", *column_heads(columns, numbers)]


def print_lines(lines: Iterable[str], out: Path | None, at_once: bool = False) -> list[str]:
    """Print lines as they come, and write them to `out`: all in the end, or each `at_once`."""
    printed: list[str] = []
    for line in lines:
        print(line, flush=True)
        printed.append(line)
        if at_once:
            write_lines(printed, out)
    write_lines(printed, out)
    return printed


def write_lines(lines: Iterable[str], out: Path | None) -> None:
    if out:
        write_atomic(out, "\n".join([*lines, ""]).encode())


def read_rows(path: Path | None, head: list[str], key: int) -> dict[RowKey, str] | None:
    """The rows of an earlier table by their first `key` cells; None if the file does not start with `head`."""
    if path is None or not path.exists():
        return {}
    lines = path.read_text().splitlines()
    if lines[: len(head)] != head:
        return None
    return {tuple(cell.strip() for cell in line.strip("|").split(" | ")[:key]): line for line in lines[len(head) :]}
