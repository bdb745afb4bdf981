"""Tests of comparisons with the paper's results: intervals, verdicts, and how tables show them."""

import csv
import io
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from conftest import ROOT
from nero.report import paper
from nero.report.cells import CellStatus, RowKey
from nero.report.display import task_name
from nero.report.paper import Result
from nero.report.tables import listings
from nero.report.tables.entries import verdict_text
from nero.report.tables.sheets import GENERAL_NOTES
from nero.report.tables.table import Entry, Table, build_table
from nero.report.units import signed
from nero.report.verdicts import PRINTED, RULE, Comparison, compare, sample_deviation
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, fill, fill_cell, loaded, plausible, write_run
from support.markdown_rows import markdown_rows
from support.tables import to_csv, to_html, to_latex, to_markdown

DEEP = "mnist_mlp100"
PAPERS = Result(10.0, 0.5, 0.01, 3)
T2, T4 = 4.302652729749464, 2.7764451051977934
"""Student's t for 95 % and two or four degrees of freedom, from tables."""

LAMB_ON_VGG11 = ([13.78, 13.96, 14.08], Result(13.66, 0.05, 0.01))

VALUES = st.floats(-100, 100).map(lambda value: round(value, 3))
FINALS = st.lists(VALUES, min_size=2, max_size=6)
RESULTS = st.builds(
    Result, VALUES, st.floats(0.01, 30).map(lambda std: round(std, 2)), st.just(0.1), n=st.integers(2, 6)
)


def welch_p(finals: list[float], theirs: Result) -> float:
    """Two-sided p-value of Welch's test, integrated from the density to be independent of the tested quantile."""
    n = len(finals)
    ours, other = np.var(finals, ddof=1) / n, theirs.std**2 / (theirs.n - 1)
    df = (ours + other) ** 2 / (ours**2 / (n - 1) + other**2 / (theirs.n - 1))
    edge = math.atan(abs(np.mean(finals) - theirs.mean) / math.sqrt(ours + other) / math.sqrt(df))
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def integral(low: float, high: float) -> float:
        angles = (high - low) / 2 * nodes + (high + low) / 2
        return float((high - low) / 2 * weights @ np.cos(angles) ** (df - 1))

    above = integral(edge, math.pi / 2)
    return above / (integral(0, edge) + above)


def difference(finals: list[float], theirs: Result) -> Any:
    return compare(finals, False, theirs)


@given(FINALS, RESULTS)
@example(*LAMB_ON_VGG11)
def test_verdict_agrees_if_welch_test_is_not_significant(finals: list[float], theirs: Result) -> None:
    found = difference(finals, theirs)
    p = welch_p(finals, theirs)
    assume(abs(p - 0.05) > 1e-4)
    agrees = p > 0.05 or abs(found.mean) <= PRINTED
    assert (found.verdict is CellStatus.AGREES) == agrees
    if not agrees:
        assert found.verdict is (CellStatus.HIGHER if statistics.fmean(finals) > theirs.mean else CellStatus.LOWER)


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # if all finals are equal
@given(FINALS, RESULTS)
@example(*LAMB_ON_VGG11)
def test_intervals_and_verdicts_match_scipy(finals: list[float], theirs: Result) -> None:
    found = difference(finals, theirs)
    deviation = sample_deviation(theirs.std, theirs.n)
    ours = np.mean(finals), np.std(finals, ddof=1), len(finals)
    p = stats.ttest_ind_from_stats(*ours, theirs.mean, deviation, theirs.n, equal_var=False).pvalue
    if abs(p - 0.05) > 1e-9 and found.high - found.mean > PRINTED:
        assert (found.verdict is CellStatus.AGREES) == (p > 0.05)
    # Any runs with the paper's mean and deviation give the same interval.
    shape = np.arange(theirs.n) - (theirs.n - 1) / 2
    runs = theirs.mean + theirs.std * shape / np.std(shape)
    interval = stats.ttest_ind(finals, runs, equal_var=False).confidence_interval(0.95)
    half = (interval.high - interval.low) / 2
    assert found.high - found.mean == pytest.approx(max(half, PRINTED), rel=1e-6)
    assert found.mean == pytest.approx((interval.high + interval.low) / 2, rel=1e-6, abs=1e-9)


def test_lamb_on_vgg11_agrees() -> None:
    """Our mean is far outside the paper's small deviation, but p is 0.07."""
    finals, theirs = LAMB_ON_VGG11
    found = difference(finals, theirs)
    assert found.verdict is CellStatus.AGREES
    assert [signed(end) for end in (found.mean, found.low, found.high)] == ["+0.28", "-0.04", "+0.60"]
    assert welch_p(finals, theirs) == pytest.approx(0.067, abs=0.003)


def test_equal_variances_give_pooled_degrees_of_freedom() -> None:
    found = difference([9.0, 10.0, 11.0], Result(10.0, math.sqrt(2 / 3), 0.1, 3))
    assert found.mean == 0
    assert found.high == -found.low == pytest.approx(T4 * math.sqrt(2 / 3))


@pytest.mark.parametrize(("final", "verdict"), [(10.0, "agrees"), (13.03, "agrees"), (13.05, "higher"), (6.9, "lower")])
def test_single_run_is_compared_with_prediction_interval_of_paper(final: float, verdict: str) -> None:
    found = difference([final], PAPERS)
    half = T2 * 0.5 * math.sqrt(3 / 2) * math.sqrt(1 + 1 / 3)
    assert (found.low, found.high) == (pytest.approx(final - 10 - half), pytest.approx(final - 10 + half))
    assert half == pytest.approx(3.0424, abs=1e-4)
    assert found.verdict == verdict


@pytest.mark.parametrize("finals", [[10.0], [10.0, 10.0], [10.004, 10.004, 10.004]])
def test_interval_is_no_narrower_than_printed_precision_of_paper(finals: list[float]) -> None:
    certain = Result(10.0, 0.0, 0.01)
    found = difference(finals, certain)
    assert found.high - found.low == pytest.approx(2 * PRINTED)
    assert found.verdict is CellStatus.AGREES
    assert difference([final + 0.006 for final in finals], certain).verdict is CellStatus.HIGHER


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_interval_is_finite_for_tiny_and_huge_spread(size: float) -> None:
    found = difference([size, 2 * size, 3 * size], Result(0.0, size, 0.01))
    assert all(map(math.isfinite, (found.mean, found.low, found.high)))


def test_diverged_runs_are_not_compared() -> None:
    assert compare([10.0], True, PAPERS) == compare([], True, PAPERS) == Comparison(CellStatus.DIVERGED)


def test_missing_without_runs_and_no_verdict_without_paper_value() -> None:
    assert compare([], False, PAPERS) == Comparison(CellStatus.MISSING)
    assert compare([10.0], False, None) is None


def test_paper_result_of_single_run_raises() -> None:
    with pytest.raises(ValueError, match="the spread of 1 run"):
        difference([1.0, 2.0], Result(1.0, 0.0, 0.1, n=1))


@given(st.floats(-1e9, 1e9))
def test_differences_always_have_a_sign(value: float) -> None:
    assert signed(value)[0] in "+-"
    assert float(signed(value)) == pytest.approx(value, abs=0.0051, rel=0.005)
    assert signed(value) != "-0.00"


# verdicts in tables


def mnist_table(store: Store) -> Table:
    return build_table(evidence_of(store), paper.mnist())


def deep_entry(table: Table, optim: str) -> Entry:
    [row] = [row for row in table.rows if row.key == RowKey(DEEP)]
    return row.entries[optim]


def test_verdicts_are_shown_below_paper_values(store: Store) -> None:
    fill(store, "mnist", plausible)
    table = mnist_table(store)
    _, _, *body = markdown_rows(to_markdown(table))
    first = next(number for number, row in enumerate(body) if row[0] == task_name(DEEP))
    ours, theirs, verdicts = body[first : first + 3]
    assert [row[2] for row in (ours, theirs, verdicts)] == ["ours", "authors' logs", "verdict"]
    for place, optim in enumerate(table.optims, start=3):
        comparison = deep_entry(table, optim).comparison
        assert comparison is not None
        assert comparison.mean is not None
        mean, low, high = map(signed, (comparison.mean, comparison.low, comparison.high))
        assert verdicts[place] == f"{comparison.verdict}: {mean} [{low}, {high}]"
        half = signed((comparison.high or 0.0) - comparison.mean).removeprefix("+")
        mark = r"$^\dagger$" if comparison.verdict.differs else ""
        assert rf"{mean} $\pm$ {half}{mark}".replace("-", "$-$") in to_latex(table)
    assert "σ" not in to_markdown(table)


def test_rule_is_in_the_notes_on_all_tables_and_not_below_each(store: Store) -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text().partition("\n## How to read the tables\n")[2]
    assert " ".join(page.split()).startswith(GENERAL_NOTES)
    assert RULE in GENERAL_NOTES
    assert "prediction interval" not in to_markdown(mnist_table(store))


def test_csv_has_verdict_difference_and_interval(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} nero"], 0.001, 0, 0.3)
    lines = list(csv.DictReader(io.StringIO(to_csv(mnist_table(store)))))
    [nero] = [line for line in lines if (line["task"], line["optim"], line["variant"]) == (DEEP, "nero", "")]
    theirs = paper.mnist().results[DEEP, (), "nero"]
    half = T2 * theirs.std * math.sqrt(3 / 2) * math.sqrt(1 + 1 / 3)
    assert (nero["verdict"], nero["complete"]) == ("lower", "0")
    assert float(nero["difference"]) == pytest.approx(30.0 - theirs.mean)
    assert float(nero["difference_low"]) == pytest.approx(30.0 - theirs.mean - half)
    assert float(nero["difference_high"]) == pytest.approx(30.0 - theirs.mean + half)
    others = [line for line in lines if line["optim"] != "nero"]
    assert {line["verdict"] for line in others} == {"missing"}
    assert {line[f"difference{end}"] for line in others for end in ("", "_low", "_high")} == {""}
    assert "deviation" not in nero


def test_verdict_on_partial_runs_is_preliminary(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} nero"], 0.001, 0, 0.3)
    nero = verdict_text(deep_entry(mnist_table(store), "nero"))
    assert (nero.value.partition(":")[0], nero.detail) == ("lower", "preliminary")
    sgd = verdict_text(deep_entry(mnist_table(store), "sgd"))
    assert (sgd.value, sgd.detail) == ("missing", "")
    fill_cell(store, cells_of("mnist")[f"{DEEP} lamb"], plausible)
    assert verdict_text(deep_entry(mnist_table(store), "lamb")).detail == ""


@pytest.mark.parametrize("final", [0.3, None])
def test_comparison_is_incomplete_until_paper_lr_is_run(store: Store, final: float | None) -> None:
    cell = cells_of("mnist")[f"{DEEP} nero"]
    assert paper.mnist().results[DEEP, (), "nero"].lr == 0.001
    write_run(store, cell, 0.01, 0, final)
    entry = deep_entry(mnist_table(store), "nero")
    assert entry.comparison == Comparison(CellStatus.INCOMPLETE)
    assert not CellStatus.INCOMPLETE.differs
    assert (verdict_text(entry).value, verdict_text(entry).detail) == ("incomplete", "")
    write_run(store, cell, 0.001, 0, 0.2)  # the paper's rate; the leading rate is compared
    comparison = deep_entry(mnist_table(store), "nero").comparison
    assert comparison is not None
    assert comparison.mean is not None
    theirs = paper.mnist().results[DEEP, (), "nero"].mean
    assert comparison.mean == pytest.approx((20.0 if final is None else 30.0) - theirs)


def test_divergence_is_a_separate_verdict(store: Store) -> None:
    lost = {("nero", 2), *(("sgd", seed) for seed in range(3))}
    fill(store, "mnist", lambda c, lr, seed: None if (c.optim, seed) in lost else plausible(c, lr, seed))
    table = mnist_table(store)
    for optim in ("nero", "sgd"):
        assert deep_entry(table, optim).comparison == Comparison(CellStatus.DIVERGED)
        assert verdict_text(deep_entry(table, optim)).value == "diverged"


def test_incomplete_search_with_only_diverged_runs_is_preliminary(store: Store) -> None:
    write_run(store, cells_of("mnist")[f"{DEEP} sgd"], 0.1, 0, None)
    found = verdict_text(deep_entry(mnist_table(store), "sgd"))
    assert (found.value, found.detail) == ("diverged", "preliminary")


def test_table_2_has_a_verdict_column(store: Store) -> None:
    table = build_table(evidence_of(store, "ablation"), paper.ablation(), listings.ABLATION)
    head, _, *body = markdown_rows(to_markdown(table))
    assert head[-1] == "verdict"
    assert [row[-1] for row in body] == ["missing"] * len(loaded("ablation").cells)


def test_table_without_paper_values_has_no_verdicts(store: Store) -> None:
    text = to_markdown(build_table(evidence_of(store, "smoke")))
    assert "erdict" not in text
    imagenet = build_table(evidence_of(store, "imagenet"), paper.imagenet())
    assert "erdict" not in to_markdown(imagenet)


def test_html_keeps_interval_on_one_line(store: Store) -> None:
    fill(store, "mnist", plausible)
    html = to_html(mnist_table(store))
    words = verdict_text(deep_entry(mnist_table(store), "nero")).value
    assert words.replace(", ", ",\N{NO-BREAK SPACE}") in html
    assert 'data-verdict="agrees"' in html
