"""Tests of the theory tables and figures: values match the records, and missing measurements are reported."""

import csv
import io
import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.report import cells, files
from nero.report.figures import style
from nero.report.tables.latex import to_latex
from nero.report.tables.sheets import EMBEDDED, Printed, to_markdown
from nero.report.theory.bound import bound_figure, error_text
from nero.report.theory.evidence import gather, precision_text
from nero.report.theory.layers import activations_figure
from nero.report.theory.panels import SignedPowers
from nero.report.theory.report import FIGURES, make, make_figures, make_tables, theory_files, theory_texts
from nero.report.theory.robustness import robustness_figure
from nero.report.theory.steps import steps_figure, steps_table, trust_figure
from nero.report.theory.tables import short, span
from support import theory_records as made
from support.read_figures import bands, face, labels, lines

SHALLOW = "depth = 5"
MLP = "MNIST MLP"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_all(tmp_path_factory.mktemp("results") / "theory", made.some_networks(), made.some_steps())


@pytest.fixture(scope="module")
def tables(folder: Path) -> dict[str, Printed]:
    return {printed.name: printed for printed in make_tables(folder)}


@pytest.fixture(scope="module")
def figures(folder: Path) -> dict[str, Figure]:
    return make_figures(folder)


def panel(figure: Figure, title: str) -> Axes:
    """The only panel whose title begins with `title`."""
    [axes] = [axes for axes in figure.axes if face(axes).startswith(title)]
    return axes


def record(table: Printed, **what: str) -> dict[str, str]:
    """The only CSV record with these values."""
    [found] = [dict(line) for line in table.records if what.items() <= line.items()]
    return found


def shown(table: Printed) -> list[dict[str, str]]:
    """Rows of the sheet as text by column head; an empty task cell takes the task of the row above."""
    found: list[dict[str, str]] = []
    for block in table.sheet.blocks:
        for line in block:
            words = [f"{text.code}{text.value}" + (f" ({text.detail})" if text.detail else "") for text in line]
            found.append(dict(zip(table.sheet.heads, words, strict=True)))
            if not words[0]:
                found[-1]["task"] = found[-2]["task"]
    return found


def shown_line(table: Printed, task: str, optimiser: str, **what: str) -> dict[str, str]:
    [found] = [
        line
        for line in shown(table)
        if line["task"] == task and line["optimiser"].startswith(optimiser) and what.items() <= line.items()
    ]
    return found


# ------------------------------------------------------------------------------------------------------ evidence


def test_records_are_grouped_by_settings_differing_from_task_config(folder: Path) -> None:
    found = gather(folder)
    rows = [cells.row_text(group.row) for group in found.networks]
    assert list(dict.fromkeys(rows)) == ["CIFAR-10 cGAN", MLP, f"{MLP}, depth = 5", "spirals"]
    assert [group.optim for group in found.networks if group.variant] == ["nero", "sgd", "adam"]
    [nero] = [group for group in found.networks if group.variant and group.optim == "nero"]
    assert nero.seeds == "0 1 2"


def test_old_record_without_a_key_gets_its_legacy_default(tmp_path: Path) -> None:
    for came_later in ({}, {"fan_out": True, "stem_relu": False}):
        record = made.network_record(task="cifar10_resnet18", settings={"network": {"width": 64, **came_later}})
        [group] = gather(made.write_all(tmp_path / str(len(came_later)), [record])).networks
        assert group.variant == (() if came_later else (("network.fan_out", False), ("network.stem_relu", True)))


def test_nested_settings_have_short_names(tmp_path: Path) -> None:
    schedule = {"_target_": "nero.engine.schedules.steps", "gamma": 0.9, "milestones": [1, 2]}
    record = made.network_record(settings={"schedule": schedule})
    [group] = gather(made.write_all(tmp_path, [record])).networks
    assert cells.row_text(group.row) == f"{MLP}, schedule = steps, milestones = [1, 2]"


def test_task_without_config_is_grouped_by_differing_settings(tmp_path: Path) -> None:
    records = [made.network_record(task="spirals", seed=seed, settings={"arms": seed, "turns": 3}) for seed in (0, 1)]
    rows = [cells.row_text(group.row) for group in gather(made.write_all(tmp_path, records)).networks]
    assert rows == ["spirals, arms = 0", "spirals, arms = 1"]


def test_records_are_grouped_by_precision_where_it_differs(tmp_path: Path) -> None:
    records = [made.network_record(seed=0), {**made.network_record(seed=1), "precision": "bf16"}]
    groups = gather(made.write_all(tmp_path, records)).networks
    assert [group.variant for group in groups] == [(("precision", "bf16"),), (("precision", "tf32"),)]
    steps = [{**made.step_record(), "precision": "fp32"}]
    [group] = gather(made.write_all(tmp_path / "other", records[:1], steps)).steps
    assert group.variant == (), "steps are measured in float32 and stand in tables of their own"


def test_precision_text_separates_names_containing_commas(tmp_path: Path) -> None:
    records = [made.network_record(task="spirals", seed=seed, settings={"arms": seed}) for seed in (0, 1)]
    records.append(made.network_record() | {"precision": "bf16"})
    groups = gather(made.write_all(tmp_path, records)).networks
    assert precision_text(groups) == f"Trained in bf16 ({MLP}), TF32 (spirals, arms = 0; spirals, arms = 1)."


def test_mixing_embedded_and_real_data_raises(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path, [made.network_record()], [made.step_record("adam", data="embedded")])
    with pytest.raises(cells.EmbeddedDataError, match=r"adam.* is of embedded data and .*nero.* of real"):
        make(folder)


def test_embedded_data_is_stated_in_every_table_and_figure(tmp_path: Path) -> None:
    network = made.network_record(data="embedded", robust=made.robustness(), with_activations=False)
    printed, figures = make(made.write_all(tmp_path, [network], made.some_steps("embedded")[:1]))
    for table in printed:
        assert table.warning == EMBEDDED
        assert f"**{EMBEDDED}**" in to_markdown(table)
        assert EMBEDDED.split(":")[0] in to_latex(table)
        assert all(line["data"] == "embedded" for line in table.records)
    assert all("Embedded data, not the paper's" in str(figure.get_suptitle()) for figure in figures.values())


@pytest.mark.slow
def test_real_data_gives_no_warning(tables: dict[str, Printed], figures: dict[str, Figure]) -> None:
    assert not any(table.warning for table in tables.values())
    assert not any("mbedded" in str(figure.get_suptitle()) for figure in figures.values())


@pytest.mark.parametrize("kind", ["networks", "steps"])
def test_without_records_tables_and_figures_show_how_to_make_them(tmp_path: Path, kind: str) -> None:
    printed, figures = make(tmp_path / "nothing")
    assert all("`make theory`" in table.notes for table in printed)
    assert any(f"no record under {kind}" in table.notes for table in printed)
    for figure in figures.values():
        [axes] = figure.axes
        assert "`make theory`" in face(axes)
        assert not axes.lines
    assert files.table_files(printed[0], "../runs")


# -------------------------------------------------------------------------------------------------------- tables


def test_balance_statistics_cover_layers_of_all_seeds(tables: dict[str, Printed]) -> None:
    table = tables["theory_balance"]
    found = record(table, task=made.MLP, variant=SHALLOW, optim="nero")
    assert (found["layers_end"], found["balanced_end"], found["seeds"]) == ("9", "9", "0 1 2")
    found = record(table, task=made.MLP, variant=SHALLOW, optim="sgd")
    assert (found["layers_end"], found["balanced_end"]) == ("3", "0")
    assert [float(found[f"norm_end{which}"]) for which in ("", "_least", "_most")] == [2.5, 1.5, 3.5]
    assert float(found["norm_end_of_any_neuron"]) == pytest.approx(3.5 * 1.2)
    assert float(found["imbalance_end"]) == pytest.approx(0.2)
    assert float(found["norm_start"]) == 0.58
    line = shown_line(table, f"{MLP}, depth = 5", "SGD")
    assert line["norm, end"] == "2.50 (1.50 to 3.50)"
    assert line["balanced layers, end"] == "0.0 % (0 of 3)"
    assert shown_line(table, f"{MLP}, depth = 5", "Nero")["norm, end"] == "1.00", "no range of one value"


def test_each_network_of_a_gan_has_a_row(tables: dict[str, Printed]) -> None:
    found = [line["network"] for line in shown(tables["theory_balance"]) if line["task"] == "CIFAR-10 cGAN"]
    assert found == ["generator", "discriminator"]


def test_robustness_shows_mean_and_range_over_seeds(tables: dict[str, Printed]) -> None:
    table = tables["theory_robustness"]
    found = record(table, variant=SHALLOW, optim="nero")
    angles = [0.05, 0.06, 0.07]
    assert float(found["random_angle"]) == pytest.approx(statistics.fmean(angles))
    assert (float(found["random_angle_least"]), float(found["random_angle_most"])) == (0.05, 0.07)
    assert float(found["held_out_mean"]) == pytest.approx(0.982)
    line = shown_line(table, f"{MLP}, depth = 5", "Nero")
    assert line["random angle (radians)"] == "0.0600 (0.0500 to 0.0700)"
    assert line["on held-out examples"] == "98.20 % test accuracy (98.00 to 98.40)"
    assert (line["seeds"], line["training errors"], line["of examples"]) == ("3", "0", "60,000")


def test_missing_angles_are_reported(tables: dict[str, Printed]) -> None:
    table = tables["theory_robustness"]
    adam = shown_line(table, f"{MLP}, depth = 5", "Adam")
    assert adam["random angle (radians)"] == "none found"
    assert adam["adversarial angle, from above (radians)"] == "none up to a right angle"
    assert shown_line(table, MLP, "Nero")["certified angle, from below (radians)"] == "not measured"
    assert f"Not measured: CIFAR-10 cGAN (Nero); {MLP} (LAMB)" in table.notes
    assert "with 95 % confidence, at least 95 % of the rotations" in table.notes


def test_bound_matches_formula_of_the_paper(tables: dict[str, Printed]) -> None:
    """For m neurons of fan-in d, Ball's bound gives -ln P[V_S] = m ln 2 + m (d - 2) ln(1 / sin(angle / 2))."""
    table = tables["theory_bound"]
    found = record(table, variant=SHALLOW, optim="nero", seeds="1", kind="adversarial")
    m, d, n, angle = 784 + 784 + 10, 784, 60_000, 0.004
    assert (found["neurons"], found["parameters"], found["examples"]) == (str(m), str(m * d), str(n))
    log_measure = -m * math.log(2) + m * (d - 2) * math.log(math.sin(angle / 2))
    nats = (-log_measure + math.log(2 * n / 0.05)) / (n - 1)
    assert float(found["log_measure_ball"]) == pytest.approx(log_measure, rel=1e-9)
    assert float(found["nats_ball"]) == pytest.approx(nats, rel=1e-9)
    assert float(found["log_measure_exact"]) > log_measure
    needed = float(found["log_solutions_needed"])
    enough = (-float(found["log_measure_exact"]) - needed + math.log(2 * n / 0.05)) / (n - 1)
    assert -math.expm1(-enough) == pytest.approx(0.1)
    assert float(found["log_solutions_needed_per_parameter"]) == pytest.approx(needed / (m * d))
    assert (found["verdict"], found["probability"]) == ("vacuous", "0.95")


def test_random_draws_reduce_measure_and_confidence(tables: dict[str, Printed]) -> None:
    found = record(tables["theory_bound"], variant=SHALLOW, optim="nero", seeds="0", kind="random")
    m, d, angle = 784 + 784 + 10, 784, 0.05
    caps = -m * math.log(2) + m * (d - 2) * math.log(math.sin(angle / 2))
    assert float(found["log_measure_ball"]) - caps == pytest.approx(math.log(0.95), abs=1e-2), "in ten digits"
    assert float(found["probability"]) == pytest.approx(0.9)


def test_vacuous_bound_is_labelled_and_other_is_a_percentage(tables: dict[str, Printed]) -> None:
    table = tables["theory_bound"]
    lines = shown(table)
    nero = [line for line in lines if line["task"] == f"{MLP}, depth = 5"]
    assert nero[0]["error at most"].startswith("vacuous (1 - 10^-")
    spirals = [line for line in lines if line["task"] == "spirals"]
    assert all(line["error at most"].endswith("%)") and "vacuous" not in line["error at most"] for line in spirals)
    assert record(table, task="spirals", kind="random")["verdict"] == "bounds the error"
    uncertified = [line["angle (radians)"].partition(":")[0] for line in lines if line["task"] == MLP]
    assert uncertified == ["adversarial", "random"], "a line less where nothing was certified"


def test_theorem_does_not_apply_with_training_errors(tables: dict[str, Printed]) -> None:
    table = tables["theory_bound"]
    lines = shown(table)
    [start] = [place for place, line in enumerate(lines) if line["optimiser"].startswith("SGD")]
    angles = [line["angle (radians)"] for line in lines[start : start + 3]]
    assert angles == ["certified: 1.00e-6", "adversarial: 0.00200", "random: 0.0500"]
    for line in lines[start : start + 3]:
        assert line["error at most"] == line["ln P[V_S]"] == "does not apply (3 errors)"
    found = record(table, optim="sgd", kind="random")
    assert (found["verdict"], found["nats_exact"], found["angle"]) == ("does not apply", "", "0.05")
    assert "no zero-error solution" in table.notes


def test_parameters_outside_the_prior_are_reported(tables: dict[str, Printed]) -> None:
    notes = tables["theory_bound"].notes
    assert f"biases ({MLP}, depth = 5: Nero, SGD, Adam; spirals: shampoo)" in notes
    assert "no guarantee" in notes


def test_no_caveats_if_prior_covers_all_parameters(tmp_path: Path) -> None:
    record = made.network_record(robust=made.robustness(beyond=()))
    table = make_tables(made.write_all(tmp_path, [record]))[-1]
    assert table.name == "theory_bound"
    assert "no guarantee" not in table.notes
    assert "no zero-error solution" not in table.notes


@pytest.mark.parametrize(("nats", "words"), [(0.1, "9.52 %"), (6.0, "99.8 %"), (200.0, "1 - 10^-87"), (math.inf, "1")])
def test_error_close_to_one_is_written_as_power_of_ten(nats: float, words: str) -> None:
    assert error_text(nats) == words


def test_step_statistics_cover_seeds_and_layers(tables: dict[str, Printed]) -> None:
    table = tables["theory_steps"]
    found = record(table, task=made.MLP, optim="nero")
    assert [found[key] for key in ("steps", "stable", "stable_of", "lowered")] == ["8", "6", "8", "6"]
    assert (found["within_trust"], found["within_trust_of"]) == ("16", "24"), "the third layer's gradients change more"
    steps = [(0.01 * 0.9**number, 1 + 0.1 * place) for number in range(4) for place in range(3)] * 2
    assert float(found["relative_step"]) == pytest.approx(statistics.median(lr * factor for lr, factor in steps))
    assert float(found["relative_step_95"]) == pytest.approx(np.quantile([lr * factor for lr, factor in steps], 0.95))
    assert float(found["relative_step_over_lr"]) == pytest.approx(1.1)
    assert float(found["angle_over_lr"]) == pytest.approx(0.99)
    adam = record(table, task=made.MLP, optim="adam")
    assert float(adam["angle_over_lr"]) == pytest.approx(7 * 0.99)


def test_non_finite_gradient_or_loss_does_not_count_as_success(tmp_path: Path) -> None:
    record = made.step_record(steps=3)
    last, lost = record["steps"][1:]
    last["layers"][0]["gradient_change"] = math.inf
    lost["loss_after"] = math.nan
    for layer in lost["layers"]:
        layer |= {"gradient_change": None, "cosine": None, "relative_step": None, "angles": made.q(None)}
        layer["neuron_steps"] = made.q(None)
    lost["trust"] = math.inf
    evidence = gather(made.write_all(tmp_path, steps=[record]))
    [found] = steps_table(evidence).records
    assert (found["lowered"], found["lowered_of"]) == ("2", "3")
    assert (found["within_trust"], found["within_trust_of"]) == ("3", "6")
    assert files.figure_files({"theory_trust": trust_figure(evidence), "theory_steps": steps_figure(evidence)})


# ------------------------------------------------------------------------------------------------------- figures


def test_figures_have_panels_for_each_task(figures: dict[str, Figure]) -> None:
    counts = {name: len(figure.axes) for name, figure in figures.items()}
    assert counts == {
        "theory_balance_cifar10_cgan": 4,  # two per network
        "theory_balance_mnist_mlp100": 4,  # two per depth
        "theory_balance_spirals": 2,
        "theory_activations_mnist_mlp100": 8,  # four per depth
        "theory_activations_spirals": 4,
        "theory_trust": 3,
        "theory_steps": 3,
        "theory_robustness": 3,
        "theory_bound": 3,
    }
    assert list(counts)[-len(FIGURES) :] == list(FIGURES), "those of all tasks come last, in their order"


def test_layer_balance_is_drawn_with_spread(figures: dict[str, Figure]) -> None:
    panels = {face(axes): axes for axes in figures["theory_balance_mnist_mlp100"].axes[::2]}
    axes = panels[f"{MLP}, depth = 5"]
    assert lines(axes)["SGD"][:, 1].tolist() == [1.5, 2.5, 3.5]
    assert lines(axes, ":")["SGD"][:, 1].tolist() == [0.58] * 3
    low, high = (pytest.approx(factor * 3.5) for factor in (0.9, 1.1))
    assert any([band[band[:, 0] == 3, 1].min(), band[band[:, 0] == 3, 1].max()] == [low, high] for band in bands(axes))


def test_activations_are_drawn_with_predictions(figures: dict[str, Figure]) -> None:
    figure = figures["theory_activations_mnist_mlp100"]
    axes = next(axes for axes in figure.axes if face(axes) == f"Variance, end: {MLP}")
    assert lines(axes)["Nero"][:, 1].tolist() == pytest.approx([1.5**place for place in range(6)])
    assert lines(axes, ":")["Nero"][:, 1].tolist() == pytest.approx([0.5**place for place in range(6)])
    assert figure.get_supxlabel().startswith(f"Not measured: {MLP} (LAMB).")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (-1.5, 20.0, [-1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10]),
        (-2e33, 3e20, [-1e33, -1e25, -1e17, -1e9, 0, 1e9, 1e17]),
        (0.0, 0.001, [0]),
    ],
)
def test_signed_powers_gives_few_ticks_for_any_range(low: float, high: float, ticks: list[float]) -> None:
    assert SignedPowers(0.01).tick_values(low, high) == pytest.approx(ticks)


def test_epochs_of_unfinished_training_are_rounded(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path, [made.network_record() | {"epochs_done": 94.327, "epochs": 120}])
    [group] = gather(folder).networks
    assert group.epochs == "94.3 of 120"


def test_trust_is_plotted_against_step(figures: dict[str, Figure]) -> None:
    axes = panel(figures["theory_trust"], "Adam")
    assert axes.get_xscale() == axes.get_yscale() == "log"
    [trust] = lines(axes, "--").values()
    assert trust[:, 0].tolist() == [2, 11, 101, 1001], "counted from 1"
    assert trust[0, 1] == pytest.approx(1.007**3 - 1, rel=1e-5)
    assert "not drawn: 4 of 12 cosines" in face(axes)


def test_by_step_groups_measurements_of_several_seeds(figures: dict[str, Figure]) -> None:
    drawn = lines(panel(figures["theory_trust"], "Nero"), "--").values()
    assert [line[:, 0].tolist() for line in drawn] == [[2, 11, 101, 1001]]


def test_learning_rate_is_a_dashed_line(figures: dict[str, Figure]) -> None:
    axes = panel(figures["theory_steps"], "Adam")
    assert lines(axes, "--")["learning rate"][:, 1].tolist() == pytest.approx([0.001 * 0.9**n for n in range(4)])
    assert lines(axes)["turning angle (radians)"][0, 1] == pytest.approx(0.007 * 0.99)


def test_angles_are_marked_in_robustness_figure(figures: dict[str, Figure]) -> None:
    axes = panel(figures["theory_robustness"], f"{MLP}, depth = 5")
    marks: dict[Any, list[float]] = {}
    for line in axes.lines:
        if len(line.get_xdata()) == 1:
            marks.setdefault(line.get_marker(), []).append(float(line.get_xdata()[0]))
    assert sorted(marks["o"]) == pytest.approx([0.05, 0.05, 0.06, 0.07])
    assert sorted(marks["<"]) == [0.002, 0.004, 0.004, 0.004]
    assert "no random angle: Adam" in face(axes)
    assert "training errors (fitted examples alone): SGD 3" in face(axes)


def test_bound_decreases_with_angle_and_is_unmarked_if_inapplicable(figures: dict[str, Figure]) -> None:
    axes = panel(figures["theory_bound"], f"{MLP}, depth = 5")
    drawn = [line for line in axes.lines if len(line.get_xdata()) > 10]
    assert len(drawn) == 2, "all have the same spheres"
    exact, ball = (line.get_ydata() for line in drawn)
    assert all(low <= high for low, high in zip(exact, ball, strict=True))
    assert all(before >= after for before, after in itertools.pairwise(exact))
    marked = [line.get_color() for line in axes.lines if len(line.get_xdata()) == 1]
    assert style.COLOURS["sgd"] not in marked
    assert "training errors (the theorem does not apply): SGD 3" in face(axes)
    assert "guessing among 10 classes" in labels(axes)


def test_angle_too_small_to_draw_is_reported(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path, [made.network_record(robust=made.robustness(certified=3e-25))])
    for figure in (robustness_figure, bound_figure):
        [axes] = figure(gather(folder)).axes
        assert "not drawn, certified angle: Nero 3.00e-25" in face(axes)


def test_unmeasured_networks_are_reported_in_figures(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path, [made.network_record(with_activations=False)])
    for figure in (activations_figure, robustness_figure, bound_figure):
        [axes] = figure(gather(folder)).axes
        assert f"Not measured: {MLP} (Nero)." in face(axes)


def test_two_learning_rates_of_an_optimiser_have_different_colours(tmp_path: Path) -> None:
    records = [made.network_record(lr=lr, robust=made.robustness()) for lr in (0.01, 0.1)]
    [axes] = robustness_figure(gather(made.write_all(tmp_path, records))).axes
    drawn = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert [line.get_label() for line in drawn] == ["Nero, η = 0.01, n = 1", "Nero, η = 0.1, n = 1"]
    assert len({line.get_color() for line in drawn}) == 2


def test_networks_without_fitted_examples_are_reported(tmp_path: Path) -> None:
    lost = made.robustness(errors=60_000) | {"random": None, "adversarial": None, "certified": None, "curve": []}
    printed, figures = make(made.write_all(tmp_path, [made.network_record("sgd", robust=lost)]))
    assert "does not apply (60,000 errors)" in to_markdown(printed[-1])
    drawn = figures["theory_bound"], figures["theory_robustness"]
    assert all("no random angle: SGD" in face(axes) for figure in drawn for axes in figure.axes)


# --------------------------------------------------------------------------------------------------------- files


@pytest.mark.slow
def test_theory_output_is_reproducible(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path / "theory", made.some_networks()[:4], made.some_steps()[:3])
    found = theory_files(folder)
    names = {"theory_balance", "theory_robustness", "theory_bound", "theory_steps"}
    assert {path.stem for path in found if path.parts[0] == "tables"} == names
    assert {path.suffix for path in found} == {".md", ".csv", ".tex", ".pdf", ".svg", ".png"}
    files.write(found, tmp_path / "out")
    assert files.differences(theory_files(folder), tmp_path / "out") == []


def test_theory_texts_are_valid_reproducible_table_files(folder: Path) -> None:
    texts = theory_texts(folder)
    assert len(texts) == 12
    assert texts == theory_texts(folder)
    for path, data in texts.items():
        if path.suffix == ".csv":
            lines = list(csv.DictReader(io.StringIO(data.decode())))
            assert lines
            assert all(None not in line for line in lines), "all lines have the same columns"
        if path.suffix == ".tex":
            assert data.isascii(), "signs beyond that would need further packages"


def test_only_runs_in_store_are_linked(tmp_path: Path) -> None:
    folder = made.write_all(tmp_path / "theory", made.some_networks(), made.some_steps())
    run_id = made.some_networks()[0]["run_id"]
    (folder.parent / "runs" / made.MLP / run_id).mkdir(parents=True)
    texts = {path.name: data.decode() for path, data in theory_texts(folder).items()}
    for name in ("theory_balance.md", "theory_robustness.md", "theory_bound.md"):
        assert texts[name].count("](../runs/") == texts[name].count(f"](../runs/{made.MLP}/{run_id})") == 1
    assert "](" not in texts["theory_steps.md"]


def test_every_row_has_one_cell_per_unique_head(tables: dict[str, Printed]) -> None:
    for table in tables.values():
        assert len(set(table.sheet.heads)) == len(table.sheet.heads)
        for block in table.sheet.blocks:
            assert all(len(line) == len(table.sheet.heads) for line in block)


# ------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ""),
        (0.0, "0"),
        (1.0, "1.00"),
        (0.0123456, "0.0123"),
        (1.23456e-5, "1.23e-5"),
        (999.96, "1,000"),
        (123456.7, "123,457"),
        (-6.8234e6, "-6.82e6"),
        (345.6, "346"),
    ],
)
def test_short_formats_numbers_with_three_digits(value: float | None, words: str) -> None:
    assert short(value) == words


def test_a_range_of_numbers_that_look_the_same_is_none() -> None:
    assert (span(pd.Series([1.0, 1.0000001])), span(pd.Series([1.0, 2.0]))) == ("", "1.00 to 2.00")
