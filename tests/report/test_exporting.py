"""Tests of exporting runs and curves to CSV and Parquet files."""

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from conftest import ROOT
from nero.cli import main as command_line
from nero.report.frame import load_curves, load_runs, with_settings
from nero.runs.store import Store
from support.logged_stores import ADAM, NERO, REPARAM, write_unfinished, write_whole

Command = Callable[..., "subprocess.CompletedProcess[str]"]
COMMITTED = Store(ROOT / "results" / "runs")


@pytest.fixture
def filled(store: Store) -> Store:
    write_whole(store, NERO, 0.1, 0, 1 / 3, also={"train/loss": [1e-300, 2 / 3, 1e300]})
    write_whole(store, ADAM, 0.01, 1, None)
    write_whole(store, REPARAM, 0.01, 1, 0.5, curve=[0.1, float("nan"), 0.5])
    write_unfinished(store, ADAM, 0.001, 2)
    return store


def read(path: Path, like: pd.DataFrame) -> pd.DataFrame:
    """Read an exported file with pandas; CSV has no types, so they are taken from `like`."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    found = pd.read_csv(path, dtype={name: like[name].dtype for name in like})
    for name in like.select_dtypes("category"):
        found[name] = found[name].astype(like[name].dtype)
    return found


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("what", ["runs", "curves"])
@pytest.mark.parametrize("whose", ["made up", "committed"])
def test_exported_frame_round_trips(filled: Store, tmp_path: Path, ending: str, what: str, whose: str) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    store = filled if whose == "made up" else COMMITTED
    words = ["--task", "mnist_*"] if whose == "committed" else []
    path = tmp_path / f"out{ending}"
    more = ["--curves"] if what == "curves" else []
    assert command_line.main(["runs", "export", str(path), *more, *words, "--store", str(store.root)]) == 0
    wanted = {run_id for run_id in store.summaries() if run_id.startswith("mnist_")}
    runs = load_runs(store)
    runs = runs[runs.run_id.isin(wanted)]
    expected = load_curves(store, wanted) if what == "curves" else with_settings(runs, store)
    assert len(expected) > 3
    found = read(path, expected)
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_categorical=ending == ".parquet")
    assert not list(tmp_path.glob("*.part"))


def test_export_writes_only_filtered_runs(filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.csv"
    words = ["runs", "export", str(path), "--optim", "adam", "--status", "diverged", "--store", str(filled.root)]
    assert command_line.main(words) == 0
    assert capsys.readouterr().out == f"{path}: 1 rows of 1 runs\n"
    assert pd.read_csv(path)["status"].tolist() == ["diverged"]


def test_exported_runs_have_a_column_for_each_setting_that_tells_them_apart(store: Store, tmp_path: Path) -> None:
    """Else a reader would pool runs of 5 and of 100 layers."""
    for seed, depth in ((0, 100), (1, 5)):
        run = write_whole(store, NERO, 0.01, seed, 0.5)
        config = run.read_config()
        run.write_config({**config, "task": {**config["task"], "depth": depth}})
    path = tmp_path / "out.csv"
    assert command_line.main(["runs", "export", str(path), "--store", str(store.root)]) == 0
    found = pd.read_csv(path)
    assert found["task.depth"].tolist() == [100, 5]
    assert "task.batch_size" not in found, "all runs share it"


def test_spreadsheet_executes_no_text_of_exported_runs(store: Store, tmp_path: Path) -> None:
    """Names and texts of a run from elsewhere; numbers stay numbers."""
    run = write_whole(store, NERO, 0.01, 0, -0.5, also={"=1+1/x": [-1.0, -2.0, -0.25], "+a/b": [0.0, 0.5, 1.0]})
    write_whole(store, NERO, 0.01, 1, -0.5)
    summary = run.read_summary() or {}
    run.write_summary({**summary, "device": "=cmd|'/c calc'!A1"})
    config = run.read_config()
    note = {"@note": "-1+1", "listed": ["=1"], "number": -3}
    run.write_config({**config, "task": {**config["task"], **note}})
    for more in ([], ["--curves"]):
        path = tmp_path / f"out{len(more)}.csv"
        assert command_line.main(["runs", "export", str(path), *more, "--store", str(store.root)]) == 0
        with path.open(newline="") as file:
            head, *lines = csv.reader(file)
        cells = [*head, *(cell for line in lines for cell in line)]
        executed = [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
        assert executed
        assert all(map(float, executed))
        assert "'=1+1/x" in cells
        assert "-0.25" in cells
        if not more:
            assert {"'=cmd|'/c calc'!A1", "task.@note", "'-1+1", "['=1']", "-0.5", "-3"} <= set(cells)


def test_existing_file_is_replaced_only_with_force(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    words = ["runs", "export", str(path), "--store", str(filled.root)]
    assert command_line.main(words) == 2
    assert capsys.readouterr().err == f"error: {path} already exists; --force replaces it\n"
    assert path.read_text() == "mine"
    assert command_line.main([*words, "--force"]) == 0
    assert len(pd.read_csv(path)) == 4


@pytest.mark.parametrize(
    ("name", "said"),
    [("out.xlsx", "must end with one of .csv, .parquet"), ("out", "must end"), ("nowhere/out.csv", "no folder")],
)
def test_invalid_output_path_gives_one_line_error(
    filled: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    assert command_line.main(["runs", "export", str(tmp_path / name), "--store", str(filled.root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_filter_matching_no_runs_writes_no_file(filled: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert command_line.main(["runs", "export", str(path), "--seed", "77", "--store", str(filled.root)]) == 1
    assert not path.exists()


def test_parquet_without_pyarrow_prints_install_hint(filled: Store, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from nero.cli.main import main\n"
        f"sys.exit(main(['runs', 'export', {str(tmp_path / 'out.parquet')!r}, '--store', {str(filled.root)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "pip install -e '.[parquet]'" in line
