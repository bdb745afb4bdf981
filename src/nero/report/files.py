"""What of a report is written where, and whether what is committed is what the runs give."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from nero.atomic import write_atomic
from nero.report.figures import style
from nero.report.tables import csv_format as sheet_csv
from nero.report.tables.formats import FORMATS
from nero.report.tables.sheets import Printed


def table_files(printed: Printed, runs: str) -> dict[Path, bytes]:
    """Path under the results folder -> content. `runs` is where the store lies from there, for links."""
    return {Path("tables") / f"{printed.name}.{ending}": to(printed, runs).encode() for ending, to in FORMATS.items()}


def number_files(numbers: Mapping[str, str]) -> dict[Path, bytes]:
    return {Path("tables") / f"{name}.md": text.encode() for name, text in numbers.items()}


def record_files(records: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[Path, bytes]:
    """Lists that are no tables to be read, as CSV alone."""
    return {Path("tables") / f"{name}.csv": sheet_csv.to_csv(lines).encode() for name, lines in records.items()}


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
    """A line for each file under `out` that is absent or not, byte for byte, what it should be."""
    found = []
    for path, data in files.items():
        try:
            committed = (out / path).read_bytes()
        except FileNotFoundError:
            found.append(f"{out / path} is absent")
            continue
        if committed != data:
            found.append(f"{out / path} differs from what the runs give")
    return found
