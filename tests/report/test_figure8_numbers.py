"""Tests of Figure 8's tables of numbers: rewards per million steps and per seed."""

from nero.plans.plan import Cell
from nero.report import paper
from nero.report.figures import figure8
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, write_player
from support.markdown_rows import Lines, curves_seeds_and_search

NEAREST = {1: 980, 2: 1950, 3: 2930, 4: 3910, 5: 4882}
"""Millions of environment steps -> nearest logged update (of 1,024 steps)."""

LOGGED = (*range(10, 4881, 10), 4882)


def cell_of(optim: str) -> Cell:
    return cells_of("pong")[f"{paper.PONG} {optim}"]


def tables(store: Store) -> tuple[Lines, Lines, Lines]:
    return curves_seeds_and_search(figure8.numbers(evidence_of(store, "pong")), "reward")


def rising(final: float, last: int = 4882) -> dict[int, float | None]:
    """A distinct reward for each logged update, so that a mix-up of updates is detected."""
    return {epoch: final - (4882 - epoch) / 200 for epoch in LOGGED if epoch <= last}


def test_nearest_logged_update_to_each_million_steps() -> None:
    for millions, epoch in NEAREST.items():
        assert epoch == min(LOGGED, key=lambda logged: abs(1024 * logged - 1e6 * millions))


def test_rewards_are_seed_means_at_update_nearest_each_million_steps(store: Store) -> None:
    for lr in cell_of("nero").lrs:
        for seed in (0, 1, 2) if lr == 0.01 else (0,):
            final = (16.0 if lr == 0.01 else 3.0) + seed**2
            write_player(store, cell_of("nero"), lr, seed, final, rising(final))
    curves, seeds, _ = tables(store)
    assert seeds[""] == ["seed 0", "seed 1", "seed 2"]
    assert seeds["Nero"] == ["16.00", "17.00", "20.00"]
    mean = 16 + (0 + 1 + 4) / 3
    assert curves["Nero"] == ["0.01", "3", *(f"{mean - (4882 - epoch) / 200:.2f}" for epoch in NEAREST.values())]
    assert curves["optimiser"] == ["η", "n", "1 M steps", "2 M steps", "3 M steps", "4 M steps", "5 M steps"]


def test_missing_runs_are_reported(store: Store) -> None:
    write_player(store, cell_of("lamb_momentum"), 0.001, 1, 13.0, rising(13.0))
    curves, seeds, search = tables(store)
    assert curves["LAMB"] == ["missing", "0", *["missing"] * 5]
    assert curves["LAMB with β₁ = 0.9"][:2] == ["0.001 (seeds 0, 2 missing)", "1"]
    assert curves["LAMB with β₁ = 0.9"][-1] == "13.00"
    assert seeds["LAMB"] == ["missing"] * 3
    assert seeds["LAMB with β₁ = 0.9"] == ["missing", "13.00", "missing"]
    assert set(search) == {"", "---", "Nero", "SGD", "Adam", "LAMB"}, "of one rate there is no search"
    assert search["LAMB"] == ["missing"] * 5


def test_reward_is_missing_if_log_has_no_update_near_the_million(store: Store) -> None:
    write_player(store, cell_of("sgd"), 0.1, 0, 9.0, rising(9.0))
    write_player(store, cell_of("sgd"), 0.1, 1, 9.0, rising(9.0, last=2940))
    curves, _, _ = tables(store)
    third = f"{9 - (4882 - 2930) / 200:.2f}"
    assert curves["SGD"][4:] == [third, "missing", "missing"]
    write_player(store, cell_of("adam"), 0.1, 0, 9.0, {980: -3.0, 1930: -2.0, 1973: -1.0})
    curves, _, _ = tables(store)
    assert curves["Adam"][2:] == ["-3.00", *["missing"] * 4], "neither of the others is near two millions"


def test_no_mean_is_given_after_a_seed_diverged(store: Store) -> None:
    for seed, last in enumerate((4882, 2500, 4882)):
        final = 14.0 if last == 4882 else None
        write_player(store, cell_of("lamb_momentum"), 0.001, seed, final, rising(14.0, last=last))
    curves, seeds, _ = tables(store)
    assert seeds["LAMB with β₁ = 0.9"] == ["14.00", "diverged", "14.00"]
    rewards = [f"{14 - (4882 - NEAREST[millions]) / 200:.2f}" for millions in (1, 2)]
    assert curves["LAMB with β₁ = 0.9"] == ["0.001", "3", *rewards, *["diverged"] * 3]


def test_reward_before_first_finished_game_is_not_finite(store: Store) -> None:
    for seed in (0, 1):
        write_player(store, cell_of("adam"), 0.1, seed, 9.0, rising(9.0) | ({980: None} if seed else {}))
    curves, _, _ = tables(store)
    assert curves["Adam"][2] == "not finite"
    assert curves["Adam"][6] == "9.00"
