"""Pictures that GANs generated during training, for the page."""

import base64
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nero.plans.plan import CellState
from nero.report.figures.samples import CLASSES, NAME, NUMBERED, ROWS, SIDE, is_embedded, shown_runs
from nero.runs.store import Store


def sample_data(states: Iterable[CellState], store: Store) -> list[dict[str, Any]]:
    """The pictures of one run per optimiser; optimisers without pictures are left out."""
    found = []
    for shown in shown_runs(states):
        run = shown.run
        pictures = store.run(run["task"], run["run_id"]).pictures(NAME)
        read = ({"epoch": epoch, "src": _data_uri(path)} for epoch, path in pictures.items())
        if kept := [picture for picture in read if picture["src"]]:
            classes = NUMBERED if is_embedded(shown.curve, run) else CLASSES
            named = {"name": shown.curve.name, "detail": shown.detail, "run": run["run_id"]}
            found.append({**named, "side": SIDE, "rows": ROWS, "columns": list(classes), "pictures": kept})
    return found


def _data_uri(path: Path) -> str | None:
    """The file as a data URI; None if it cannot be read, or its name is not that of a picture."""
    kind, _ = mimetypes.guess_type(path.name)
    if not kind or not kind.startswith("image/"):
        return None
    try:
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    except OSError:
        return None
