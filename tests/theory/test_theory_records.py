"""Tests of writing and reading measurement records as JSON."""

import json
import math
from pathlib import Path

import pytest

from nero.theory import records


def test_record_round_trips_to_six_digits_and_replaces_older_one(tmp_path: Path) -> None:
    record = {"run_id": "a-b", "angle": 1 / 3, "list": [1e-12 / 3, 7, None, True], "deep": {"text": "x"}}
    path = records.write(records.NETWORKS, {**record, "angle": 9.0}, tmp_path)
    assert records.write(records.NETWORKS, record, tmp_path) == path
    assert path == tmp_path / "networks" / "a-b.json"
    [found] = records.read(records.NETWORKS, tmp_path)
    assert found == {**record, "angle": 0.333333, "list": [3.33333e-13, 7, None, True]}
    assert records.read(records.STEPS, tmp_path) == []


def test_non_finite_values_are_written_as_null(tmp_path: Path) -> None:
    written = records.write(records.STEPS, {"run_id": "a", "x": [math.nan, math.inf, {"y": -math.inf}]}, tmp_path)
    assert json.loads(written.read_text())["x"] == [None, None, {"y": None}]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": "other"}', "\xff"])
def test_invalid_record_error_names_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "networks").mkdir()
    path = tmp_path / "networks" / "a.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(records.UnreadableRecord, match=str(path)) as error:
        records.read(records.NETWORKS, tmp_path)
    assert "\n" not in str(error.value)


def test_unknown_record_kind_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'runs'; there are networks, steps"):
        records.read("runs", tmp_path)
