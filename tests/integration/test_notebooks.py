"""Tests of executing the notebooks, and of the command that does."""

import os
import re
from pathlib import Path
from types import ModuleType

import nbformat
import numpy as np
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from nero.cli import notebooks
from nero.plans.config import ROOT
from nero.runs.store import Store
from support.notebooks import images, markdown, outputs, texts

FOLDER = ROOT / "notebooks"


def read(name: str, folder: Path = FOLDER) -> NotebookNode:
    return nbformat.read(folder / f"{name}.ipynb", as_version=4)


def executed(name: str, folder: Path = FOLDER) -> NotebookNode:
    """Execute a notebook; a failing cell raises."""
    from nbclient import NotebookClient

    notebook = read(name)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def assertions(notebook: NotebookNode) -> int:
    return sum(cell.source.count("assert ") for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table1", "figures"])
def test_committed_outputs_are_those_of_the_committed_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NERO_RUNS", raising=False)
    assert notebooks.main([name, "--out", str(tmp_path)]) == 0
    now, committed = read(name, tmp_path), read(name)
    assert texts(now) == texts(committed), "run `nero notebooks --in-place` and commit what it writes"
    assert images(now) == images(committed)


@pytest.mark.slow
def test_optimiser_tour_assertions_hold_and_the_readme_shows_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook's statements are asserted in its cells."""
    monkeypatch.setenv("NERO_FIGURES", str(tmp_path))
    notebook = executed("optimiser_tour")
    assert assertions(notebook) >= 20
    assert images(notebook) == images(read("optimiser_tour"))
    drawn, committed = (
        re.sub(r"id[0-9a-f]{8}-", "", (folder / "turning_neurons.svg").read_text())
        for folder in (tmp_path, ROOT / "results" / "figures")
    )
    number = r"-?\d+\.\d+"
    assert re.sub(number, "", drawn) == re.sub(number, "", committed)
    coordinates = [np.array(re.findall(number, text), dtype=float) for text in (drawn, committed)]
    np.testing.assert_allclose(*coordinates, atol=0.01)


@pytest.mark.slow
def test_fine_tuning_notebook_assertions_hold() -> None:
    """Every conclusion of the notebook is asserted in its cells."""
    notebook = executed("fine_tuning")
    assert assertions(notebook) >= 15
    assert images(notebook) == images(read("fine_tuning"))


@pytest.mark.slow
def test_theory_notebook_assertions_hold_and_figures_are_shown() -> None:
    """The notebook's statements about small networks are asserted in its cells."""
    notebook = executed("theory")
    assert assertions(notebook) >= 20
    assert images(notebook) == images(read("theory"))
    parts = ("Balanced networks", "deep relative trust", "Angular robustness", "The generalisation bound")
    shown = markdown(output.data for output in outputs(notebook) if "data" in output)
    assert all(words in shown for words in parts)


@pytest.mark.slow
def test_table1_notebook_runs_on_empty_store_from_any_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_RUNS", str(store.root))
    shown = "\n".join(texts(executed("table1", ROOT / "src")))
    titles = ("Table 1", "Table 2", "Figure 3", "Figure 9", "every learning rate", "Cost of runs", "missing")
    assert all(words in shown for words in titles)


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
def test_in_place_writes_reproducible_outputs_of_the_committed_runs(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NERO_RUNS", "/nowhere")
    source = 'import os\nprint(os.environ.get("NERO_RUNS"), os.environ["NERO_FIGURES"])\nobject()'
    nbformat.write(new_notebook(cells=[new_code_cell(source, id="where")]), tmp_path / "notebooks" / "good.ipynb")
    files = {name: tmp_path / "notebooks" / f"{name}.ipynb" for name in ("bad", "good")}
    before = files["bad"].read_bytes()
    assert runner.main(["--in-place"]) == 1
    assert files["bad"].read_bytes() == before, "a failing notebook stays as it was"
    once = files["good"].read_bytes()
    [cell] = read("good", tmp_path / "notebooks").cells
    assert cell.metadata == {}
    assert texts(read("good", tmp_path / "notebooks")) == [f"None {notebooks.FIGURES}\n", "<object>"]
    assert runner.main(["good", "--in-place"]) == 0
    assert files["good"].read_bytes() == once
    assert os.environ["NERO_RUNS"] == "/nowhere"


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
