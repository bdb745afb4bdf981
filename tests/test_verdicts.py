"""How results stand to the paper's: the rule itself, and where tables say it."""

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_runs import cells_of, fill, fill_cell, loaded, plausible, states_of, write_run
from markdown_rows import markdown_rows
from nero.report import constraints, paper
from nero.report.paper import Result
from nero.report.table_formats import to_csv, to_markdown, verdict_text
from nero.report.tables import Entry, Table, build_table
from nero.report.units import ShownMetric
from nero.report.verdicts import RULE, Verdict, deviation, judge
from nero.runs.store import Store

DEEP = "mnist_mlp100"
LOW, HIGH = ShownMetric("error (%)", "min"), ShownMetric("reward", "max")
PAPERS = Result(10.0, 0.5, 0.01, 3)


@pytest.mark.parametrize(
    ("mean", "low", "high"),
    [
        (10.0, "within", "within"),
        (11.0, "within", "within"),
        (9.0, "within", "within"),
        (11.01, "worse", "better"),
        (8.99, "better", "worse"),
        (None, "missing", "missing"),
    ],
)
def test_two_deviations_to_either_side_are_the_papers_spread(mean: float | None, low: str, high: str) -> None:
    assert judge(mean, False, PAPERS, LOW) == low
    assert judge(mean, False, PAPERS, HIGH) == high


def test_what_diverged_is_worse_whatever_the_survivors_say() -> None:
    assert judge(10.0, True, PAPERS, LOW) is Verdict.WORSE
    assert judge(None, True, PAPERS, LOW) is Verdict.WORSE


def test_without_a_number_of_the_papers_there_is_no_verdict() -> None:
    assert judge(10.0, False, None, LOW) is None
    assert judge(10.0, False, PAPERS, None) is None
    assert deviation(10.0, None) is None


def test_a_paper_without_spread_still_has_the_digits_that_it_prints() -> None:
    certain = Result(10.0, 0.0, 0.01)
    assert judge(10.004, False, certain, LOW) is Verdict.WITHIN
    assert judge(10.006, False, certain, LOW) is Verdict.WORSE
    assert deviation(10.0, certain) is None


@given(
    ours=st.floats(-1e6, 1e6),
    theirs=st.builds(Result, st.floats(-1e6, 1e6), st.floats(0.01, 1e3), st.just(0.1)),
    metric=st.sampled_from([LOW, HIGH]),
)
def test_the_verdict_follows_from_the_number_beside_it(ours: float, theirs: Result, metric: ShownMetric) -> None:
    sigmas = deviation(ours, theirs)
    assert sigmas is not None
    assert ours == pytest.approx(theirs.mean + sigmas * theirs.std, rel=1e-9, abs=1e-6)
    if not math.isclose(abs(sigmas), 2.0, rel_tol=1e-9):
        good = -1 if metric.goal == "min" else 1
        side = Verdict.BETTER if sigmas * good > 0 else Verdict.WORSE
        assert judge(ours, False, theirs, metric) is (Verdict.WITHIN if abs(sigmas) < 2 else side)


# in tables


def mnist_table(store: Store) -> Table:
    return build_table(*states_of(store), paper.mnist())


def deep_entry(table: Table, optim: str) -> Entry:
    [row] = [row for row in table.rows if row.task == DEEP and not row.variant]
    return row.entries[optim]


def test_a_row_has_a_line_of_verdicts_below_the_papers(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = mnist_table(store)
    _, _, *body = markdown_rows(to_markdown(table))
    first = next(number for number, row in enumerate(body) if row[0] == f"`{DEEP}`")
    ours, theirs, verdicts = body[first : first + 3]
    assert [row[2] for row in (ours, theirs, verdicts)] == ["ours", "authors' logs", "verdict"]
    for place, optim in enumerate(table.optims, start=3):
        entry = deep_entry(table, optim)
        distance = f" ({entry.deviation:+.2f} σ)" if optim in ("nero", "lamb") else ""  # others have no spread
        assert verdicts[place] == f"{entry.verdict}{distance}"
    assert RULE in to_markdown(table)


def test_csv_has_verdict_and_deviation_of_every_cell(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} nero"], 0.01, 0, 0.3)
    lines = list(csv.DictReader(io.StringIO(to_csv(mnist_table(store)))))
    [nero] = [line for line in lines if (line["task"], line["optim"], line["variant"]) == (DEEP, "nero", "")]
    theirs = paper.mnist().results[DEEP, (), "nero"]
    assert nero["verdict"] == "worse"
    assert float(nero["deviation"]) == pytest.approx((30.0 - theirs.mean) / theirs.std)
    assert {line["verdict"] for line in lines if line is not nero} == {"missing"}
    assert {line["deviation"] for line in lines if line is not nero} == {""}


def test_a_verdict_on_part_of_the_runs_is_so_far(store: Store) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    write_run(store, cell, 0.01, 0, 0.3)
    assert verdict_text(deep_entry(mnist_table(store), "nero")).value == "worse so far"
    assert verdict_text(deep_entry(mnist_table(store), "sgd")).value == "missing"
    fill_cell(store, cells_of("mnist")[f"{DEEP} lamb"], plausible)
    assert "so far" not in verdict_text(deep_entry(mnist_table(store), "lamb")).value


def test_divergence_is_worse_in_a_table_too(store: Store) -> None:
    lost = {("nero", 2), *(("sgd", seed) for seed in range(3))}
    fill(store, "mnist", lambda c, lr, seed: None if (c.optim, seed) in lost else plausible(c, lr, seed))
    table = mnist_table(store)
    assert deep_entry(table, "nero").verdict is Verdict.WORSE
    assert deep_entry(table, "sgd").verdict is Verdict.WORSE


def test_table_2_has_a_column_of_verdicts(store: Store) -> None:
    table = build_table(*states_of(store, "ablation"), paper.ablation(), constraints.LISTING)
    head, _, *body = markdown_rows(to_markdown(table))
    assert head[-1] == "verdict"
    assert [row[-1] for row in body] == ["missing"] * len(loaded("ablation").cells)


def test_a_table_without_the_papers_numbers_has_no_verdicts(store: Store) -> None:
    text = to_markdown(build_table(*states_of(store, "smoke")))
    assert "erdict" not in text
    imagenet = build_table(*states_of(store, "imagenet"), paper.imagenet())
    assert "erdict" not in to_markdown(imagenet)
