"""Tests of Figure 4's tables of numbers: FIDs by epoch, and final FIDs by seed."""

from nero.plans.plan import Cell
from nero.report import paper
from nero.report.figures import figure4
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, write_generator
from support.markdown_rows import Lines, curves_seeds_and_search

TAKEN = tuple(range(10, 121, 10))
SHOWN = (10, 30, 60, 90, 120)


def cell_of(optim: str) -> Cell:
    return cells_of("table1")[f"{paper.CGAN} {optim}"]


def tables(store: Store) -> tuple[Lines, Lines, Lines]:
    return curves_seeds_and_search(figure4.numbers(evidence_of(store, "table1")), "FID against the test images")


def falling(final: float, last: int = 120) -> dict[int, float | None]:
    """A distinct FID for each epoch, so that a mix-up of epochs is detected."""
    return {epoch: final + (120 - epoch) / 4 for epoch in TAKEN if epoch <= last}


def three_fids(value: float) -> str:
    """FIDs against the test and the training images and the plain FID, as `write_generator` logs them."""
    return f"{value:.2f} / {value - 2:.2f} / {value + 1:.2f}"


def test_fids_are_means_over_seeds(store: Store) -> None:
    for lr in cell_of("nero").lrs:
        for seed in (0, 1, 2) if lr == 0.01 else (0,):
            final = (15.0 if lr == 0.01 else 40.0) + seed**2
            write_generator(store, cell_of("nero"), lr, seed, final, falling(final))
    curves, seeds, search = tables(store)
    assert curves["optimiser"] == ["η", "n", *(f"epoch {epoch}" for epoch in SHOWN)]
    mean = 15 + (0 + 1 + 4) / 3
    assert curves["Nero"] == ["0.01", "3", *(three_fids(mean + (120 - epoch) / 4) for epoch in SHOWN)]
    assert seeds[""] == ["seed 0", "seed 1", "seed 2"]
    assert seeds["Nero"] == ["15.00", "16.00", "19.00"]
    assert search["Nero"] == ["40.00", "40.00", "15.00", "40.00", "40.00"]


def test_missing_runs_are_reported(store: Store) -> None:
    write_generator(store, cell_of("lamb"), 0.01, 0, 16.0, falling(16.0))
    curves, seeds, search = tables(store)
    assert list(curves) == ["optimiser", "---", "Nero", "SGD", "Adam", "LAMB"]
    assert curves["SGD"] == ["missing", "0", *["missing / missing / missing"] * 5]
    assert curves["LAMB"][:2] == ["0.01 (search incomplete: 1 of 5 rates)", "1"]
    assert curves["LAMB"][-1] == three_fids(16)
    assert seeds["SGD"] == ["missing"] * 3
    assert seeds["LAMB"] == ["16.00", "missing", "missing"]
    assert search["SGD"] == ["missing"] * 5


def test_no_mean_is_given_after_a_seed_diverged(store: Store) -> None:
    for lr in cell_of("adam").lrs:
        write_generator(store, cell_of("adam"), lr, 0, 23.0 if lr == 0.01 else None, falling(23.0))
    write_generator(store, cell_of("adam"), 0.01, 1, None, falling(23.0, last=40))
    write_generator(store, cell_of("adam"), 0.01, 2, 23.0, falling(23.0))
    curves, seeds, _ = tables(store)
    assert curves["Adam"] == [
        "0.01",
        "3",
        *(three_fids(23 + (120 - epoch) / 4) for epoch in (10, 30)),
        *["diverged / diverged / diverged"] * 3,
    ]
    assert seeds["Adam"] == ["23.00", "diverged", "23.00"]


def test_non_finite_fid_has_no_mean(store: Store) -> None:
    for seed in (0, 1):
        write_generator(store, cell_of("sgd"), 0.1, seed, 33.0, falling(33.0) | ({60: None} if seed else {}))
    curves, _, _ = tables(store)
    assert curves["SGD"][4] == "not finite / not finite / not finite"
    assert curves["SGD"][6] == three_fids(33)
