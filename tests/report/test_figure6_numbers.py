"""Tests of Figure 6's table of numbers: the learning rate search, for which there are no authors' logs."""

from pathlib import Path

import pytest

from nero.report import paper
from nero.report.cells import EmbeddedDataError
from nero.report.figures import language
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, write_language_model
from support.markdown_rows import markdown_rows


def search(store: Store) -> dict[str, list[str]]:
    """Rows of the search table by their first cell."""
    text = language.figure6_numbers(evidence_of(store, "table1"))
    assert "\nFinal validation perplexity of the search, seed 0:\n" in text
    return {first: words for first, *words in markdown_rows(text)}


def test_search_table_has_a_column_per_learning_rate(tmp_path: Path) -> None:
    store, nero = Store(tmp_path), cells_of("table1")[f"{paper.WIKITEXT2} nero"]
    for lr, final in {0.0001: 659.71, 0.01: 172.0, 0.1: 4.2e7, 1.0: None}.items():
        write_language_model(store, nero, lr, 0, final)
    write_language_model(store, nero, 0.001, 1, 180.0)  # not the seed of the search
    found = search(store)
    assert found[""] == ["η = 0.0001", "η = 0.001", "η = 0.01", "η = 0.1", "η = 1"]
    assert found["Nero"] == ["659.71", "missing", "172.00", "4.20e+07", "diverged"]
    assert found["LAMB"] == ["missing"] * 5


def test_embedded_data_runs_raise(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_language_model(store, cells_of("table1")[f"{paper.WIKITEXT2} sgd"], 0.1, 0, 30.0, data="embedded")
    with pytest.raises(EmbeddedDataError):
        search(store)
