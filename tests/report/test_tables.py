"""Tests of the tables: means and deviations as in numpy, rank marks, missing runs, units and formats."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nero.plans.plan import Cell, Experiment, survey
from nero.report import paper
from nero.report.cells import CellStatus, EmbeddedDataError, RowKey, is_embedded, row_text
from nero.report.display import task_name
from nero.report.tables import listings
from nero.report.tables.entries import entry_text
from nero.report.tables.layout import print_table
from nero.report.tables.table import Entry, Table, build_table, ranks
from nero.report.units import ShownMetric
from nero.runs.store import Store
from support.fake_runs import (
    BASE,
    cells_of,
    evidence_of,
    fill,
    fill_cell,
    loaded,
    plausible,
    states_of,
    write_classifier,
    write_generator,
    write_run,
)
from support.markdown_rows import markdown_rows
from support.tables import table_of, to_csv, to_html, to_latex, to_markdown

DEEP = "mnist_mlp100"
HALVES = {"nero": "bf16", "sgd": "fp32"}


def mnist_table(store: Store) -> Table:
    return build_table(evidence_of(store), paper.mnist())


def deep_entry(table: Table, optim: str) -> Entry:
    [row] = [row for row in table.rows if row.key == RowKey(DEEP)]
    return row.entries[optim]


def markdown_cell(table: Table, optim: str, whose: str = "ours", task: str = DEEP) -> str:
    head, _, *body = markdown_rows(to_markdown(table))
    name = task_name(task)  # which may be the beginning of another's
    fits = (str.__eq__, str.startswith)
    first = next(number for fit in fits for number, row in enumerate(body) if fit(row[0], name))
    row = next(row for row in body[first:] if row[2] == whose)
    return row[[name.lower() for name in head].index(optim)]


def csv_lines(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


# means, deviations and notes


def test_secondary_metric_is_shown_beside_metric(store: Store) -> None:
    cgan, pong = (cells_of("table1")[f"{task} nero"] for task in ("cifar10_cgan", "pong_ppo"))
    for seed in (0, 1, 2):
        write_generator(store, cgan, 0.01, seed, 15.0 + seed)  # the plain FID is logged as one more
    write_run(store, pong, 0.01, 0, 20.5, metric=paper.REWARD, curve=[20.5], also={"train/return": [20.1]})
    table = build_table(evidence_of(store, "table1"), paper.table1())
    deviation = np.std([16, 17, 18])
    assert markdown_cell(table, "nero", "plain FID", "cifar10_cgan") == f"17.00 ± {deviation:.2f}"
    assert markdown_cell(table, "nero", "last 10 games", "pong_ppo") == "20.10"
    assert to_markdown(table).count("| last 10 games |") == 1, "other tasks have no such line"
    [line] = [each for each in csv_lines(table) if (each["task"], each["optim"]) == ("cifar10_cgan", "nero")]
    assert (line["mean"], line["secondary"], line["secondary_mean"]) == ("16", "plain FID", "17")
    assert float(line["secondary_std"]) == pytest.approx(deviation)
    assert not any(each["secondary"] for each in csv_lines(table) if each["optim"] != "nero")


def test_experiment_note_is_shown_below_table(store: Store) -> None:
    experiment, states = states_of(store)
    table = table_of(replace(experiment, note="More of this elsewhere."), states, paper.mnist())
    assert "More of this elsewhere." in to_markdown(table)
    assert "More of this elsewhere." in print_table(table).notes


def test_mean_and_std_match_numpy_over_seeds_at_best_lr(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = mnist_table(store)
    for optim, base in BASE.items():
        finals = 100 * np.array([base + 0.01 * seed**2 for seed in (0, 1, 2)])
        entry = deep_entry(table, optim)
        assert (entry.state.leading_lr, entry.n) == (0.001, 3)
        assert entry.mean == pytest.approx(np.mean(finals), rel=1e-12)
        assert entry.std == pytest.approx(np.std(finals, ddof=0), rel=1e-9)
        assert entry.status is CellStatus.COMPLETE
    assert table.complete


def test_cell_shows_mean_std_n_and_learning_rate(store: Store) -> None:
    fill(store, "mnist", plausible)
    finals = 100 * np.array([0.5, 0.51, 0.54])
    expected = f"{finals.mean():.2f} ± {finals.std():.2f} (n = 3, η = 0.001)"
    assert markdown_cell(mnist_table(store), "adam") == expected


def test_csv_has_every_cell_with_values_and_run_ids(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = mnist_table(store)
    lines = csv_lines(table)
    assert len(lines) == len(loaded("mnist").cells)
    cell = cells_of("mnist")[f"{DEEP} lamb"]
    [line] = [line for line in lines if (line["task"], line["optim"]) == (DEEP, "lamb")]
    finals = 100 * np.array([0.6, 0.61, 0.64])
    assert float(line["mean"]) == pytest.approx(finals.mean())
    assert float(line["std"]) == pytest.approx(finals.std())
    assert (line["n"], line["planned"], line["lr"], line["status"], line["rank"]) == (
        "3",
        "3",
        "0.001",
        "complete",
        "2",
    )
    assert line["runs"].split() == [cell.run(0.001, seed).run_id for seed in (0, 1, 2)]
    assert line["search_runs"].split() == [cell.run(lr, 0).run_id for lr in cell.lrs]
    assert {line["variant"] for line in lines} == {"", "sigma = 1", "sigma = 100", "lr = 0.001"}


# ranks


def test_best_is_bold_and_runner_up_is_underlined(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = mnist_table(store)
    assert markdown_cell(table, "nero").startswith("**")
    assert markdown_cell(table, "lamb").startswith("<u>")
    assert re.match(r"[\d.]+ ±", markdown_cell(table, "adam"))
    assert re.match(r"[\d.]+ ±", markdown_cell(table, "sgd"))
    assert markdown_cell(table, "adam", task="mnist_reparam")[0].isdigit(), "a lone cell has won nothing"


@given(
    means=st.dictionaries(st.sampled_from("abcdef"), st.floats(-1e9, 1e9).map(lambda x: round(x, 2)), min_size=2),
    goal=st.sampled_from(["min", "max"]),
)
def test_ranks_follow_metric_goal(means: dict[str, float], goal: str) -> None:
    places = ranks(means, ShownMetric("m", goal))
    best = (min if goal == "min" else max)(means.values())
    assert {name for name, place in places.items() if place == 1} == {name for name, v in means.items() if v == best}
    for one in means:
        for other in means:
            ahead = means[one] < means[other] if goal == "min" else means[one] > means[other]
            assert (places[one] < places[other]) == ahead


def test_row_is_ranked_only_once_all_cells_are_settled(store: Store) -> None:
    cells = cells_of("mnist")
    fill_cell(store, cells[f"{DEEP} adam"], lambda cell, lr, seed: None)
    for optim in ("nero", "lamb"):
        fill_cell(store, cells[f"{DEEP} {optim}"], plausible)
    sgd = cells[f"{DEEP} sgd"]
    write_run(store, sgd, 0.001, 0, 0.95)
    table = mnist_table(store)
    assert [entry.rank for row in table.rows for entry in row.entries.values()] == [None] * len(loaded("mnist").cells)
    for optim in ("nero", "sgd", "lamb"):
        assert markdown_cell(table, optim)[0].isdigit()
    assert {line["rank"] for line in csv_lines(table)} == {""}
    assert markdown_cell(table, "nero", "authors' logs").startswith("**"), "the paper's side is finished"
    fill_cell(store, sgd, plausible)
    ranked = {optim: deep_entry(mnist_table(store), optim).rank for optim in BASE}
    assert ranked == {"nero": 1, "lamb": 2, "sgd": 3, "adam": None}, "a cell that diverged is settled, and has no place"


def test_rows_are_ranked_independently(store: Store) -> None:
    for optim in BASE:
        fill_cell(store, cells_of("mnist")[f"{DEEP} {optim}"], plausible)
    table = mnist_table(store)
    assert not table.complete
    assert markdown_cell(table, "nero").startswith("**")


def test_no_rank_for_single_entry_or_without_metric() -> None:
    assert ranks({"a": 1.0}, ShownMetric("m", "min")) == {}
    assert ranks({"a": 1.0, "b": 2.0}, None) == {}


# missing, incomplete and diverged cells


def test_empty_store_gives_table_of_missing_cells(store: Store) -> None:
    table = mnist_table(store)
    assert not table.complete
    assert {line["status"] for line in csv_lines(table)} == {"missing"}
    assert markdown_cell(table, "nero") == "missing"
    assert markdown_cell(table, "nero", task="mnist_reparam") == "", "the experiment does not ask for this cell"


def test_unavailable_tasks_are_missing_but_keep_paper_values(store: Store) -> None:
    to_come = Cell("a_task_to_come", "nero", (0.1, 1.0), 0, (1, 2))
    state = survey(to_come, {})
    assert state.cell.missing_config
    published = paper.Published(
        "paper",
        {("a_task_to_come", (), "nero"): paper.Result(1.0, 0.5, 0.1)},
        {"a_task_to_come": ShownMetric("FID", "min")},
    )
    [line] = csv_lines(table_of(Experiment("later", "Later", (to_come,)), [state], published))
    assert (line["status"], line["n"], line["mean"], line["metric"]) == ("missing", "0", "", "FID")
    assert (line["paper_mean"], line["paper_std"], line["paper_lr"]) == ("1", "0.5", "0.1")


def test_two_cells_for_one_table_entry_raise(store: Store) -> None:
    experiment, states = states_of(store)
    with pytest.raises(ValueError, match="twice"):
        table_of(experiment, [*states, states[-1]])


def test_runs_of_one_row_with_different_metrics_raise(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.5)
    write_run(store, cell, 0.1, 0, 0.5, metric={"key": "test/accuracy", "goal": "max", "label": "accuracy"})
    with pytest.raises(ValueError, match="test/accuracy, train/accuracy"):
        mnist_table(store)


def test_cell_without_repeats_reports_missing_seeds(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    for lr in cell.lrs:
        write_run(store, cell, lr, 0, plausible(cell, lr, 0))
    expected = "90.00 (n = 1 of 3, η = 0.001)"
    assert markdown_cell(mnist_table(store), "nero") == expected
    write_run(store, cell, 0.001, 1, 0.8)
    entry = deep_entry(mnist_table(store), "nero")
    assert entry_text(entry).value == "85.00 ± 5.00"
    assert "n = 2 of 3" in entry_text(entry).detail
    assert entry.status is CellStatus.INCOMPLETE


def test_incomplete_search_shows_best_so_far(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.3)
    write_run(store, cell, 0.1, 0, 0.2)
    assert markdown_cell(mnist_table(store), "nero") == "30.00 (n = 1 of 3, η = 0.01, 2 of 4 rates)"


def test_number_of_rates_is_stated_until_the_search_is_complete(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    assert cell.lrs[1] == paper.mnist().results[DEEP, (), "nero"].lr == 0.001
    said = {
        0.001: "n = 1 of 3, η = 0.001, 1 of 4 rates",
        0.01: "n = 1 of 3, η = 0.001, 2 of 4 rates",
        0.1: "n = 1 of 3, η = 0.1, 3 of 4 rates",
        0.0001: "n = 1 of 3, η = 0.1",
    }
    for lr, words in said.items():
        write_run(store, cell, lr, 0, {0.001: 0.8, 0.1: 0.9}.get(lr, 0.5))
        table = mnist_table(store)
        assert entry_text(deep_entry(table, "nero")).detail == words


def test_incomplete_search_shows_every_seed_at_leading_lr(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    finals = [0.3, 0.5, 0.7]
    for seed, final in enumerate(finals):
        write_run(store, cell, 0.01, seed, final)
    write_run(store, cell, 0.1, 0, 0.2)
    table = mnist_table(store)
    expected = f"{100 * np.mean(finals):.2f} ± {100 * np.std(finals):.2f}"
    assert markdown_cell(table, "nero") == f"{expected} (n = 3, η = 0.01, 2 of 4 rates)"
    assert deep_entry(table, "nero").status is CellStatus.INCOMPLETE


def test_search_without_repeats_is_incomplete_until_every_lr_is_run(store: Store) -> None:
    cell = replace(cells_of("mnist")[f"{DEEP} nero"], repeat_seeds=())
    experiment = Experiment("search", "Search", (cell,))
    for searched, lr in enumerate(cell.lrs, start=1):
        write_run(store, cell, lr, 0, lr)
        table = table_of(experiment, [survey(cell, store.summaries())])
        said = entry_text(table.rows[0].entries["nero"]).detail
        assert (
            said
            == {
                1: f"n = 1, η = {lr:g}, 1 of 4 rates",
                2: f"n = 1, η = {lr:g}, 2 of 4 rates",
                3: f"n = 1, η = {lr:g}, 3 of 4 rates",
                4: f"n = 1, η = {lr:g}",
            }[searched]
        )
        assert table.complete == (searched == 4)


def test_seed_diverged_during_search_is_reported(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.5)
    write_run(store, cell, 0.01, 1, None)
    table = mnist_table(store)
    expected = "50.00 (n = 1 of 3, seed 1 diverged, η = 0.01, 1 of 4 rates)"
    assert markdown_cell(table, "nero") == expected
    assert deep_entry(table, "nero").rank is None


def test_rows_of_one_task_keep_their_own_metric(store: Store) -> None:
    experiment, states = states_of(store)
    write_run(store, cells_of("mnist")[f"{DEEP} lamb"], 0.01, 0, 0.5)
    summaries = store.summaries()
    table = table_of(experiment, [survey(state.cell, summaries) for state in states])
    assert [row.metric and row.metric.label for row in table.rows if row.key.task == DEEP] == [
        "training accuracy (%)",
        None,
    ], "a row without runs does not take its neighbour's metric, nor its own away from it"


def test_failed_and_unfinished_runs_do_not_count(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.3, status="failed")
    write_run(store, cell, 0.1, 0, 0.3, status="running")
    assert markdown_cell(mnist_table(store), "nero") == "missing"


def test_search_diverged_at_every_lr_is_diverged_and_complete(store: Store) -> None:
    fill(store, "mnist", lambda cell, lr, seed: None if cell.optim == "sgd" else plausible(cell, lr, seed))
    table = mnist_table(store)
    assert markdown_cell(table, "sgd") == "diverged"
    assert deep_entry(table, "sgd").status is CellStatus.DIVERGED
    assert table.complete


def test_incomplete_search_with_only_diverged_runs_is_reported(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} sgd"], 0.1, 0, None)
    assert markdown_cell(mnist_table(store), "sgd") == "diverged (1 of 4 rates)"


def test_cell_with_diverged_seed_is_reported_and_not_ranked(store: Store) -> None:
    fill(store, "mnist", lambda c, lr, seed: None if (c.optim, seed) == ("nero", 2) else plausible(c, lr, seed))
    table = mnist_table(store)
    entry = deep_entry(table, "nero")
    assert (entry.n, len(entry.runs) - entry.n, entry.rank) == (2, 1, None)
    assert markdown_cell(table, "nero") == "90.50 ± 0.50 (n = 2 of 3, seed 2 diverged, η = 0.001)"
    assert markdown_cell(table, "lamb").startswith("**")


def test_single_lr_with_diverged_first_seed_keeps_other_seeds(store: Store) -> None:
    cell = cells_of("mnist")["mnist_reparam adam 100"]
    fill_cell(store, cell, lambda _, lr, seed: None if seed == 0 else 0.9)
    [row] = [row for row in mnist_table(store).rows if row.key.variant == (("task.sigma", 100),)]
    assert entry_text(row.entries["adam"]).value == "90.00 ± 0.00"
    assert entry_text(row.entries["adam"]).detail == "n = 2 of 3, seed 0 diverged, η = 0.01"


# embedded data


def test_embedded_data_runs_raise_beside_paper_values(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.3, data="embedded")
    with pytest.raises(EmbeddedDataError, match=cell.run(0.01, 0).run_id):
        mnist_table(store)


def test_embedded_data_experiment_raises_with_paper_values() -> None:
    smoke = loaded("smoke")
    with pytest.raises(EmbeddedDataError, match="embedded"):
        table_of(smoke, [survey(smoke.cells[0], {})], paper.mnist())


@pytest.mark.parametrize("task", [DEEP, "a_task_to_come"])
def test_last_data_override_decides_is_embedded(task: str) -> None:
    cell = Cell(task, "nero", (0.1,), 0, (), overrides=("data=real", "data='embedded'"))
    assert is_embedded(cell)
    assert not is_embedded(replace(cell, overrides=("data=embedded", "data=real")))
    assert not is_embedded(replace(cell, overrides=()))
    assert is_embedded(replace(cell, overrides=(), variant=(("data", "embedded"),)))


def test_smoke_table_states_embedded_data(store: Store) -> None:
    fill(store, "smoke", plausible, data="embedded")
    table = build_table(evidence_of(store, "smoke"))
    for text in (to_markdown(table), to_latex(table)):
        assert "Embedded data, not the paper's" in text
    assert table.complete
    assert {line["data"] for line in csv_lines(table)} == {"embedded"}
    assert {line["paper_mean"] for line in csv_lines(table)} == {""}
    assert "n = 1," in to_markdown(table), "one planned seed is complete, without a deviation"


# units


@pytest.mark.parametrize(
    ("key", "goal", "label", "final", "shown", "heading"),
    [
        ("val/error", "min", "top-1 error", 0.1116, "11.16", "top-1 error (%) ↓"),
        ("train/accuracy", "max", "training accuracy", 0.5, "50.00", "training accuracy (%) ↑"),
        ("val/perplexity", "min", "perplexity", 172.994, "172.99", "perplexity ↓"),
        ("train/reward", "max", "reward", -19.456, "-19.46", "reward ↑"),
        ("val/perplexity", "min", "perplexity", 2.74e14, "2.74e+14", "perplexity ↓"),
    ],
)
def test_fractions_are_shown_in_per_cent(
    store: Store, key: str, goal: str, label: str, final: float, shown: str, heading: str
) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, final, metric={"key": key, "goal": goal, "label": label})
    table = build_table(evidence_of(store))
    assert entry_text(deep_entry(table, "nero")).value == shown
    assert heading in to_markdown(table)


def test_metric_differing_from_paper_raises(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 2.0, metric={"key": "train/loss", "goal": "min", "label": "loss"})
    with pytest.raises(ValueError, match="mnist_mlp100 reports 'loss'"):
        mnist_table(store)


# the paper's values and precision


def test_table_1_ranks_match_the_paper(store: Store) -> None:
    table = build_table(evidence_of(store, "table1"), paper.table1())
    runners_up = ["lamb", "sgd", "adam", "adam", "adam", "adam"]
    assert len(table.rows) == len(runners_up)
    for row, runner_up in zip(table.rows, runners_up, strict=True):
        assert row.entries["nero"].published_rank == 1
        assert row.entries[runner_up].published_rank == 2
        assert markdown_cell(table, "nero", "paper", row.key.task).startswith("**")
        assert markdown_cell(table, runner_up, "paper", row.key.task).startswith("<u>")
    assert markdown_cell(table, "nero", "paper", "cifar10_vgg11") == "**11.16 ± 0.17** (n = 3, η = 0.01)"
    assert markdown_cell(table, "sgd", "paper", "multi30k_transformer") == "92.40 ± 89.48 (n = 3, η = 0.0001)"


def test_every_cell_of_table_1_has_a_paper_result(store: Store) -> None:
    _, states = states_of(store, "table1")
    published = paper.table1()
    assert {(state.cell.task, state.cell.variant, state.cell.optim) for state in states} == set(published.results)


def test_table_notes_state_precision(store: Store) -> None:
    table = build_table(evidence_of(store, "table1"), paper.table1())
    for text in (to_markdown(table), to_latex(table)):
        tf32 = "CIFAR-10 VGG-11, except Adam: float32; Wikitext-2 Transformer; Pong PPO"
        bf16 = "CIFAR-10 cGAN; CIFAR-10 ResNet-18; Multi30k Transformer"
        assert f"Precision: bf16 ({bf16}), TF32 ({tf32}); paper: float32." in text
    assert {(line["task"], line["optim"]): line["precision"] for line in csv_lines(table)} == {
        (cell.task, cell.optim): cell.setting("precision") for cell in loaded("table1").cells
    }
    assert "\nPrecision: TF32; authors' logs: float32.\n" in to_markdown(mnist_table(store))
    assert "\nPrecision: TF32.\n" in to_markdown(build_table(evidence_of(store)))


def test_row_with_two_precisions_states_exceptions() -> None:
    cells = [
        Cell(DEEP, optim, (0.1,), 0, (), overrides=(f"precision={precision}",))
        for optim, precision in (("nero", "bf16"), ("sgd", "fp32"), ("lamb", "bf16"))
    ]
    table = table_of(Experiment("mixed", "Mixed", tuple(cells)), [survey(cell, {}) for cell in cells])
    assert f"Precision: bf16 ({task_name(DEEP)}, except SGD: float32)." in to_markdown(table)
    assert [entry.marked_precision for entry in table.rows[0].entries.values()] == [None, "fp32", None]


def test_without_majority_every_cell_states_its_precision() -> None:
    cells = [Cell(DEEP, optim, (0.1,), 0, (), overrides=(f"precision={how}",)) for optim, how in HALVES.items()]
    table = table_of(Experiment("mixed", "Mixed", tuple(cells)), [survey(cell, {}) for cell in cells])
    bf16, fp32 = f"bf16 ({task_name(DEEP)} with Nero)", f"float32 ({task_name(DEEP)} with SGD)"
    assert f"Precision: {bf16}, {fp32}." in to_markdown(table)
    assert {optim: entry.marked_precision for optim, entry in table.rows[0].entries.items()} == HALVES


def test_cell_with_different_precision_is_marked(store: Store) -> None:
    for optim, lr in (("nero", 0.01), ("adam", 0.001)):
        write_classifier(store, cells_of("table1")[f"{paper.VGG11} {optim}"], lr, 0, 0.12)
    table = build_table(evidence_of(store, "table1"), paper.table1())
    assert "float32" not in markdown_cell(table, "nero", task=paper.VGG11)
    marked = "12.00 (n = 1 of 3, η = 0.001, 1 of 5 rates, float32)"
    assert markdown_cell(table, "adam", task=paper.VGG11) == marked
    assert "1 of 5 rates, float32" in to_html(table).replace("\N{NO-BREAK SPACE}", " ")
    assert "CIFAR-10 VGG-11, except Adam: float32" in to_latex(table)


# labels and the authors' values


def test_labels_distinguish_rows_of_one_task(store: Store) -> None:
    plain = replace(cells_of("mnist")[f"{DEEP} nero"], lrs=(0.001,))
    other = replace(plain, label="another start", overrides=(*plain.overrides, "task.batch_size=100"))
    for seed in plain.seeds:
        write_run(store, plain, 0.001, seed, 0.9)
        write_run(store, other, 0.001, seed, 0.8)
    cells = (plain, other)
    summaries = store.summaries()
    table = table_of(Experiment("both", "Both", cells), [survey(cell, summaries) for cell in cells], paper.mnist())
    assert [row_text(row.key) for row in table.rows] == [task_name(DEEP), f"{task_name(DEEP)}, another start"]
    assert [row.entries["nero"].mean for row in table.rows] == pytest.approx([90.0, 80.0])
    for row in table.rows:
        assert row.entries["nero"].published == paper.mnist().results[DEEP, (), "nero"], "whatever the label"
    assert f"| {task_name(DEEP)}, another start |" in to_markdown(table)
    assert [line["label"] for line in csv_lines(table)] == ["", "another start"]
    with pytest.raises(ValueError, match=f"{DEEP}, another start has nero twice"):
        table_of(Experiment("thrice", "Thrice", (*cells, other)), [survey(cell, {}) for cell in (*cells, other)])


def test_row_text_includes_label_and_swept_settings() -> None:
    assert row_text(RowKey("task", (("optim.beta", 0.9),), "a label")) == "task, a label, beta = 0.9"


def test_table_of_unavailable_tasks_states_no_precision() -> None:
    cell = Cell("a_task_to_come", "nero", (0.1,), 0, (), variant=(("precision", "bf16"),))
    table = table_of(Experiment("later", "Later", (cell,)), [survey(cell, {})])
    assert "Arithmetic" not in to_markdown(table)
    assert [line["precision"] for line in csv_lines(table)] == [""]


def test_checks_are_compared_with_table_1_values(store: Store) -> None:
    experiment, states = states_of(store, "checks")
    table = table_of(experiment, states, paper.checks(experiment.cells))
    names = [row_text(row.key) for row in table.rows]
    assert len(set(names)) == len(names)
    assert {"CIFAR-10 VGG-11, precision = tf32", "CIFAR-10 VGG-11, precision = bf16"} < set(names)
    for row in table.rows:
        for optim, entry in row.entries.items():
            assert entry.published == paper.table1().results.get((row.key.task, (), optim))
            if entry.published and len(entry.cell.lrs) == 1 and "rate" not in row.key.label:
                assert entry.cell.lrs == (entry.published.lr,), "the one rate asked for is the paper's best"


def test_authors_final_values_of_deep_network() -> None:
    curves = paper.deep_curves()
    finals = curves[curves.epoch == curves.epoch.max()]
    found = {
        optim: (set(group.lr), group.sort_values("seed").value.round(2).tolist())
        for optim, group in finals.groupby("optim")
    }
    assert found["nero"] == ({0.001}, [0.96, 0.97, 0.87])
    assert found["lamb"] == ({0.01}, [0.67, 0.73, 0.70])
    assert found["adam"][1] == found["sgd"][1] == [0.11] * 3
    nero = paper.mnist().results[DEEP, (), "nero"]
    values = 100 * finals[finals.optim == "nero"].value.to_numpy()
    assert (nero.mean, nero.std) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values)))
    assert (nero.lr, nero.n) == (0.001, 3)


@pytest.mark.parametrize(("sigma", "low", "high"), [(1, 0.991, 0.994), (100, 0.921, 0.923)])
def test_authors_last_epoch_of_reparameterised_network(sigma: int, low: float, high: float) -> None:
    curves = paper.reparam_curves()
    last = curves[(curves.sigma == sigma) & (curves.iteration > 960)]
    means = last.groupby("seed").value.mean()
    assert (round(means.min(), 3), round(means.max(), 3)) == (low, high)
    result = paper.mnist().results["mnist_reparam", (("task.sigma", sigma),), "adam"]
    assert (result.mean, result.n) == (pytest.approx(100 * means.mean()), 3)


# formats


@pytest.fixture(params=["empty", "mixed", "smoke", "listed", "pong"])
def any_table(request: pytest.FixtureRequest, store: Store) -> Table:
    if request.param == "listed":
        write_classifier(store, cells_of("ablation")["cifar10_vgg11 nero True True"], 0.02, 0, 0.1)
        return build_table(evidence_of(store, "ablation"), paper.ablation(), listings.ABLATION)
    if request.param == "pong":
        return build_table(evidence_of(store, "pong"), paper.table1())
    if request.param == "smoke":
        fill(store, "smoke", plausible, data="embedded")
        return build_table(evidence_of(store, "smoke"))
    if request.param == "mixed":
        fill(store, "mnist", lambda c, lr, seed: {"sgd": None, "adam": -0.2}.get(c.optim, plausible(c, lr, seed)))
    return mnist_table(store)


def test_markdown_has_equal_column_counts(any_table: Table) -> None:
    counts = {len(row) for row in markdown_rows(to_markdown(any_table))}
    columns = 2 + bool(any_table.source) + len(any_table.optims)
    assert counts == {len(any_table.listing.heads) + 3 if any_table.listing else columns}


def test_latex_is_balanced_and_escaped(any_table: Table) -> None:
    first, _, text = to_latex(any_table).partition("\n")
    needed = {"booktabs": "toprule", "amssymb": "checkmark", "graphicx": "resizebox"}
    named = set(re.findall(r"\w+", first.removeprefix("% Needs "))) - {"and"}
    assert named == {package for package, command in needed.items() if rf"\{command}" in text}
    plain = re.sub(r"\\[\\&%$#_{}]", "", text)
    depth = 0
    for sign in plain:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    assert plain.count("$") % 2 == 0
    assert sorted(re.findall(r"\\begin\{(.*?)\}", text)) == sorted(re.findall(r"\\end\{(.*?)\}", text))
    assert text.isascii(), "a document needs no further packages for letters"
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    columns = len(re.search(r"\\begin\{tabular\}\{@\{\}(.*?)@\{\}\}", text).group(1))
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {columns - 1}
    assert not re.search(r"(?<!\\)[_%#]", re.sub(r"\\label\{.*?\}|\{%\n", "", text))


def test_latex_marks_best_and_runner_up(store: Store) -> None:
    fill(store, "mnist", plausible)
    text = to_latex(mnist_table(store))
    assert r"\textbf{91.67 $\pm$ 1.70}" in text
    assert r"{\scriptsize $\eta$ = 0.001}" in text
    assert r"\underline{61.67 $\pm$ 1.70}" in text
    assert "MNIST MLP" in text


def test_table_output_is_reproducible(store: Store) -> None:
    fill(store, "mnist", plausible)
    one, other = mnist_table(store), mnist_table(store)
    for to in (to_markdown, to_csv, to_latex):
        assert to(one) == to(other)
