"""Tests of the figure data in the page: the same curves, bands, marks and texts as in the static figure."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from nero.report import catalogue
from nero.report.figures import cifar, figure3, figure9, style
from nero.report.page import data as page_data
from nero.runs.store import Store
from support.fake_runs import ERROR, cells_of, evidence_of, fill, loaded, plausible, write_classifier, write_run
from support.read_figures import bands, face, lines, marks


def shown(figure: Figure) -> list[dict]:
    """The panels of a figure as the page receives them: strict JSON, without NaN or infinities."""
    return json.loads(json.dumps(page_data.figure_data(figure), allow_nan=False))["panels"]


@pytest.fixture
def figure5(store: Store) -> Figure:
    for name, errors in {"nero": [0.5, 0.11, 0.1], "sgd": [0.6, None, 0.12]}.items():
        cell = cells_of("table1")[f"cifar10_vgg11 {name}"]
        for seed in range(2):
            curve = [error and error + 0.01 * seed for error in errors]
            write_run(store, cell, cell.lrs[2], seed, curve[-1], metric=ERROR, curve=curve)
    return cifar.figure5(evidence_of(store, "table1"))


def test_curves_and_bands_match_static_figure(figure5: Figure) -> None:
    axes, panel = figure5.axes[1], shown(figure5)[1]
    drawn = lines(axes)
    assert [series["group"] for series in panel["series"]] == list(drawn) == ["Nero", "SGD"]
    for series, band in zip(panel["series"], bands(axes), strict=True):
        points = drawn[series["group"]]
        means = np.array([np.nan if mean is None else mean for mean in series["mean"]])
        np.testing.assert_allclose(np.column_stack([series["x"], means]), points, rtol=1e-5)
        finite = [low for low in series["low"] if low is not None]
        assert min(finite) == pytest.approx(band[:, 1].min(), rel=1e-5)
        assert max(high for high in series["high"] if high is not None) == pytest.approx(band[:, 1].max(), rel=1e-5)
    assert panel["series"][1]["mean"][1] is None, "a value that is not finite is a gap"


def test_curves_have_the_mean_time_of_their_runs(store: Store, figure5: Figure) -> None:
    for run, pace in zip(store.runs(), (10.0, 20.0, 1.0, 1.0), strict=True):
        lines = [line | {"seconds": pace * line["epoch"]} for line in run.read_metrics()]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    clock = page_data.read_clock(store, page_data.runs_of([figure5]))
    assert clock.keys() == {run.run_id for run in store.runs()}
    nero, sgd = page_data.figure_data(figure5, clock)["panels"][1]["series"]
    assert nero["seconds"] == [15.0, 45.0, 90.0], "cumulative: 1, 3 and 6 times the mean pace of two runs"
    assert sgd["seconds"] == [1.0, 3.0, 6.0]
    del clock[sgd["runs"][0]]
    nero, sgd = page_data.figure_data(figure5, clock)["panels"][1]["series"]
    assert "seconds" in nero
    assert "seconds" not in sgd, "a run without times"


def test_series_lists_its_run_ids(figure5: Figure) -> None:
    cell = cells_of("table1")["cifar10_vgg11 nero"]
    nero = shown(figure5)[1]["series"][0]
    assert nero["runs"] == [cell.run(cell.lrs[2], seed).run_id for seed in range(2)]
    assert (nero["whose"], nero["dash"], nero["colour"]) == ("ours", "solid", style.COLOURS["nero"])
    assert nero["label"].endswith("n = 2 of 3")


def test_marks_titles_and_axes_match_static_figure(figure5: Figure) -> None:
    axes, panel = figure5.axes[1], shown(figure5)[1]
    drawn = marks(axes)
    assert {mark["group"]: (mark["mean"], mark["std"]) for mark in panel["marks"]} == {
        name: (pytest.approx(mean), pytest.approx(high - mean)) for name, (_, mean, _, high) in drawn.items()
    }
    assert " ".join([panel["title"], *panel["notes"]]) == face(axes)
    assert any("search incomplete: " in note for note in panel["notes"])
    assert (panel["yscale"], tuple(panel["ylim"])) == ("log", axes.get_ylim())
    assert panel["xlim"] == [1, 3]
    low, high = panel["ylim"]
    assert panel["yticks"]
    assert all(low <= place <= high and float(words) == place for place, words in panel["yticks"])


def test_authors_curves_are_grouped_with_ours_by_setting(store: Store) -> None:
    fill(store, "mnist", plausible)
    left, right = shown(figure3.figure3(evidence_of(store)))
    assert [(series["group"], series["whose"]) for series in left["series"]] == [
        ("σ = 1", "ours"),
        ("σ = 100", "ours"),
        ("σ = 1", "authors"),
        ("σ = 100", "authors"),
    ]
    assert all(series["runs"] for series in left["series"] if series["whose"] == "ours")
    for series in (*left["series"], *right["series"]):
        if series["whose"] == "authors":
            assert series["dash"] == "dashed"
            assert not series["runs"]
            assert "low" not in series


def test_figure_without_runs_keeps_paper_target_line(store: Store) -> None:
    empty = figure9.figure9(evidence_of(store, "imagenet"))
    left, right = shown(empty)
    assert left["series"] == right["series"] == []
    assert right["rule"]["at"] == 23.7
    assert "rule" not in left
    assert any("missing" in note for note in right["notes"])


@pytest.mark.slow
def test_figure_data_is_available_for_every_catalogue_figure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)
    write_classifier(store, cells_of("ablation")["cifar10_vgg11 nero True True"], 0.02, 0, 0.1)
    for name in catalogue.CATALOGUE:
        evidence = catalogue.gather(name, store)
        for figure in catalogue.make_figures(evidence).values():
            for panel in shown(figure):
                assert panel["title"]
                assert len(panel["xlim"]) == len(panel["ylim"]) == 2


@given(st.lists(st.floats() | st.floats(-1e3, 1e3), max_size=20))
def test_numbers_are_rounded_to_six_digits(values: list[float]) -> None:
    for found, value in zip(page_data.numbers(np.array(values, dtype=np.float64)), values, strict=True):
        if not math.isfinite(value):
            assert found is None
        else:
            assert found == float(f"{found:.6g}")
            assert found == pytest.approx(value, rel=5.1e-6, abs=1e-300)


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500, 12_345])
def test_long_curves_are_thinned_but_keep_end_points(count: int) -> None:
    kept = page_data.thinned(count)
    assert len(kept) <= page_data.MOST_POINTS + 1
    assert len(kept) == count or count > page_data.MOST_POINTS
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
        assert set(np.diff(kept)[:-1]) <= {-(-count // page_data.MOST_POINTS)}
