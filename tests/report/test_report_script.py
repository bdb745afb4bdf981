"""Tests of scripts/report.py on stores of synthetic runs."""

import os
import re
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nero.plans.config import ROOT
from nero.report import catalogue, files
from nero.report.assembly import Report
from nero.report.tables.sheets import for_terminal
from nero.runs.store import Store
from support.fake_runs import cells_of, fill, loaded, plausible, write_run

Run = Callable[..., int]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def report(store: Store, out: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)
    main = runpy.run_path(str(ROOT / "scripts" / "report.py"))["main"]
    return lambda *words: main(["report", *words, "--store", str(store.root), "--out", str(out)])


@pytest.fixture
def committed(store: Store, out: Path, report: Run) -> None:
    """Write the tables of an empty store, which `--check` accepts although every cell is missing."""
    made = Report([catalogue.gather(name, store) for name in catalogue.CATALOGUE], store, out)
    for evidence in made.experiments:
        files.write(made.texts(evidence), out)
    files.write(made.overview_texts(), out)


def written(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


MNIST_FILES = {f"tables/mnist.{ending}" for ending in ("md", "csv", "tex")} | {
    *(f"figures/figure3.{ending}" for ending in ("pdf", "svg", "png")),
    "tables/figure3.md",
}
TABLE1_FILES = {f"tables/table1.{ending}" for ending in ("md", "csv", "tex")} | {
    *(f"figures/figure{name}.{ending}" for name in ("4", "4_samples", 5, 6, 7) for ending in ("pdf", "svg", "png")),
    *(f"figures/learning_rates.{ending}" for ending in ("pdf", "svg", "png")),
    *("tables/figure4.md", "tables/figure6.md", "tables/figure7.md"),
}
PONG_FILES = {f"tables/pong.{ending}" for ending in ("md", "csv", "tex")} | {
    *(f"figures/figure8.{ending}" for ending in ("pdf", "svg", "png")),
    "tables/figure8.md",
}
IMAGENET_FILES = {f"tables/imagenet.{ending}" for ending in ("md", "csv", "tex")} | {
    *(f"figures/figure9.{ending}" for ending in ("pdf", "svg", "png")),
    "tables/figure9.md",
}
ABLATION_FILES = {f"tables/ablation.{ending}" for ending in ("md", "csv", "tex")} | {
    f"figures/figure{number}.{ending}" for number in (1, 2) for ending in ("pdf", "svg", "png")
}
OVERVIEWS = {
    *(f"tables/{name}.{ending}" for name in ("sensitivity", "costs") for ending in ("md", "csv", "tex")),
    *("tables/costs_of_runs.csv", "report.html"),
}
CHECKS_FILES = {f"tables/checks.{ending}" for ending in ("md", "csv", "tex")} | {
    f"figures/checks.{ending}" for ending in ("pdf", "svg", "png")
}
MODERN_FILES = {f"tables/modern.{ending}" for ending in ("md", "csv", "tex")} | {
    f"figures/{name}.{ending}" for name in ("modern", "modern_sensitivity") for ending in ("pdf", "svg", "png")
}
PIPELINE_FILES = {f"tables/pipeline.{ending}" for ending in ("md", "csv", "tex")} | {
    f"figures/pipeline.{ending}" for ending in ("pdf", "svg", "png")
}


@pytest.mark.slow
def test_complete_experiment_exits_0_and_prints_tables(
    report: Run, store: Store, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, "mnist", plausible)
    assert report("mnist") == 0
    assert written(out) == MNIST_FILES
    said = capsys.readouterr().out
    text = (out / "tables" / "mnist.md").read_text()
    assert for_terminal(text) in said
    assert "ranking" in said.lower(), "the notes are there"
    assert "](../" in text
    assert "](" not in said, "a terminal has no links"
    assert (out / "tables" / "figure3.md").read_text() in said
    assert "missing:" not in said


def test_diverged_runs_count_as_results(report: Run, store: Store) -> None:
    fill(store, "mnist", lambda cell, lr, seed: None if cell.optim == "sgd" else plausible(cell, lr, seed))
    assert report("mnist") == 0


@pytest.mark.slow
def test_missing_cells_exit_1_after_all_files_are_written(
    report: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report() == 1
    paper = (MNIST_FILES, TABLE1_FILES, PONG_FILES, IMAGENET_FILES, ABLATION_FILES)
    every = (*paper, CHECKS_FILES, MODERN_FILES, PIPELINE_FILES)
    assert written(out) == set().union(*every, OVERVIEWS)
    streams = capsys.readouterr()
    assert not streams.err
    said = streams.out
    assert "mnist: mnist_reparam, sigma = 100, adam: seeds 0, 1, 2 missing" in said
    assert "mnist: mnist_mlp100, nero, sgd, adam, lamb: search incomplete: 0 of 4 rates" in said
    assert "table1: cifar10_resnet18, nero, sgd, adam, lamb: search incomplete: 0 of 5 rates" in said
    assert "pong: pong_ppo, nero, sgd, adam, lamb: search incomplete: 0 of 5 rates" in said
    assert "pong: pong_ppo, lamb_momentum: seeds 0, 1, 2 missing" in said
    assert "imagenet: imagenet_resnet50, weight_decay = 0.0001, sgd: " in said
    constrained = "ablation: cifar10_vgg11, madam, madam_constrained, lamb, lamb_constrained"
    assert f"{constrained}: search incomplete: 0 of 6 rates" in said


def test_failed_runs_are_listed(report: Run, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3, status="failed")
    assert report("mnist") == 1
    assert f"mnist_mlp100, nero: search incomplete: 0 of 4 rates; failed: {run.run_id}" in capsys.readouterr().out


@pytest.mark.slow
def test_experiment_not_in_catalogue_gets_table_and_curves(
    report: Run, store: Store, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "ON_REQUEST", {})
    fill(store, "smoke", plausible, data="embedded")
    assert report("smoke") == 0
    assert written(out) == {f"tables/smoke.{ending}" for ending in ("md", "csv", "tex")} | {
        f"figures/{name}.{ending}" for name in ("smoke", "smoke_sensitivity") for ending in ("pdf", "svg", "png")
    }


@pytest.mark.slow
def test_smoke_report_includes_sample_figure(report: Run, out: Path) -> None:
    assert report("smoke") == 1, "no run is there"
    assert written(out) == {f"tables/smoke.{ending}" for ending in ("md", "csv", "tex")} | {
        f"figures/{name}.{ending}" for name in ("smoke", "samples") for ending in ("pdf", "svg", "png")
    }


@pytest.mark.slow
def test_page_option_also_writes_overview_tables(report: Run, store: Store, out: Path) -> None:
    fill(store, "smoke", plausible, data="embedded")
    assert report("smoke", "--page") == 0
    assert written(out) >= OVERVIEWS
    assert "MNIST MLP" in (out / "tables" / "sensitivity.md").read_text()
    assert "Embedded data" in (out / "tables" / "sensitivity.md").read_text()


@pytest.mark.slow
def test_table_links_to_runs_are_relative_to_the_table(report: Run, store: Store, out: Path) -> None:
    fill(store, "mnist", plausible)
    assert report("mnist") == 0
    guide, *links = re.findall(r"\]\(([^)]*)\)", (out / "tables" / "mnist.md").read_text())
    page, _, heading = guide.partition("#")
    assert f"\n## {heading.replace('-', ' ').capitalize()}\n" in (out / "tables" / page).read_text()
    assert links
    assert all((out / "tables" / link / "summary.json").is_file() for link in links)


def test_default_experiments_use_real_data() -> None:
    assert not catalogue.CATALOGUE.keys() & catalogue.ON_REQUEST.keys()
    cells = [cell for name in catalogue.CATALOGUE for cell in loaded(name).cells]
    assert not any(cell.setting("data") == "embedded" for cell in cells)


def test_errors_exit_2(report: Run, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert report("no_such_experiment") == 2
    assert "no_such_experiment" in capsys.readouterr().err
    write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3, data="embedded")
    assert report("mnist") == 2
    assert "embedded" in capsys.readouterr().err
    with pytest.raises(SystemExit) as leaving:
        report("--no-such-option")
    assert leaving.value.code == 2


@pytest.mark.usefixtures("committed")
def test_check_accepts_up_to_date_tables_and_writes_nothing(report: Run, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    time.sleep(0.01)
    assert report("--check") == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("ending", ["md", "csv", "tex"])
def test_check_detects_single_character_change(
    report: Run, out: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = out / "tables" / f"mnist.{ending}"
    text = path.read_text()
    place = text.index("0.001") + 4
    path.write_text(text[:place] + "2" + text[place + 1 :])
    assert report("mnist", "--check") == 1
    said = capsys.readouterr().err
    assert f"mnist.{ending} is out of date" in said
    assert said.count("out of date") == 1


@pytest.mark.usefixtures("committed")
def test_check_reports_missing_tables_and_ignores_figures(
    report: Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "tables" / "mnist.tex").unlink()
    assert report("mnist", "--check") == 1
    assert capsys.readouterr().err.strip() == f"{out / 'tables' / 'mnist.tex'} is missing"


@pytest.mark.usefixtures("committed")
def test_check_detects_new_runs(report: Run, store: Store) -> None:
    write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    assert report("mnist", "--check") == 1


def test_failed_write_keeps_old_file(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write({Path("tables/a.md"): b"old"}, out)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write({Path("tables/a.md"): b"new"}, out)
    assert written(out) == {"tables/a.md"}
    assert (out / "tables" / "a.md").read_bytes() == b"old"
