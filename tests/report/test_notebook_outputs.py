"""Tests of the outputs that notebooks are committed with, without executing them."""

import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from nero import report
from nero.plans.config import ROOT
from nero.plans.stores import COMMITTED
from support.notebooks import images, markdown, texts

NAMES = ("figures", "fine_tuning", "optimiser_tour", "table1", "theory")
MOST_BYTES = 2**20
ABSOLUTE_PATH = r"(?<![\w.:/<])/(?:[\w.-]+/)+[\w.-]+"
REFRESH = "run `nero notebooks --in-place` and commit what it writes"


def read(name: str) -> NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def shown(name: str, cell_id: str) -> list[dict[str, Any]]:
    """The outputs of a cell by MIME type."""
    cell = next(cell for cell in read(name).cells if cell.id == cell_id)
    return [output.data for output in cell.outputs if "data" in output]


def test_notebook_list_is_complete() -> None:
    assert tuple(sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_valid_and_executed(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), REFRESH
    kinds = {output.get("name", output.output_type) for cell in code for output in cell.outputs}
    assert kinds <= {"stdout", "display_data", "execute_result"}, "errors or warnings"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+[0-9]?(-[a-z]+)*", given) for given in ids), "words, which stay as they are"


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_small_and_the_same_on_every_machine(name: str) -> None:
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < MOST_BYTES
    notebook = read(name)
    assert notebook.metadata.language_info == {"name": "python"}
    assert all(cell.metadata == {} for cell in notebook.cells)
    found = "\n".join(texts(notebook))
    assert found
    assert not re.search(rf"{re.escape(str(ROOT))}|{ABSOLUTE_PATH}|site-packages| at 0x[0-9a-f]+", found)


def test_paths_of_a_machine_are_found() -> None:
    for path in (Path.home() / "runs", Path(tempfile.gettempdir()) / "x.txt", Path("/opt/python/lib")):
        assert re.search(ABSOLUTE_PATH, f"read from '{path}'")
    assert not re.search(ABSOLUTE_PATH, "../runs/a/b, ours / the authors', 9.1/8.7, [a](runs/b), <b>c</b>")


@pytest.mark.parametrize(("name", "count"), [("figures", 12), ("fine_tuning", 1), ("optimiser_tour", 4)])
def test_figures_are_shown(name: str, count: int) -> None:
    assert images(read(name)) == count


def test_every_figure_of_the_theory_is_shown() -> None:
    assert images(read("theory")) == len(list((ROOT / "results" / "figures").glob("theory_*.png"))) >= 6


def test_turning_neurons_of_the_readme_are_small() -> None:
    figures = ROOT / "results" / "figures"
    assert (figures / "turning_neurons.svg").stat().st_size < 150_000
    assert "results/figures/turning_neurons.svg" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("experiment", ["table1", "ablation", "mnist", "pong", "imagenet", "checks"])
def test_shown_table_is_that_of_the_committed_runs(experiment: str) -> None:
    table = report.table(experiment, COMMITTED)
    assert markdown(shown("table1", f"{experiment}-table")) == table._repr_markdown_(), REFRESH


def test_shown_findings_are_those_of_the_committed_runs() -> None:
    assert markdown(shown("table1", "findings")) == "\n".join(f"- {line}" for line in report.findings(COMMITTED)), (
        REFRESH
    )


@pytest.mark.parametrize("number", [3, 4, 6, 7, 8, 9])
def test_shown_numbers_of_figures_are_those_of_the_committed_runs(number: int) -> None:
    _, *rest = shown("figures", f"figure{number}-show")
    assert report.numbers(f"figure{number}", COMMITTED) == markdown(rest), REFRESH


@pytest.mark.parametrize(("number", "experiment", "task"), [(5, "table1", "CIFAR-10 VGG-11"), (8, "pong", "Pong PPO")])
def test_sentences_beside_claims_follow_from_results(number: int, experiment: str, task: str) -> None:
    cells = report.table(experiment, COMMITTED).to_frame()
    found = cells[(cells["task"] == task) & cells["mean"].notna()]
    ordered = found.sort_values("mean", ascending=set(found["goal"]) == {"min"})
    line = next(line for line in markdown(shown("figures", f"figure{number}-show")).splitlines() if task in line)
    places = [line.index(f" {cell.optimizer} {cell.mean:.2f} (n = {cell.n}") for cell in ordered.itertuples()]
    assert places == sorted(places), REFRESH
    assert line.endswith(f"agree with the paper: {(found['verdict'] == 'agrees').sum()} of {len(found)}."), REFRESH
