"""What an executed notebook shows."""

from collections.abc import Iterable, Mapping
from typing import Any

from nbformat import NotebookNode


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts(notebook: NotebookNode) -> list[str]:
    """Everything but images, in order."""
    found = []
    for output in outputs(notebook):
        found += [output.text] if "text" in output else []
        found += [text for kind, text in sorted(output.get("data", {}).items()) if not kind.startswith("image/")]
    return found


def images(notebook: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def markdown(shown: Iterable[Mapping[str, Any]]) -> str:
    """The Markdown among outputs, given by MIME type."""
    return "\n".join(data["text/markdown"] for data in shown if "text/markdown" in data)
