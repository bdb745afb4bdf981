"""The numbers of a table in full, as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence


def to_csv(records: Sequence[Mapping[str, str]]) -> str:
    """A line for each; all have the keys of the first."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def exact(value: float | None) -> str:
    # Ten digits: more than any log holds, and none of the noise of multiplying by 100.
    return "" if value is None else f"{value:.10g}"


def whole(value: int | None) -> str:
    return "" if value is None else str(int(value))
