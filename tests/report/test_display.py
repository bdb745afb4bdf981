"""Tests that names, units and digits in the report come from the YAML files, which never changes a run's id."""

import csv
import io
from pathlib import Path

import pytest

from nero.plans.config import ConfigError, compose, names
from nero.plans.plan import load_experiment, survey
from nero.report import display, paper
from nero.report.cells import RowKey, row_as_typed, row_text
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import learning_curves
from nero.report.files import FORMATS
from nero.report.page.data import _run
from nero.report.page.sheet_html import to_html
from nero.report.tables.layout import print_table
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import to_markdown
from nero.report.tables.table import build_table
from nero.report.units import ShownMetric, number, shown_metric, signed
from nero.runs.logged import LoggedRun
from nero.runs.store import Store
from support.fake_runs import ACCURACY, ERROR, cells_of, evidence_of, fill_cell, plausible
from support.read_figures import face

REWARD = {"key": "train/reward", "goal": "max", "label": "reward"}


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for YAML files in place of configs/."""
    for group in ("optim", "task"):
        (tmp_path / group).mkdir()
    monkeypatch.setattr(display, "folders", lambda group: [tmp_path / group, tmp_path / "missing"])
    return tmp_path


def test_shipped_optimisers_have_their_names() -> None:
    shown = {optim: style.name(optim) for optim in names("optim")}
    assert shown | {"nero": "Nero", "sgd": "SGD", "lamb_momentum": "LAMB with β₁ = 0.9"} == shown
    assert len(set(shown.values())) == len(shown)


def test_name_is_read_from_the_file_and_changes_with_it(configs: Path) -> None:
    assert style.name("lion") == "lion", "no file"
    (configs / "optim" / "lion.yaml").write_text("_target_: x\n")
    assert style.name("lion") == "lion"
    (configs / "optim" / "lion.yaml").write_text("_target_: x\ndisplay_name: Lion, β₁ = 0.9\n")
    assert style.name("lion") == "Lion, β₁ = 0.9"
    assert style.name("../optim/lion") == "../optim/lion"


def test_copy_with_the_same_display_name_is_told_apart(configs: Path) -> None:
    for name in ("a_nero", "nero", "nero2"):
        (configs / "optim" / f"{name}.yaml").write_text("display_name: Nero\n")
    assert [style.name(name) for name in ("nero", "a_nero", "nero2")] == ["Nero", "Nero (a_nero)", "Nero (nero2)"]


def test_title_names_a_task_for_people_and_commands_keep_the_file_name(configs: Path) -> None:
    row = RowKey("mine", (("task.scale_embedding", True),), "a label")
    assert row_text(row) == "mine, a label, scale embedding = on", "no file"
    (configs / "task" / "mine.yaml").write_text("display: {title: My task}\n")
    (configs / "task" / "mine2.yaml").write_text("display: {title: My task}\n")
    assert row_text(row) == "My task, a label, scale embedding = on"
    assert row_as_typed(row) == "mine, a label, scale_embedding = True"
    assert display.task_name("mine2") == "My task (mine2)"


def test_every_shipped_task_has_a_title() -> None:
    titles = {task: display.task_name(task) for task in names("task")}
    assert [task for task, title in titles.items() if title == task] == []
    assert len(set(titles.values())) == len(titles)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("display_name: 3", "display_name in optim/x.yaml must be text, not 3"),
        ("display_name: ' '", "display_name in optim/x.yaml must be text, not ' '"),
        ("display_name: [", "optim/x.yaml: while parsing"),
    ],
)
def test_invalid_name_raises_one_line(configs: Path, text: str, message: str) -> None:
    (configs / "optim" / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml") as error:
        style.name("x")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("metric", "given", "shown"),
    [
        (ERROR, "", ShownMetric("top-1 error (%)", "min", 100.0, 2)),
        (REWARD, "", ShownMetric("reward", "max", 1.0, 2)),
        (ERROR, "{name: distance, unit: mm}", ShownMetric("distance (mm)", "min", 1.0, 2)),
        (ERROR, "{unit: ''}", ShownMetric("top-1 error", "min", 1.0, 2)),
        (ERROR, "{scale: 1}", ShownMetric("top-1 error (%)", "min", 1, 2)),
        (REWARD, "{unit: '%', digits: 0}", ShownMetric("reward (%)", "max", 100.0, 0)),
        (REWARD, "{unit: mV, scale: 1000, digits: 4}", ShownMetric("reward (mV)", "max", 1000, 4)),
    ],
)
def test_metric_is_shown_as_the_task_says(configs: Path, metric: dict, given: str, shown: ShownMetric) -> None:
    (configs / "task" / "mine.yaml").write_text(f"epochs: 1\ndisplay: {given}\n")
    assert shown_metric(metric, "mine") == shown
    assert shown_metric(metric, "other") == shown_metric(metric)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("5", "must be a mapping with keys of title, name, unit, scale, digits, not 5"),
        ("{digit: 5}", "there is no display in task/mine.yaml.digit; there are: title, name, unit, scale, digits"),
        ("{digits: -1}", "digits must be null or a non-negative integer, not -1"),
        ("{digits: '3'}", "digits must be null or a non-negative integer, not '3'"),
        ("{scale: 0}", "scale must be null or a positive number, not 0"),
    ],
)
def test_invalid_display_raises_one_line(configs: Path, given: str, message: str) -> None:
    (configs / "task" / "mine.yaml").write_text(f"display: {given}\n")
    with pytest.raises(ConfigError) as error:
        shown_metric(ERROR, "mine")
    assert message in str(error.value)


def test_numbers_have_the_asked_decimals() -> None:
    assert [number(0.4987, digits) for digits in (0, 2, 4)] == ["0", "0.50", "0.4987"]
    assert [signed(-0.0001, digits) for digits in (2, 4)] == ["+0.00", "-0.0001"]


def test_every_part_of_the_report_shows_name_unit_and_digits(configs: Path, store: Store) -> None:
    (configs / "optim" / "nero.yaml").write_text("display_name: The Rotator\n")
    (configs / "task" / "mnist_mlp100.yaml").write_text("display: {name: hits, unit: ppm, scale: 1000, digits: 4}\n")
    overrides = "[data=embedded, task.depth=3]"
    row = f"{{task: mnist_mlp100, optim: nero, lr: [0.001, 0.01], repeat_seeds: [1], overrides: {overrides}}}"
    (configs / "own.yaml").write_text(f"title: own\nrows: [{row}]\n")
    experiment = load_experiment("own", folder=configs)
    fill_cell(store, experiment.cells[0], plausible, data="embedded")
    summaries = store.summaries()
    evidence = Evidence(experiment, (survey(experiment.cells[0], summaries),), summaries, store)
    printed = print_table(build_table(evidence))
    for text in (to_markdown(printed), FORMATS["tex"](printed, "runs"), to_html(printed)):
        assert "The Rotator" in text
        assert "hits (ppm)" in text
        assert "905.0000" in text
        assert "5.0000" in text
    line = next(csv.DictReader(io.StringIO(FORMATS["csv"](printed, ""))))
    assert (line["metric"], line["optim"], line["mean"]) == ("hits (ppm)", "nero", "905")
    searched = to_markdown(sensitivity(evidence.states)).replace("\N{NO-BREAK SPACE}", " ")
    assert "| mnist_mlp100 | hits (ppm) ↑ | tf32 | The Rotator | " in searched
    assert "900.0000" in searched
    axes = learning_curves(evidence).axes[0]
    assert axes.get_ylabel() == "hits (ppm)"
    assert axes.lines[0].get_label().startswith("The Rotator, η = 0.001")
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(905)
    assert "The Rotator" not in face(axes)
    run = store.runs()[0]
    shown = _run(LoggedRun(run, run.read_summary() or {}))
    assert (shown["optim"], shown["metric"]) == ("The Rotator", "hits (ppm)")
    assert shown["final"] == pytest.approx(1000 * (run.read_summary() or {})["final"])


def test_papers_unit_cannot_be_changed_beside_its_numbers(configs: Path, store: Store) -> None:
    (configs / "task" / "mnist_mlp100.yaml").write_text("display: {scale: 1}\n")
    fill_cell(store, cells_of("mnist")["mnist_mlp100 nero"], plausible)
    with pytest.raises(ValueError, match="mnist_mlp100 reports 'training accuracy"):
        build_table(evidence_of(store), paper.mnist())


def test_display_is_no_part_of_a_run() -> None:
    plain = compose(["~optim.display_name"])
    named = compose(["optim.display_name=Other", "+task.display={title: Mine, name: hits, digits: 3}"])
    assert plain.run_id == named.run_id == compose([]).run_id
    assert "display_name" not in named.identity["optim"]
    assert "display" not in named.identity["task"]
    assert named.identity_at(1.0, 3) == plain.identity_at(1.0, 3)


def test_other_optimisers_have_different_colours() -> None:
    palette = style.colours([*style.COLOURS, *(f"own{place}" for place in range(8))])
    assert len(set(palette.values())) == len(palette)


def test_default_metrics_are_unchanged() -> None:
    assert shown_metric(ACCURACY, "mnist_mlp100") == ShownMetric("training accuracy (%)", "max", 100.0, 2)
