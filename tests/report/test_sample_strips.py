"""Tests of the sample strips: the right pixels in the right places, and messages where pictures are missing."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nero.plans.plan import Cell, survey
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.samples import CLASSES, samples, spread
from nero.runs.store import RunDirectory, Store
from support.fake_runs import STAND_IN_FID, cells_of, evidence_of, write_generator
from support.read_figures import face

OPTIMS = {"nero": "Nero", "sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}
EPOCHS = (10, 60, 120)  # epochs for which `write_generator` logs FID
SIDE, GAP = 32, 2  # pixels
QUIETLY = pytest.mark.filterwarnings("error")


def cell_of(optim: str) -> Cell:
    return cells_of("table1")[f"{paper.CGAN} {optim}"]


def drawn(store: Store) -> Figure:
    return samples(evidence_of(store, "table1"))


def strips(figure: Figure) -> dict[str, Axes]:
    """Panels by the optimiser name in their headings."""
    return {face(axes).split(",")[0]: axes for axes in figure.axes}


def picture(seed: int, width: int = 320, height: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_file(pixels: np.ndarray, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


def with_pictures(run: RunDirectory, epochs: Sequence[int] = EPOCHS) -> RunDirectory:
    for epoch in epochs:
        run.write_picture("samples.png", epoch, as_file(picture(epoch)))
    return run


def with_many_pictures(store: Store, optim: str) -> RunDirectory:
    """Write a run with an FID and a picture every ten epochs."""
    epochs = range(10, 121, 10)
    fids = {epoch: 135.0 - epoch for epoch in epochs}
    return with_pictures(write_generator(store, cell_of(optim), 0.01, 0, 15.0, fids), epochs)


def pixels_of(axes: Axes) -> np.ndarray:
    [image] = axes.images
    return np.asarray(image.get_array())


def tile(pixels: np.ndarray, row: int, column: int) -> np.ndarray:
    top, left = row * (SIDE + GAP), column * (SIDE + GAP)
    return pixels[top : top + SIDE, left : left + SIDE]


def words(axes: Axes) -> str:
    return " ".join(text.get_text() for text in axes.texts).replace("\n", " ")


# contents of a strip


def test_strip_shows_first_row_of_each_picture(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    pixels = pixels_of(strips(drawn(store))["Nero"])
    assert pixels.dtype == np.uint8
    assert pixels.shape == (10 * SIDE + 9 * GAP, 3 * SIDE + 2 * GAP, 3)
    for column, epoch in enumerate(EPOCHS):
        for row in range(10):
            expected = picture(epoch)[0:SIDE, SIDE * row : SIDE * row + SIDE]
            np.testing.assert_array_equal(tile(pixels, row, column), expected)


def test_images_are_separated_by_white_gaps(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    pixels = pixels_of(strips(drawn(store))["Nero"])
    rows, columns = (np.arange(size) % (SIDE + GAP) >= SIDE for size in pixels.shape[:2])
    assert (pixels[rows] == 255).all()
    assert (pixels[:, columns] == 255).all()


def test_images_are_drawn_without_interpolation(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    [image] = strips(drawn(store))["Nero"].images
    assert image.get_interpolation() == "none"


def test_rows_are_labelled_by_class_and_columns_by_epoch(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    axes = strips(drawn(store))["Nero"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "60", "120"]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(CLASSES)
    assert axes.get_xlabel() == "epoch"
    middle, step = (SIDE - 1) / 2, SIDE + GAP
    assert axes.get_xticks().tolist() == [middle + step * place for place in range(3)]
    assert axes.get_yticks().tolist() == [middle + step * place for place in range(10)]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first class is on top"


def test_first_last_and_some_intermediate_epochs_are_shown(store: Store) -> None:
    with_many_pictures(store, "nero")
    axes = strips(drawn(store))["Nero"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "30", "60", "90", "120"]
    np.testing.assert_array_equal(tile(pixels_of(axes), 2, 1), picture(30)[:SIDE, 2 * SIDE : 3 * SIDE])


@given(st.sets(st.integers(1, 10_000)).map(sorted), st.integers(2, 12))
def test_spread_selects_evenly_spaced_epochs_including_ends(epochs: list[int], most: int) -> None:
    shown = spread(epochs, most)
    assert list(shown) == sorted(set(shown) & set(epochs))
    assert shown[:1] == tuple(epochs[:1])
    assert shown[-1:] == tuple(epochs[-1:])
    assert len(shown) == len(epochs) if len(epochs) <= most else 2 <= len(shown) <= most
    between = np.diff([epochs.index(epoch) for epoch in shown[1:]])
    assert len(set(between.tolist())) <= 1


def test_jpeg_pictures_are_read(store: Store) -> None:
    run = write_generator(store, cell_of("nero"), 0.01, 0, 15.5)
    flat = np.repeat(np.arange(0, 250, 25, dtype=np.uint8), SIDE)[None, :, None] * np.ones((256, 1, 3), np.uint8)
    for epoch in EPOCHS:
        run.write_picture("samples.jpg", epoch, as_file(flat, "JPEG"))
    pixels = pixels_of(strips(drawn(store))["Nero"])
    for row in range(10):
        assert np.abs(tile(pixels, row, 1).astype(int) - 25 * row).max() < 8


def test_greyscale_pictures_are_read_as_rgb(store: Store) -> None:
    run = write_generator(store, cell_of("nero"), 0.01, 0, 15.5)
    grey = picture(0)[:, :, 0]
    for epoch in EPOCHS:
        run.write_picture("samples.png", epoch, as_file(grey))
    shown = tile(pixels_of(strips(drawn(store))["Nero"]), 3, 1)
    np.testing.assert_array_equal(shown, np.repeat(grey[:SIDE, 3 * SIDE : 4 * SIDE, None], 3, axis=2))


# selected runs and headings


def test_headings_state_optimiser_lr_seed_and_fid(store: Store) -> None:
    for optim in OPTIMS:
        for lr in cell_of(optim).lrs:
            with_pictures(write_generator(store, cell_of(optim), lr, 0, 15.43 if lr == 0.01 else 50.0))
    figure = drawn(store)
    assert [face(axes) for axes in figure.axes] == [f"{name}, η = 0.01, seed 0: FID 15.43" for name in OPTIMS.values()]
    assert figure.get_suptitle() == "Class-conditional GAN (CIFAR-10): samples from the same z by epoch"


def test_search_seed_is_shown_or_else_first_logged_seed(store: Store) -> None:
    cell = replace(cell_of("nero"), lrs=(0.01,))
    for seed in (2, 1):
        with_pictures(write_generator(store, cell, 0.01, seed, 15.0 + seed))
        figure = samples(evidence_of(store, "table1", [survey(cell, store.summaries())]))
        assert [face(axes) for axes in figure.axes] == [f"Nero, η = 0.01, seed {seed}: FID {15 + seed}.00"]
    with_pictures(write_generator(store, cell, 0.01, 0, 99.0))
    figure = samples(evidence_of(store, "table1", [survey(cell, store.summaries())]))
    assert [face(axes) for axes in figure.axes] == ["Nero, η = 0.01, seed 0: FID 99.00"]


def test_each_optimiser_shows_its_own_pictures(store: Store) -> None:
    for place, optim in enumerate(OPTIMS):
        run = write_generator(store, cell_of(optim), 0.01, 0, 15.0)
        run.write_picture("samples.png", 120, as_file(picture(1000 + place)))
    found = strips(drawn(store))
    assert list(found) == list(OPTIMS.values())
    for place, name in enumerate(OPTIMS.values()):
        np.testing.assert_array_equal(tile(pixels_of(found[name]), 9, 2), picture(1000 + place)[:SIDE, -SIDE:])


def test_incomplete_search_is_reported(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    assert face(strips(drawn(store))["Nero"]) == "Nero, η = 0.01, seed 0: FID 15.50 search incomplete: 1 of 5 rates"


def test_cells_of_other_tasks_are_not_drawn(store: Store) -> None:
    assert [face(axes) for axes in drawn(store).axes] == list(OPTIMS.values())


# embedded data


@QUIETLY
def test_embedded_data_runs_are_stated_in_title(store: Store) -> None:
    cell = replace(cell_of("nero"), lrs=(0.01,), repeat_seeds=(), overrides=("data=embedded",))
    run = write_generator(store, cell, 0.01, 0, 0.125, {3: 0.125}, metric=STAND_IN_FID, data="embedded")
    with_pictures(run, [3])
    figure = samples(evidence_of(store, "table1", [survey(cell, store.summaries())]))
    [axes] = figure.axes
    title = figure.get_suptitle().replace("\n", " ")
    assert title == "Class-conditional GAN (embedded data, not the paper's): samples from the same z by epoch"
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"class {number}" for number in range(10)]
    [drawn_title] = [text for text in figure.texts if text.get_text() == figure.get_suptitle()]
    assert figure.bbox.x0 < drawn_title.get_window_extent().x0
    assert face(axes) == "Nero, η = 0.01, seed 0: stand-in FID 0.12"
    np.testing.assert_array_equal(tile(pixels_of(axes), 4, 0), picture(3)[:SIDE, 4 * SIDE : 5 * SIDE])
    assert style.render(figure, "png").startswith(b"\x89PNG")


def test_missing_embedded_data_runs_are_stated_in_title(store: Store) -> None:
    cell = replace(cell_of("nero"), overrides=("data=embedded",))
    assert "embedded" in samples(evidence_of(store, "table1", [survey(cell, {})])).get_suptitle()


# missing and damaged pictures


def test_run_without_pictures_is_reported(store: Store) -> None:
    write_generator(store, cell_of("sgd"), 0.01, 0, 33.0)
    axes = strips(drawn(store))["SGD"]
    assert not axes.images
    assert words(axes) == "no pictures search incomplete: 1 of 5 rates"


def test_missing_and_diverged_cells_are_reported(store: Store) -> None:
    for lr in cell_of("sgd").lrs:
        write_generator(store, cell_of("sgd"), lr, 0, None)
    found = strips(drawn(store))
    assert words(found["Nero"]) == "search incomplete: 0 of 5 rates"
    assert words(found["SGD"]) == "every learning rate diverged"


def test_diverged_run_shows_pictures_until_divergence(store: Store) -> None:
    cell = replace(cell_of("lamb"), lrs=(0.01,))
    with_pictures(write_generator(store, cell, 0.01, 0, None), [10])
    [axes] = samples(evidence_of(store, "table1", [survey(cell, store.summaries())])).axes
    assert face(axes) == "LAMB, η = 0.01, seed 0: diverged"
    assert pixels_of(axes).shape[1] == SIDE


def intact_png() -> bytes:
    return as_file(picture(0))


BAD = {
    "nothing in it": b"",
    "no picture": b"\x89PNG\r\n\x1a\n but then something else",
    "cut off": intact_png()[: len(intact_png()) // 2],
    "a bit turned": intact_png()[:5000] + bytes([intact_png()[5000] ^ 1]) + intact_png()[5001:],
    "too small": as_file(picture(0, 32, 32)),
    "turned": as_file(picture(0, 256, 320)),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_unusable_picture_is_reported_and_others_are_shown(store: Store, data: bytes) -> None:
    run = with_pictures(write_generator(store, cell_of("adam"), 0.01, 0, 23.0))
    run.write_picture("samples.png", 60, data)
    axes = strips(drawn(store))["Adam"]
    assert face(axes).endswith("picture missing or damaged: epoch 60")
    pixels = pixels_of(axes)
    np.testing.assert_array_equal(tile(pixels, 2, 2), picture(120)[:SIDE, 2 * SIDE : 3 * SIDE])
    assert len(np.unique(tile(pixels, 2, 1))) == 1, "a blank"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "60", "120"]


def test_epoch_with_fid_but_no_picture_is_reported(store: Store) -> None:
    with_pictures(write_generator(store, cell_of("adam"), 0.01, 0, 23.0), [60])
    axes = strips(drawn(store))["Adam"]
    assert face(axes).endswith("picture missing or damaged: epochs 10, 120")
    assert pixels_of(axes).shape[1] == 3 * SIDE + 2 * GAP


def test_picture_without_log_line_is_shown(store: Store) -> None:
    run = with_pictures(write_generator(store, cell_of("adam"), 0.01, 0, 23.0))
    (run.path / "metrics.jsonl").unlink()
    axes = strips(drawn(store))["Adam"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "60", "120"]


def test_message_replaces_strip_if_all_pictures_are_damaged(store: Store) -> None:
    run = write_generator(store, cell_of("adam"), 0.01, 0, 23.0)
    for epoch in EPOCHS:
        run.write_picture("samples.jpg", epoch, b"no picture")
    axes = strips(drawn(store))["Adam"]
    assert not axes.images
    assert words(axes) == "picture missing or damaged: epochs 10, 60, 120 search incomplete: 1 of 5 rates"


def test_experiment_without_gan_is_reported(store: Store) -> None:
    [axes] = samples(evidence_of(store, "mnist")).axes
    assert words(axes) == "no run of cifar10_cgan is planned"


@QUIETLY
@pytest.mark.parametrize("file_format", style.FORMATS)
def test_empty_store_gives_valid_figure(store: Store, file_format: str) -> None:
    assert style.render(drawn(store), file_format)


def test_text_and_strips_stay_within_figure_without_overlap(store: Store) -> None:
    for optim in ("sgd", "adam"):
        with_many_pictures(store, optim)
    write_generator(store, cell_of("nero"), 0.01, 0, 15.0)  # without pictures
    for picture in sorted(with_many_pictures(store, "lamb").pictures("samples").values())[:-1]:
        picture.unlink()  # gives a long message
    figure = drawn(store)
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for number, box in enumerate(boxes):
        assert box is not None
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number] if other is not None)


# reproducibility


@pytest.mark.parametrize("file_format", style.FORMATS)
def test_figure_output_is_reproducible(store: Store, file_format: str) -> None:
    with_pictures(write_generator(store, cell_of("nero"), 0.01, 0, 15.5))
    one = style.render(drawn(store), file_format)
    assert style.render(drawn(store), file_format) == one
