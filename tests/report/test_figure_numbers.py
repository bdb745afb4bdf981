"""Tests of what the tables of figures' numbers share: the learning rate search, and that embedded data are refused."""

from collections.abc import Callable

import pytest

from nero.report import catalogue, paper
from nero.report.cells import EmbeddedDataError
from nero.runs.store import RunDirectory, Store
from support.fake_runs import (
    cells_of,
    evidence_of,
    write_classifier,
    write_generator,
    write_language_model,
    write_player,
    write_run,
)
from support.markdown_rows import markdown_rows

Writer = Callable[..., RunDirectory]
# Figure: its experiment, the cell of an optimiser, and how a run of it is written.
FIGURES: dict[str, tuple[str, str, Writer]] = {
    "figure3": ("mnist", paper.DEEP, write_run),
    "figure4": ("table1", paper.CGAN, write_generator),
    "figure6": ("table1", paper.WIKITEXT2, write_language_model),
    "figure7": ("table1", paper.MULTI30K, write_language_model),
    "figure8": ("pong", paper.PONG, write_player),
    "figure9": ("imagenet", paper.IMAGENET, write_classifier),
}


def numbers(store: Store, name: str) -> str:
    return catalogue.make_numbers(evidence_of(store, FIGURES[name][0]))[name]


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("figure4", "FID against the test images"), ("figure6", "validation perplexity"), ("figure8", "reward")],
)
def test_search_table_has_a_column_per_learning_rate(store: Store, name: str, quantity: str) -> None:
    experiment, task, write = FIGURES[name]
    nero = cells_of(experiment)[f"{task} nero"]
    for lr, final in {0.0001: -20.97, 0.01: 172.0, 0.1: 4.2e7, 1.0: None}.items():
        write(store, nero, lr, 0, final)
    write(store, nero, 0.001, 1, 15.0)  # not the seed of the search
    text = numbers(store, name).partition(f"\nFinal {quantity} of the search, seed 0:\n")[2]
    search = {first: words for first, *words in markdown_rows(text)}
    assert search[""] == ["η = 0.0001", "η = 0.001", "η = 0.01", "η = 0.1", "η = 1"]
    assert search["Nero"] == ["-20.97", "missing", "172.00", "4.20e+07", "diverged"]
    assert search["LAMB"] == ["missing"] * 5


@pytest.mark.parametrize("name", FIGURES)
def test_embedded_data_runs_raise(store: Store, name: str) -> None:
    experiment, task, write = FIGURES[name]
    write(store, cells_of(experiment)[f"{task} nero"], 0.01, 0, 0.3, data="embedded")
    with pytest.raises(EmbeddedDataError):
        numbers(store, name)
