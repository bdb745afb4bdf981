"""Tests of the generated part of the README: it matches the committed runs, and nothing else is changed."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from nero.report import assembly, catalogue
from nero.report.assembly import BEGIN, END, NoPlaceError, Report, replaced
from nero.report.units import number
from nero.runs.store import Store
from support.fake_runs import ERROR, cells_of, fill, loaded, plausible, write_run
from support.markdown_rows import markdown_rows

TEXT = (ROOT / "README.md").read_text()


def made(store: Store, *names: str) -> str:
    report = Report([catalogue.gather(name, store) for name in names], store, Path("out"))
    return report.readme(f"before\n{BEGIN}\nold\n{END}\nafter\n")


@pytest.fixture(autouse=True)
def _experiments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)


def test_readme_is_up_to_date_with_committed_runs() -> None:
    store = Store(ROOT / "results" / "runs")
    report = Report([catalogue.gather(name, store) for name in catalogue.CATALOGUE], store, ROOT / "results")
    assert report.readme(TEXT) == TEXT, "run `make report` and commit what it writes"


def test_readme_values_match_committed_table() -> None:
    """Compares the two committed files directly, without generating either of them."""
    whole = [row for row in markdown_rows((ROOT / "results" / "tables" / "table1.md").read_text()) if row[2] == "ours"]
    part = TEXT.partition(BEGIN)[2].partition(END)[0]
    shown = [row for row in markdown_rows(part) if row[2] == "ours"]
    assert len(shown) == len(whole) == 6
    for short, long in zip(shown, whole, strict=True):
        assert short[:2] == long[:2]
        assert [words.split(" (")[0] for words in short[3:]] == [words.split(" (")[0] for words in long[3:]]


def test_only_generated_part_changes(store: Store) -> None:
    text = made(store, "table1")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert replaced(text, "x") == replaced(replaced(text, "y"), "x")


@pytest.mark.parametrize("text", ["", "no place", f"{BEGIN} and no end", f"{END} before {BEGIN}"])
def test_readme_without_markers_raises(text: str) -> None:
    with pytest.raises(NoPlaceError, match="no place for the results"):
        replaced(text, "anything")


def test_rows_show_our_value_with_seed_count_above_paper_value(store: Store) -> None:
    cell = cells_of("table1")["cifar10_vgg11 nero"]
    for seed, final in enumerate((0.11, 0.12)):
        write_run(store, cell, 0.01, seed, final, metric=ERROR)
    rows = markdown_rows(made(store, "table1"))
    place = next(number for number, row in enumerate(rows) if row[0] == "`cifar10_vgg11`")
    ours, theirs, verdicts = rows[place : place + 3]
    assert ours[:4] == ["`cifar10_vgg11`", "top-1 error (%) ↓", "ours", f"{number(11.5)} ± {number(0.5)} (n = 2)"]
    assert theirs[2:4] == ["paper", "**11.16 ± 0.17**"]
    assert verdicts[2] == "verdict"
    assert re.fullmatch(r"agrees: \+0\.34 \[-\d+\.\d\d, \+\d+\.\d\d\] \(preliminary, n = 2\)", verdicts[3])
    assert ours[4] == "missing"


def test_findings_of_each_row_are_listed_below_table(store: Store) -> None:
    text = made(store, "table1")
    found = [line for line in text.splitlines() if line.startswith("- `")]
    assert len(found) == 6
    assert found[0] == "- `cifar10_cgan`: Ranking not known yet: runs are missing. No search is complete."


def test_run_counts_exclude_duplicates_and_give_total(store: Store) -> None:
    assert "`mnist` 0 of 32; `table1` 0 of 168." in made(store, "mnist", "table1")
    fill(store, "mnist", plausible)
    count = len(store.runs())
    assert f"`mnist` {count} of {count};" in made(store, "mnist", "table1"), "two cells may share a run"
    for seed in range(2):
        write_run(store, cells_of("table1")["cifar10_vgg11 nero"], 0.01, seed, 0.1, metric=ERROR)
    assert "`table1` 2 of 168." in made(store, "mnist", "table1"), "a repeat that is in before its search has ended"


def test_shown_figures_are_committed() -> None:
    figures = {name for contents in catalogue.CATALOGUE.values() for name in contents.figures}
    assert assembly.HIGHLIGHTS.keys() <= figures
    shown = re.findall(r"\(results/figures/(\w+)\.png\)", TEXT)
    assert shown
    for name in shown:
        assert (ROOT / "results" / "figures" / f"{name}.png").is_file()
    assert assembly.README_TABLE in catalogue.CATALOGUE


def test_figure_is_shown_once_it_has_a_run(store: Store) -> None:
    assert "![" not in made(store, "mnist", "table1")
    write_run(store, cells_of("table1")["cifar10_resnet18 sgd"], 0.1, 0, 0.1, metric=ERROR)
    assert re.findall(r"figures/(\w+)\.png", made(store, "mnist", "table1")) == ["figure5"]
