"""Tests of Figure 3's table of numbers against independent arithmetic on the authors' logs and synthetic runs."""

import numpy as np
import pandas as pd

from nero.report import paper
from nero.report.figures import figure3
from nero.runs.store import Store
from support.fake_runs import STEPS, cells_of, evidence_of, fill, fill_cell, plausible, write_run
from support.markdown_rows import markdown_rows


def lines(store: Store) -> dict[str, list[str]]:
    """Rows of both tables by their first cell; keys of the search table have the prefix `search`."""
    text = figure3.numbers(evidence_of(store))
    curves, search = {}, {}
    for first, *words in markdown_rows(text):
        (search if len(words) == 4 else curves)[first] = words
    return {**curves, **{f"search {name}": words for name, words in search.items()}}


def authors_epochs(optim: str, lr: float) -> np.ndarray:
    logged = pd.read_csv(paper.PAPER / "mnist_100_layer.csv")
    chosen = logged[(logged.optimizer == optim) & (logged.lr == lr)]
    return 100 * chosen.groupby("epoch").train_accuracy.mean().to_numpy()


def test_gaps_compare_seed_means_over_common_epochs(store: Store) -> None:
    fill(store, "mnist", plausible)
    finals = 100 * np.array([0.9, 0.91, 0.94])
    ours = np.outer([1 / 3, 1 / 2, 1], finals).mean(axis=1)
    theirs = authors_epochs("nero", 0.001)
    gaps = ours - theirs[:3]
    assert lines(store)["Nero"] == [
        *("0.001", "0.001", "3", "3"),
        f"{ours[-1]:.2f}",
        f"{theirs[-1]:.2f}",
        f"{abs(gaps).mean():.2f}",
        f"{gaps[abs(gaps).argmax()]:+.2f}",
        f"epoch {abs(gaps).argmax() + 1}",
    ]


def test_left_panel_is_compared_in_blocks_of_iterations(store: Store) -> None:
    cell = cells_of("mnist")["mnist_reparam adam 1"]
    values = [0.2, 0.3, 0.4, 0.5, 0.6]
    for seed in cell.seeds:
        write_run(store, cell, 0.01, seed, 0.6, curve=values)
    ours = 100 * np.repeat(values, STEPS).reshape(2, 10).mean(axis=1)
    logged = pd.read_csv(paper.PAPER / "mnist_reparameterised.csv")
    theirs = 100 * logged[logged.sigma == 1].groupby("iteration").train_accuracy.mean().to_numpy().reshape(-1, 10)
    gaps = ours - theirs.mean(axis=1)[:2]
    found = lines(store)["σ = 1"]
    assert found[4] == f"{ours[-1]:.2f}"
    assert found[6:] == [
        f"{abs(gaps).mean():.2f}",
        f"{gaps[abs(gaps).argmax()]:+.2f}",
        f"iteration {10 * (abs(gaps).argmax() + 1)}",
    ]


def test_search_results_are_listed_beside_authors_results(store: Store) -> None:
    fill_cell(store, cells_of("mnist")["mnist_mlp100 nero"], lambda cell, lr, seed: None if lr == 0.1 else 0.5 + lr)
    found = lines(store)
    logged = pd.read_csv(paper.PAPER / "mnist_100_layer.csv")
    theirs = logged[(logged.optimizer == "nero") & (logged.seed == 0) & (logged.epoch == 50)].set_index("lr")
    ours = ["50.01", "50.10", "51.00", "diverged"]
    assert found["search Nero"] == [
        f"{mine} / {100 * theirs.train_accuracy[lr]:.2f}"
        for mine, lr in zip(ours, (0.0001, 0.001, 0.01, 0.1), strict=True)
    ]
    assert all(words.startswith("missing / ") for words in found["search SGD"])
    assert "search Nero at lr = 0.001" not in found


def test_missing_and_diverged_runs_are_reported(store: Store) -> None:
    cells = cells_of("mnist")
    fill_cell(store, cells["mnist_mlp100 sgd"], lambda cell, lr, seed: None)
    found = lines(store)
    assert found["SGD"][:2] == ["every learning rate diverged", "0.1"]
    assert found["Nero"][0] == found["σ = 100"][0] == "missing"


def test_incomplete_search_uses_leading_lr_and_is_reported(store: Store) -> None:
    nero = cells_of("mnist")["mnist_mlp100 nero"]
    for seed in (0, 1):
        write_run(store, nero, 0.01, seed, 0.6 + 0.1 * seed)
    found = lines(store)["Nero"]
    assert found[:5] == ["0.01 (search incomplete: 1 of 4 rates)", "0.001", "2", "3", "65.00"]
