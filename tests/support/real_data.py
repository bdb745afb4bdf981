"""Data sets that tests marked `data` need."""

from pathlib import Path

import pytest

from nero.data.sources import default_root, problems


def root_with(name: str) -> Path:
    """The data root, which has this data set; skips the test if it is missing."""
    root = default_root()
    if problems(name, root):
        pytest.skip(f"no {name} in {root}")
    return root
