"""The files of a report: their paths and contents, writing them, and comparing them with committed ones."""

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from nero.atomic import write_atomic
from nero.report.figures import style
from nero.report.tables.latex import to_latex
from nero.report.tables.sheets import Printed, to_csv, to_markdown

# File name extension -> renderer, given the table and the relative paths of the store and of GENERAL_NOTES.
FORMATS: dict[str, Callable[[Printed, str, str], str]] = {
    "md": to_markdown,
    "csv": lambda printed, *_: to_csv(printed.records),
    "tex": lambda printed, *_: to_latex(printed),
}


def table_files(printed: Printed, runs: str, guide: str = "") -> dict[Path, bytes]:
    """Path under the results folder -> content. For links, `runs` is the relative path of the store, and `guide` that
    of the notes on all tables.
    """
    name = f"tables/{printed.name}"
    return {Path(f"{name}.{ending}"): to(printed, runs, guide).encode() for ending, to in FORMATS.items()}


def figure_files(figures: Mapping[str, Figure]) -> dict[Path, bytes]:
    return {
        Path("figures") / f"{name}.{ending}": style.render(figure, ending)
        for name, figure in figures.items()
        for ending in style.FORMATS
    }


def write(files: Mapping[Path, bytes], out: Path) -> None:
    for path, data in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out / path, data)


def differences(files: Mapping[Path, bytes], out: Path) -> list[str]:
    """A line for each file under `out` that is missing or does not have exactly this content."""
    found = []
    for path, data in files.items():
        if not (out / path).is_file():
            found.append(f"{out / path} is missing")
        elif (out / path).read_bytes() != data:
            found.append(f"{out / path} is out of date")
    return found
