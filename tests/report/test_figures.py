"""Tests of Figure 3, learning curves and the figure style: logged data, missing runs and reproducible output."""

import io
import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nero.report import paper
from nero.report.figures import figure3 as figure3_module
from nero.report.figures import rendering, style
from nero.report.figures.curves import learning_curves
from nero.runs.store import Store
from support.fake_runs import (
    BASE,
    STEPS,
    cells_of,
    evidence_of,
    fill,
    fill_cell,
    plausible,
    write_language_model,
    write_run,
)
from support.read_figures import AUTHORS, VARIANT, band_at, bands, face, labels, lines

AUTHORS_LEFT, AUTHORS_RIGHT = 2, 4


def figure3(store: Store) -> Figure:
    return figure3_module.figure3(evidence_of(store))


def dotted(axes: Axes) -> list[str]:
    return labels(axes, VARIANT)


def dashed(axes: Axes) -> list[np.ndarray]:
    return [points[:, 1] for points in lines(axes, AUTHORS).values()]


def test_figure_3_draws_every_cell_and_authors_curves(store: Store) -> None:
    fill(store, "mnist", plausible)
    left, right = figure3(store).axes
    assert set(lines(left)) == {"σ = 1", "σ = 100"}
    assert set(lines(right)) == {"Nero", "SGD", "Adam", "LAMB"}
    assert (len(dashed(left)), len(dashed(right))) == (AUTHORS_LEFT, AUTHORS_RIGHT)
    assert not dotted(right)
    assert (len(bands(left)), len(bands(right))) == (2, 4)
    assert "missing" not in face(left) + face(right)


def test_nero_at_authors_lr_is_dotted_if_our_search_chose_another(store: Store) -> None:
    fill(store, "mnist", lambda cell, lr, seed: plausible(cell, lr, seed) + (0.15 if lr == 0.0001 else 0))
    _, right = figure3(store).axes
    assert dotted(right) == ["Nero, η = 0.001, n = 3"]
    assert len(bands(right)) == 5
    assert "missing" not in face(right)


def test_lines_are_seed_means_and_bands_are_seed_ranges(store: Store) -> None:
    fill(store, "mnist", plausible)
    _, right = figure3(store).axes
    finals = 100 * np.array([BASE["nero"] + 0.01 * seed**2 for seed in (0, 1, 2)])
    epochs, values = lines(right)["Nero"].T
    np.testing.assert_array_equal(epochs, [1, 2, 3])
    np.testing.assert_allclose(values, np.outer([1 / 3, 1 / 2, 1], finals).mean(axis=1))
    assert band_at(bands(right)[0], 3) == (pytest.approx(finals.min()), pytest.approx(finals.max()))


def test_left_panel_averages_iterations_in_blocks(store: Store) -> None:
    cell = cells_of("mnist")["mnist_reparam adam 100"]
    epochs = 5
    for seed in cell.seeds:
        write_run(store, cell, 0.01, seed, 0.5, curve=[0.1 * epoch for epoch in range(1, epochs + 1)])
    left, _ = figure3(store).axes
    at, values = lines(left)["σ = 100"].T
    iterations = np.repeat([0.1 * epoch for epoch in range(1, epochs + 1)], STEPS)
    np.testing.assert_array_equal(at, [10, 20])
    np.testing.assert_allclose(values, 100 * iterations.reshape(2, 10).mean(axis=1))


def test_authors_curves_end_at_published_values(store: Store) -> None:
    left, right = figure3(store).axes
    published = paper.mnist().results
    ends = sorted(values[-1] for values in dashed(right))
    assert ends == pytest.approx(sorted(r.mean for key, r in published.items() if key[:2] == (paper.DEEP, ())))
    assert all(len(values) == 120 for values in dashed(left))  # 1,200 iterations in blocks of 10


def test_empty_store_is_reported_and_draws_none_of_our_curves(store: Store) -> None:
    left, right = figure3(store).axes
    assert not lines(left)
    assert not lines(right)
    assert "missing: σ = 1, σ = 100 (seeds 0, 1, 2)" in face(left)
    assert "search incomplete: Nero, SGD, Adam, LAMB (0 of 4 rates)" in face(right)
    assert "missing: Nero at lr = 0.001 (seeds 0, 1, 2)" in face(right)


def test_missing_seeds_and_incomplete_searches_are_reported(store: Store) -> None:
    cells = cells_of("mnist")
    nero, sgd = cells["mnist_mlp100 nero"], cells["mnist_mlp100 sgd"]
    for lr in nero.lrs:
        write_run(store, nero, lr, 0, plausible(nero, lr, 0))
    write_run(store, sgd, 0.1, 0, 0.3)
    _, right = figure3(store).axes
    assert labels(right) == ["Nero, η = 0.001, n = 1 of 3", "SGD, η = 0.1, n = 1 of 3"]
    assert "search incomplete: SGD (1 of 4 rates); Adam, LAMB (0 of 4 rates)" in face(right)
    assert "missing: Nero (seeds 1, 2)" in face(right)


def test_all_seeds_at_leading_lr_of_incomplete_search_are_drawn(store: Store) -> None:
    nero = cells_of("mnist")["mnist_mlp100 nero"]
    for seed in nero.seeds:
        write_run(store, nero, 0.01, seed, 0.6 + 0.1 * seed)
    write_run(store, nero, 0.1, 0, 0.2)
    _, right = figure3(store).axes
    assert labels(right) == ["Nero, η = 0.01, n = 3"]
    np.testing.assert_allclose(lines(right)["Nero"][:, 1], 100 * 0.7 * np.array([1 / 3, 1 / 2, 1]))
    assert "search incomplete: Nero (2 of 4 rates); SGD, Adam, LAMB (0 of 4 rates)" in face(right)


def test_diverged_runs_are_reported_and_truncate_mean_curve(store: Store) -> None:
    def final(cell, lr, seed):
        return None if cell.optim == "sgd" or (cell.optim, seed) == ("lamb", 1) else plausible(cell, lr, seed)

    fill(store, "mnist", final)
    _, right = figure3(store).axes
    assert "missing" not in face(right)
    assert "diverged: SGD (every learning rate)" in face(right)
    assert "LAMB (seed 1)" in face(right)
    assert "SGD" not in lines(right)
    assert lines(right)["LAMB"][:, 0].tolist() == [1], "the seed that diverged has one epoch"


def test_missing_log_is_reported(store: Store) -> None:
    fill(store, "mnist", plausible)
    run = cells_of("mnist")["mnist_mlp100 nero"].run(0.001, 2)
    (store.run(run.task, run.run_id).path / "metrics.jsonl").unlink()
    _, right = figure3(store).axes
    assert "missing: Nero (no log of seed 2)" in face(right)


@pytest.mark.slow
def test_learning_curves_of_any_experiment(store: Store) -> None:
    fill(store, "smoke", plausible, data="embedded")
    figure = learning_curves(evidence_of(store, "smoke"))
    assert "embedded data, not the paper's" in figure.get_suptitle()
    by_task = {face(axes): axes for axes in figure.axes}
    assert set(by_task) == {
        *("MNIST MLP", "MNIST MLP, reparameterised, sigma = 1", "MNIST MLP, reparameterised, sigma = 100"),
        *("CIFAR-10 VGG-11", "CIFAR-10 ResNet-18", "CIFAR-10 cGAN", "Wikitext-2 Transformer", "Multi30k Transformer"),
        *("Pong PPO", "ImageNet ResNet-50", "CIFAR-10 JPEG, ResNet-50"),
    }
    assert set(lines(by_task["MNIST MLP"])) == {"Nero", "SGD", "Adam", "LAMB"}
    assert set(lines(by_task["CIFAR-10 ResNet-18"])) == {"Nero", "SGD"}
    assert not any(dashed(axes) for axes in figure.axes)


def test_learning_curves_of_perplexity_use_log_scale(store: Store) -> None:
    cell = cells_of("checks")["multi30k_transformer nero bf16 100 True"]
    write_language_model(store, cell, 0.001, 0, 8.0)
    figure = learning_curves(evidence_of(store, "checks"))
    scales = {face(axes).split(" missing")[0]: axes.get_yscale() for axes in figure.axes}
    variant = "Multi30k Transformer, precision = bf16, pool = 100, scale embedding = on"
    assert [name for name, scale in scales.items() if scale == "log"] == [variant], "others draw nothing"


def test_learning_curves_of_an_empty_store(store: Store) -> None:
    figure = learning_curves(evidence_of(store, "table1"))
    assert len(figure.axes) == 6
    assert "embedded" not in figure.get_suptitle()
    for axes in figure.axes:
        assert "search incomplete: Nero" in face(axes)
        assert not axes.lines


def test_optimiser_has_same_colour_in_every_figure(store: Store) -> None:
    fill_cell(store, cells_of("mnist")["mnist_mlp100 nero"], plausible)
    fill_cell(store, cells_of("smoke")["mnist_mlp100 nero"], plausible, data="embedded")
    drawn = [figure3(store).axes[1], learning_curves(evidence_of(store, "smoke")).axes[0]]
    assert {line.get_color() for axes in drawn for line in axes.lines if line.get_label().startswith("Nero, η")} == {
        style.COLOURS["nero"]
    }
    everything = [*style.COLOURS.values(), *style.VARIANTS, *style.OTHERS]
    assert len(set(everything)) == len(everything)
    assert len({colour for _, colour in style.CONSTRAINTS.values()}) == 4


def test_unknown_optimiser_uses_its_file_name_and_own_colour() -> None:
    assert style.name("my_own") == "my_own"
    palette = style.colours(["my_own", "nero", "other"])
    assert palette["nero"] == style.COLOURS["nero"]
    assert len({palette["nero"], palette["my_own"], palette["other"]}) == 3
    assert style.in_order(["my_own", "lamb", "nero", "my_own"]) == ("nero", "lamb", "my_own")


def test_bundled_font_takes_precedence_over_system_font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    (tmp_path / own.name).write_bytes(own.read_bytes())
    fonts = font_manager.fontManager
    monkeypatch.setattr(fonts, "ttflist", [])
    fonts.addfont(tmp_path / own.name)
    assert Path(font_manager.findfont("DejaVu Sans")) == tmp_path / own.name
    style.prefer_bundled_fonts.cache_clear()
    with style.house_style():
        assert Path(font_manager.findfont("DejaVu Sans")) == own.resolve()
    assert len(fonts.ttflist) > 1, "the system's fonts stay usable"
    style.prefer_bundled_fonts.cache_clear()  # monkeypatch restores the font list


@pytest.mark.slow
def test_figure_output_is_independent_of_hash_seed(tmp_path: Path) -> None:
    program = (
        "import hashlib; from nero.report import catalogue, files; from nero.runs.store import Store;"
        f"made = catalogue.make_figures(catalogue.gather('mnist', Store({str(tmp_path)!r})));"
        "print([hashlib.sha256(data).hexdigest() for data in files.figure_files(made).values()])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


@pytest.mark.parametrize("has_images", [False, True])
def test_png_has_few_colours_unless_it_shows_images(has_images: bool) -> None:
    """Palettes halve the files; lines and text must look the same, and photographs keep their colours."""
    figure = Figure(figsize=(3, 2), dpi=100)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1])
    if has_images:
        axes.imshow(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    plain = io.BytesIO()
    figure.savefig(plain, format="png")
    with Image.open(plain) as picture:
        expected = np.asarray(picture.convert("RGB")).astype(int)
    data = rendering.file_bytes(figure, "png")
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.mode == ("RGB" if has_images else "P")
        assert picture.info["dpi"] == pytest.approx((100, 100), abs=0.1)
        found = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(found - expected).max() <= (0 if has_images else 32)
    assert len(data) < len(plain.getvalue())
