"""Tests of the file that explains differences from the paper: parsing, quotes below tables, and completeness."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from nero.plans.config import ConfigError
from nero.plans.plan import Cell
from nero.report import catalogue, disagreements
from nero.report.cells import CellKey, RowKey
from nero.runs.store import Store
from support.fake_runs import cells_of, loaded, write_classifier
from support.tables import to_html, to_latex, to_markdown

ENTRY = {
    "experiment": "table1",
    "task": "cifar10_vgg11",
    "optim": "nero",
    "reason": "It was too hot",
    "check": "checks: a row",
}
WORDS = "It was too hot. Check: checks: a row."


@pytest.fixture(autouse=True)
def _experiments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)
    monkeypatch.setattr(disagreements, "load_experiment", loaded)


def write(folder: Path, *entries: object) -> Path:
    path = folder / disagreements.NAME
    path.write_text(yaml.safe_dump(list(entries)))
    return path


def test_load_parses_cell_reason_and_check(tmp_path: Path) -> None:
    swept = {"experiment": "mnist", "task": "mnist_reparam", "optim": "adam", "variant": {"task.sigma": 100}}
    assert disagreements.load(write(tmp_path, ENTRY, ENTRY | swept)) == {
        ("table1", CellKey(RowKey("cifar10_vgg11"), "nero")): WORDS,
        ("mnist", CellKey(RowKey("mnist_reparam", (("task.sigma", 100),)), "adam")): WORDS,
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("words", "must be a mapping, not 'words'"),
        ({key: value for key, value in ENTRY.items() if key != "check"}, "needs 'check'"),
        (ENTRY | {"reason": ""}, "needs 'reason'"),
        (ENTRY | {"because": "x"}, "unknown key 'because'"),
        (ENTRY | {"variant": "sigma = 1"}, "'variant' must be a mapping, not 'sigma = 1'"),
        (ENTRY | {"optim": 3}, "'optim' must be a string, not 3"),
        (ENTRY | {"optim": "none_such"}, "table1 has no cell cifar10_vgg11, none_such"),
        (ENTRY | {"label": "a label"}, "table1 has no cell cifar10_vgg11, a label, nero"),
    ],
)
def test_invalid_entry_raises_one_line_error(tmp_path: Path, entry: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        disagreements.load(write(tmp_path, ENTRY | {"optim": "lamb"}, entry))
    assert str(raised.value).startswith("entry 2 of ")
    assert "\n" not in str(raised.value)


def test_unknown_experiment_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="there is no experiment 'table9'"):
        disagreements.load(write(tmp_path, ENTRY | {"experiment": "table9"}))


def test_duplicate_entries_for_one_cell_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"entry 2 of .* duplicate entry for table1, cifar10_vgg11, nero"):
        disagreements.load(write(tmp_path, ENTRY, ENTRY))


@pytest.mark.parametrize("text", ["a: b", "- [", "words"])
def test_file_that_is_not_a_list_raises(tmp_path: Path, text: str) -> None:
    (tmp_path / disagreements.NAME).write_text(text)
    with pytest.raises(ConfigError, match=disagreements.NAME) as raised:
        disagreements.load(tmp_path / disagreements.NAME)
    assert "\n" not in str(raised.value)


def test_store_without_disagreements_file_has_none(store: Store) -> None:
    assert disagreements.of_store(store) == {}


def test_reason_is_shown_below_table_if_cell_differs(store: Store) -> None:
    write(store.root.parent, ENTRY, ENTRY | {"experiment": "pong", "task": "pong_ppo"})
    cell = cells_of("table1")["cifar10_vgg11 nero"]
    fill_cell_at(store, cell, 0.5)
    table = catalogue.make_table(catalogue.gather("table1", store))
    text = to_markdown(table)
    quoted = f"- CIFAR-10 VGG-11, Nero (higher: +38.84 [+38.32, +39.36]): {WORDS}"
    assert f"\n\nWhy cells differ from the paper's:\n\n{quoted}\n" in f"{text}\n"
    assert WORDS in to_html(table)
    assert "too hot" not in to_latex(table)
    assert "too hot" not in to_markdown(catalogue.make_table(catalogue.gather("pong", store))), "nothing is logged"


def test_reason_is_not_shown_if_cell_agrees(store: Store) -> None:
    write(store.root.parent, ENTRY)
    fill_cell_at(store, cells_of("table1")["cifar10_vgg11 nero"], 0.1116)
    text = to_markdown(catalogue.make_table(catalogue.gather("table1", store)))
    assert "too hot" not in text
    assert "Why cells differ" not in text


def fill_cell_at(store: Store, cell: Cell, final: float) -> None:
    """Write the search and repeats of a cell, best at 0.01 with the same final value for each seed."""
    for lr in cell.lrs:
        write_classifier(store, cell, lr, 0, final if lr == 0.01 else 0.9)
    for seed in cell.repeat_seeds:
        write_classifier(store, cell, 0.01, seed, final)


# the committed file


RESULTS = ROOT / "results"


@cache
def committed(name: str) -> catalogue.Table:
    return catalogue.make_table(catalogue.gather(name, Store(RESULTS / "runs")))


@pytest.mark.parametrize("name", ["table1", "ablation"])
def test_every_differing_committed_cell_has_a_reason(name: str) -> None:
    table = committed(name)
    entries = [entry for row in table.rows for entry in row.entries.values()]
    differ = {CellKey.of(entry.cell) for entry in entries if entry.verdict and entry.verdict.differs}
    assert differ <= table.disagreements.keys(), f"say why in {RESULTS / disagreements.NAME}"


@pytest.mark.parametrize("name", sorted({name for name, _ in disagreements.load(RESULTS / disagreements.NAME)}))
def test_every_committed_reason_is_for_a_cell_that_differs(name: str) -> None:
    table = committed(name)
    verdicts = {CellKey.of(e.cell): e.verdict for row in table.rows for e in row.entries.values()}
    for key in table.disagreements:
        verdict = verdicts[key]
        assert verdict is not None
        assert verdict.differs, f"{name}, {key} {verdict}"
