"""Tests of Figure 7's tables of numbers against independent arithmetic on the authors' log and synthetic runs."""

import math

import pandas as pd
import pytest

from nero.plans.plan import Cell
from nero.report import paper
from nero.report.figures import language
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, write_language_model
from support.markdown_rows import markdown_rows

EPOCHS = (10, 25, 50, 75, 100)
Lines = dict[str, list[str]]


def cell_of(optim: str) -> Cell:
    return cells_of("table1")[f"{paper.MULTI30K} {optim}"]


def tables(store: Store) -> tuple[Lines, Lines]:
    """Rows of the curve table and of the search table, by their first cell."""
    text = language.figure7_numbers(evidence_of(store, "table1"))
    rows = markdown_rows(text)
    curves, search = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return {first: words for first, *words in curves}, {first: words for first, *words in search}


def falling(final: float) -> list[float | None]:
    """A hundred epochs that fall by one per epoch and end at `final`."""
    return [final + 100 - epoch for epoch in range(1, 101)]


def authors(optim: str, lr: float) -> pd.DataFrame:
    logged = pd.read_csv(paper.PAPER / "multi30k_perplexity.csv")
    return logged[(logged.optimizer == optim) & (logged.lr == lr) & (logged.metric == "val")]


def their_means(optim: str, lr: float) -> list[str]:
    """The authors' seed means at `EPOCHS`; their log counts epochs from zero."""
    means = authors(optim, lr).groupby("epoch").value.mean()
    return [f"{means[epoch - 1]:.2f}" for epoch in EPOCHS]


def test_seed_means_are_listed_beside_authors_means(store: Store) -> None:
    nero = cell_of("nero")
    for lr in nero.lrs:
        for seed in (0, 1, 2) if lr == 0.01 else (0,):
            final = (10.0 if lr == 0.01 else 50.0) + seed**2
            write_language_model(store, nero, lr, seed, final, curve=falling(final))
    curves, _ = tables(store)
    mean = 10 + (0 + 1 + 4) / 3
    ours = [f"{mean + 100 - epoch:.2f}" for epoch in EPOCHS]
    theirs = their_means("nero", 0.001)
    both = [f"{mine} / {other}" for mine, other in zip(ours, theirs, strict=True)]
    assert curves["Nero"] == ["0.01", "0.001", "3", "3", *both]
    assert theirs[-1] == "11.35", "that is Table 1"
    assert curves["optimiser"][4:] == [f"epoch {epoch}" for epoch in EPOCHS]


def test_missing_runs_are_reported_beside_authors_values(store: Store) -> None:
    curves, search = tables(store)
    lamb = their_means("lamb", 0.01)
    assert curves["LAMB"] == ["missing", "0.01", "0", "3", *(f"missing / {other}" for other in lamb)]
    assert all(words.startswith("missing / ") for name in ("Nero", "SGD", "Adam", "LAMB") for words in search[name])


def test_incomplete_search_uses_leading_lr_and_is_reported(store: Store) -> None:
    for seed in (0, 1):
        write_language_model(store, cell_of("sgd"), 0.1, seed, 30.0 + seed, curve=falling(30.0 + seed))
    curves, _ = tables(store)
    assert curves["SGD"][:4] == ["0.1 (search incomplete: 1 of 5 rates)", "0.0001", "2", "3"]
    assert curves["SGD"][-1] == "30.50 / 92.40"


def test_diverged_or_non_finite_seed_leaves_no_mean(store: Store) -> None:
    adam = cell_of("adam")
    write_language_model(store, adam, 0.01, 0, 20.0, curve=falling(20.0))
    holed = falling(20.0)
    holed[24] = None
    write_language_model(store, adam, 0.01, 1, None, curve=holed[:60])
    curves, _ = tables(store)
    ours = [words.split(" / ")[0] for words in curves["Adam"][4:]]
    assert ours == ["110.00", "not finite", "70.00", "diverged", "diverged"]


def test_divergence_at_every_learning_rate_is_reported(store: Store) -> None:
    for lr in cell_of("sgd").lrs:
        write_language_model(store, cell_of("sgd"), lr, 0, None)
    curves, search = tables(store)
    assert curves["SGD"][0] == "every learning rate diverged"
    assert curves["SGD"][4].startswith("diverged / ")
    assert all(words.startswith("diverged / ") for words in search["SGD"])


def test_search_results_are_listed_beside_authors_results(store: Store) -> None:
    for lr in (0.0001, 0.001):
        write_language_model(store, cell_of("nero"), lr, 0, 40.0 + 1000 * lr)
    write_language_model(store, cell_of("nero"), 0.01, 0, 4.2e7)
    write_language_model(store, cell_of("nero"), 0.1, 0, None)
    _, search = tables(store)
    ends = {lr: authors("nero", lr)[lambda log: log.seed == 0].set_index("epoch").value for lr in cell_of("nero").lrs}
    assert search["Nero"] == [
        f"40.10 / {ends[0.0001][99]:.2f}",
        f"41.00 / {ends[0.001][99]:.2f}",
        f"4.20e+07 / {ends[0.01][99]:.2f}",
        f"diverged / cut off at epoch {ends[0.1].index.max() + 1}",
        f"missing / cut off at epoch {ends[1.0].index.max() + 1}",
    ]
    assert search["SGD"][1] == "missing / 2.17e+06"


def test_authors_run_ending_at_infinity_is_shown_as_inf(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {("sgd", 0.1): math.inf, ("sgd", 1.0): "cut off at epoch 51"}
    monkeypatch.setattr(paper, "translation_search", lambda seed: ends)
    _, search = tables(store)
    assert search["SGD"][2:] == ["missing / not logged", "missing / inf", "missing / cut off at epoch 51"]
