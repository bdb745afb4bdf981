"""Tests of the notebooks and of the script that executes them."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from nero.cli import notebooks
from nero.plans.config import ROOT
from nero.runs.store import Store

NAMES = ("figures", "fine_tuning", "optimiser_tour", "table1", "theory")


def read(name: str) -> NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def executed(name: str, folder: Path = ROOT / "notebooks") -> list[dict[str, Any]]:
    """Execute a notebook and return the outputs of its cells by MIME type; a failing cell raises."""
    from nbclient import NotebookClient

    notebook = read(name)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]


def markdown(shown: list[dict[str, Any]]) -> str:
    return "\n".join(data.get("text/markdown", "") for data in shown)


def images(shown: list[dict[str, Any]]) -> int:
    return sum("image/png" in data for data in shown)


def test_notebook_list_is_complete() -> None:
    assert tuple(sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_valid_and_has_no_outputs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+[0-9]?(-[a-z]+)*", given) for given in ids), "words, which stay as they are"


@pytest.mark.slow
def test_table1_notebook_shows_tables_of_committed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NERO_RUNS", raising=False)
    shown = executed("table1")
    heads, _, first_row, *_ = (ROOT / "results" / "tables" / "table1.md").read_text().partition("\n\n")[2].splitlines()
    assert heads.startswith("|")
    assert heads in markdown(shown)
    assert first_row.partition(" (")[0] in markdown(shown), "its first number; what follows has links in the file alone"
    frames = [data["text/html"] for data in shown if "text/html" in data]
    assert any("cifar10_vgg11-nero-0.01-s0" in frame for frame in frames), "the runs of one cell"


@pytest.mark.slow
def test_figures_notebook_shows_all_figures_of_committed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NERO_RUNS", raising=False)
    shown = executed("figures")
    assert images(shown) == 10, "Figures 1 to 9, and samples of the GANs of Figure 4"
    headed = [f"Figure {number}" for number in (3, 4, 6, 7, 8, 9)]
    assert all(words in markdown(shown) for words in headed), "in numbers"


@pytest.mark.slow
def test_optimiser_tour_notebook_assertions_hold() -> None:
    """The notebook's statements are asserted in its cells."""
    assert sum("assert " in cell.source for cell in read("optimiser_tour").cells if cell.cell_type == "code") >= 8
    assert images(executed("optimiser_tour")) == 4


@pytest.mark.slow
def test_fine_tuning_notebook_assertions_hold() -> None:
    """Every conclusion of the notebook is asserted in its cells."""
    assert sum(cell.source.count("assert ") for cell in read("fine_tuning").cells if cell.cell_type == "code") >= 15
    assert images(executed("fine_tuning")) == 1


@pytest.mark.slow
def test_theory_notebook_assertions_hold_and_figures_are_shown() -> None:
    """The notebook's statements about small networks are asserted in its cells."""
    assert sum("assert " in cell.source for cell in read("theory").cells if cell.cell_type == "code") >= 8
    shown = executed("theory")
    assert images(shown) == len(list((ROOT / "results" / "figures").glob("theory_*.png"))) >= 6
    parts = ("Balanced networks", "deep relative trust", "Angular robustness", "The generalisation bound")
    assert all(words in markdown(shown) for words in parts)


@pytest.mark.slow
def test_table1_notebook_runs_on_empty_store_from_any_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_RUNS", str(store.root))
    shown = markdown(executed("table1", ROOT / "src"))
    assert all(
        words in shown
        for words in ("Table 1", "Table 2", "Figure 3", "Figure 9", "every learning rate", "Cost of runs", "missing")
    )


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`nero notebooks` on two notebooks, the first of which fails in its second cell."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    bad = [new_code_cell("1 + 1", id="sum"), new_code_cell("[][3]", id="beyond"), new_code_cell("5", id="never")]
    nbformat.write(new_notebook(cells=bad), folder / "bad.ipynb")
    nbformat.write(new_notebook(cells=[new_code_cell("6 * 7", id="product")]), folder / "good.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    return notebooks


@pytest.mark.slow
def test_failing_notebook_does_not_stop_the_others(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert runner.main(["--out", str(out)]) == 1
    streams = capsys.readouterr()
    progress = streams.out.splitlines()
    assert len(progress) == 2
    assert re.fullmatch(r"bad: \d+ s, FAILED: .*bad\.ipynb", progress[0])
    assert re.fullmatch(r"good: \d+ s, done: .*good\.ipynb", progress[1])
    assert streams.err == "error: bad.ipynb, cell beyond: IndexError: list index out of range\n  [][3]\n"
    far = nbformat.read(out / "bad.ipynb", as_version=4)
    assert [cell.execution_count for cell in far.cells] == [1, 2, None], "its copy shows how far it came"
    assert nbformat.read(out / "good.ipynb", as_version=4).cells[0].outputs[0].data["text/plain"] == "42"


@pytest.mark.slow
def test_only_named_notebooks_are_executed(runner: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert runner.main(["good", "good", "--out", str(out)]) == 0
    assert [path.name for path in out.iterdir()] == ["good.ipynb"]


def test_unknown_notebook_name_is_reported_before_execution(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit, match="2"):
        runner.main(["good", "goof", "--out", str(out)])
    streams = capsys.readouterr()
    assert not streams.out
    assert streams.err == (
        "error: unknown notebook goof (did you mean good?); there are bad, good; see nero notebooks --help\n"
    )
    assert not out.exists()
