"""Frames of runs as files for other programs."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from nero.atomic import replacing


class NoExport(ValueError):
    """Why a file cannot be written, in one line."""


def _to_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False)


def _to_parquet(frame: pd.DataFrame, path: Path) -> None:
    frame.to_parquet(path, index=False, engine="pyarrow")


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {".csv": _to_csv, ".parquet": _to_parquet}
"""By the ending of the file's name."""


def check_export(path: Path, force: bool = False) -> None:
    """NoExport where a frame could not be written there, or not without `force`: said before anything is read."""
    if path.suffix not in WRITERS:
        raise NoExport(f"{path}: the name of the file must end with one of {', '.join(WRITERS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise NoExport(f"{path}: Parquet needs the package pyarrow: pip install -e '.[parquet]'")
    if not path.parent.is_dir():
        raise NoExport(f"there is no folder {path.parent}")
    if path.is_dir():
        raise NoExport(f"{path} is a folder")
    if path.exists() and not force:
        raise NoExport(f"{path} is there already; --force replaces it")


def export(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame whole or not at all. Floats in CSV have all their digits, and what is missing is empty."""
    with replacing(path) as part:
        WRITERS[path.suffix](frame, part)
