"""Why results differ from the paper's: the file is checked, quoted below tables, and up to date."""

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


def test_an_entry_names_a_cell_and_why(tmp_path: Path) -> None:
    swept = {"experiment": "mnist", "task": "mnist_reparam", "optim": "adam", "variant": {"task.sigma": 100}}
    first, second = disagreements.load(write(tmp_path, ENTRY, ENTRY | swept))
    assert (first.experiment, first.key) == ("table1", CellKey(RowKey("cifar10_vgg11"), "nero"))
    assert (first.reason, first.check) == ("It was too hot.", "checks: a row.")
    assert second.key == CellKey(RowKey("mnist_reparam", (("task.sigma", 100),)), "adam")


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
def test_what_is_no_entry_is_refused_in_a_line(tmp_path: Path, entry: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        disagreements.load(write(tmp_path, ENTRY | {"optim": "lamb"}, entry))
    assert str(raised.value).startswith("entry 2 of ")
    assert "\n" not in str(raised.value)


def test_an_unknown_experiment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="there is no experiment 'table9'"):
        disagreements.load(write(tmp_path, ENTRY | {"experiment": "table9"}))


def test_two_entries_on_one_cell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"entry 2 of .* duplicate entry for table1, cifar10_vgg11, nero"):
        disagreements.load(write(tmp_path, ENTRY, ENTRY))


@pytest.mark.parametrize("text", ["a: b", "- [", "words"])
def test_what_is_no_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / disagreements.NAME).write_text(text)
    with pytest.raises(ConfigError, match=disagreements.NAME) as raised:
        disagreements.load(tmp_path / disagreements.NAME)
    assert "\n" not in str(raised.value)


def test_a_store_without_the_file_has_none(store: Store) -> None:
    assert disagreements.of_store(store) == ()


def test_reasons_are_quoted_below_the_table_where_a_cell_differs(store: Store) -> None:
    write(store.root.parent, ENTRY, ENTRY | {"experiment": "pong", "task": "pong_ppo"})
    cell = cells_of("table1")["cifar10_vgg11 nero"]
    fill_cell_at(store, cell, 0.5)
    table = catalogue.make_table(catalogue.gather("table1", store))
    text = to_markdown(table)
    quoted = f"- `cifar10_vgg11`, Nero (higher: +38.84 [+38.32, +39.36]): {WORDS}"
    assert text.rstrip().splitlines()[-3:] == ["Why cells differ from the paper's:", "", quoted]
    assert WORDS in to_html(table)
    assert "too hot" not in to_latex(table)
    assert "too hot" not in to_markdown(catalogue.make_table(catalogue.gather("pong", store))), "nothing is logged"


def test_a_reason_is_not_quoted_where_the_cell_agrees(store: Store) -> None:
    write(store.root.parent, ENTRY)
    fill_cell_at(store, cells_of("table1")["cifar10_vgg11 nero"], 0.1116)
    text = to_markdown(catalogue.make_table(catalogue.gather("table1", store)))
    assert "too hot" not in text
    assert "Why cells differ" not in text


def fill_cell_at(store: Store, cell: Cell, final: float) -> None:
    """Its search and its repeats, best at 0.01 with the same final value for each seed."""
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
def test_every_committed_cell_that_differs_has_a_reason(name: str) -> None:
    table = committed(name)
    known = {each.key for each in table.disagreements}
    entries = [entry for row in table.rows for entry in row.entries.values()]
    differ = {CellKey.of(entry.cell) for entry in entries if entry.verdict and entry.verdict.differs}
    assert differ <= known, f"say why in {RESULTS / disagreements.NAME}"


@pytest.mark.parametrize("name", sorted({each.experiment for each in disagreements.load(RESULTS / disagreements.NAME)}))
def test_no_committed_reason_is_stale(name: str) -> None:
    table = committed(name)
    verdicts = {CellKey.of(e.cell): e.verdict for row in table.rows for e in row.entries.values()}
    for each in table.disagreements:
        verdict = verdicts[each.key]
        assert verdict is not None
        assert verdict.differs, f"{each.experiment}, {each.key} {verdict}"
