"""Assignment of GPUs to concurrent runs, and counts of concurrent runs."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from nero.runs.slots import counted_among, slot


@pytest.mark.parametrize(("gpus", "expected"), [(1, [0, 0, 0]), (2, [0, 1, 0, 1, 0]), (3, [0, 1, 2, 0, 1, 2, 0])])
def test_slot_selects_gpu_with_fewest_runs(tmp_path: Path, gpus: int, expected: list[int]) -> None:
    with ExitStack() as held:
        assert [held.enter_context(slot(gpus, tmp_path)) for _ in expected] == expected


def test_slot_is_released_when_run_ends_or_fails(tmp_path: Path) -> None:
    with slot(2, tmp_path) as first:
        with slot(2, tmp_path) as second, pytest.raises(RuntimeError), slot(2, tmp_path):
            raise RuntimeError
        with slot(2, tmp_path) as third:
            assert (first, second, third) == (0, 1, 1)


def test_slot_is_released_when_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from nero.runs.slots import slot\n"
        "with slot(2, pathlib.Path(sys.argv[1])) as gpu:\n"
        "    print(gpu, flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "0\n"
    with slot(2, tmp_path) as beside:
        assert beside == 1
    other.kill()
    other.wait()
    with slot(2, tmp_path) as after:
        assert after == 0


def test_concurrent_runs_are_counted_by_resource(tmp_path: Path) -> None:
    with counted_among("gpu", tmp_path) as own:
        assert own() == {"gpu": 0, "cpu": 0}
        with counted_among("cpu", tmp_path) as first, counted_among("cpu", tmp_path) as second:
            assert own() == {"gpu": 0, "cpu": 2}
            assert first() == second() == {"gpu": 1, "cpu": 1}
        with counted_among("gpu", tmp_path) as another:
            assert own() == another() == {"gpu": 1, "cpu": 0}
        assert own() == {"gpu": 0, "cpu": 0}


def test_concurrent_run_counts_are_empty_if_folder_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with counted_among("gpu", tmp_path / "file") as others:
        assert others() == {}
