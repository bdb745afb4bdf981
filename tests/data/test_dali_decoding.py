"""Decoding by NVIDIA DALI, against torchvision on the CPU; and what is done without it, for which a stand-in does."""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from data.test_gpu_decoding import CPU, DAMAGED, FILES, WINDOWS, jpeg, levels_apart
from nero.data.images import ragged_crops
from nero.data.images.dali_decoding import DaliDecoder
from nero.data.images.gpu_decoding import decode_and_crop


def is_installed() -> bool:
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # nor anything else of NVIDIA's
        return False


# Else what stands in for DALI would pass for it.
pytestmark = pytest.mark.filterwarnings("error:DALI does not take")
needs_dali = pytest.mark.skipif(not is_installed(), reason="needs NVIDIA DALI (nvidia-dali-cuda120 or -cuda130)")
# Colours of full resolution, which all decoders decode alike.
PLAIN = [jpeg(20, 30, subsampling=0), jpeg(33, 21, subsampling=0), jpeg(64, 80, subsampling=0)]
PLAIN_WINDOWS = torch.tensor([[2, 3, 15, 20], [0, 0, 33, 21], [9, 4, 50, 41]])


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "gpu" not in request.keywords:
        monkeypatch.setattr(ragged_crops, "_has_kernels", lambda device: False)


def inner(pixels: Tensor) -> Tensor:
    """Without the outermost pixels, for which DALI's filter sees the window's last ones more than once."""
    return pixels[..., 1:-1, 1:-1]


# without DALI


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DaliDecoder]:
    """A decoder whose pipeline gives this, or fails for this reason."""

    def make(outcome: Tensor | str) -> DaliDecoder:
        for name in ("nvidia", "nvidia.dali"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        decoder = DaliDecoder(10, CPU, 4)
        monkeypatch.setattr(decoder, "_run", lambda files, windows: outcome)
        return decoder

    return make


def test_where_it_is_missing_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ImportError, match="pip install nvidia-dali-cuda120, or nvidia-dali-cuda130") as caught:
        DaliDecoder(10, CPU, 4)
    assert "\n" not in str(caught.value)


def test_a_larger_batch_than_was_said_is_refused(stand_in: Callable[..., DaliDecoder]) -> None:
    with pytest.raises(ValueError, match="a batch of 5 is larger than 4"):
        stand_in("nothing")([FILES[0]] * 5, WINDOWS[[0] * 5])


def test_what_is_decoded_already_does_not_go_through_it(stand_in: Callable[..., DaliDecoder]) -> None:
    images = [decode_jpeg(file, mode=ImageReadMode.RGB) for file in FILES]
    given = torch.arange(2, dtype=torch.uint8)[:, None, None, None].expand(2, 3, 10, 10)
    windows = WINDOWS.clone()
    windows[3, 2] = 1000
    result, failures = stand_in(given)([images[0], FILES[1], FILES[2], images[3]], windows)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result[1:3], given)
    assert torch.equal(result[:1], decode_and_crop(images[:1], WINDOWS[:1], 10, CPU)[0])
    assert list(failures) == [3]
    assert not result[3].any()


def test_a_batch_that_it_refuses_is_decoded_otherwise(stand_in: Callable[..., DaliDecoder]) -> None:
    expected, _ = decode_and_crop(FILES, WINDOWS, 10, CPU)
    with pytest.warns(UserWarning, match="DALI does not take what others do: out of order"):
        result, failures = stand_in("out of order")(FILES, WINDOWS)
    assert failures == {}
    assert torch.equal(result, expected)


def test_where_a_file_is_to_blame_nothing_more_is_said(stand_in: Callable[..., DaliDecoder]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, failures = stand_in("one of them")([FILES[0], DAMAGED["garbage"][0]], WINDOWS[[0, 0]])
        assert list(failures) == [1]
        result, failures = stand_in("never asked")([], WINDOWS[:0])
        assert result.shape == (0, 3, 10, 10)


@pytest.mark.parametrize("window", [[-1, 0, 5, 5], [0, 0, 0, 5], [0, 0, 5, -5]])
def test_a_window_that_is_none_never_reaches_it(stand_in: Callable[..., DaliDecoder], window: list[int]) -> None:
    decoder = stand_in(torch.ones(2, 3, 10, 10, dtype=torch.uint8))
    result, failures = decoder(FILES[:2], torch.tensor([window, WINDOWS[1].tolist()]))
    assert list(failures) == [0]
    assert not result[0].any()


# with it


@needs_dali
def test_files_are_decoded_cropped_and_resized_in_batches_of_any_length() -> None:
    decoder = DaliDecoder(12, CPU, 4, threads=1)
    for order in ([0, 1, 2], [2], [1, 0], [2, 2, 1, 0]):
        files, windows = [PLAIN[place] for place in order], PLAIN_WINDOWS[order]
        result, failures = decoder(files, windows)
        assert failures == {}
        assert result.dtype == torch.uint8
        assert result.is_contiguous(memory_format=torch.channels_last)
        expected, _ = decode_and_crop(files, windows, 12, CPU)
        assert levels_apart(inner(result), inner(expected)) <= 1
        assert levels_apart(result, expected) <= 8


@needs_dali
def test_every_kind_of_file_is_taken() -> None:
    result, failures = DaliDecoder(10, CPU, 4, threads=1)(FILES, WINDOWS)
    assert failures == {}
    assert levels_apart(result, decode_and_crop(FILES, WINDOWS, 10, CPU)[0]) <= 8


@needs_dali
def test_windows_are_those_of_the_image_as_it_is_stored() -> None:
    """Not as the camera was held, which a tag says."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # turned by 90 degrees
    turned, window = jpeg(20, 30, subsampling=0, exif=exif), torch.tensor([[0, 0, 20, 30]])
    result, failures = DaliDecoder(12, CPU, 4, threads=1)([turned], window)
    assert failures == {}
    assert levels_apart(inner(result), inner(decode_and_crop(PLAIN[:1], window, 12, CPU)[0])) <= 1


@needs_dali
@pytest.mark.parametrize("kind", DAMAGED)
def test_after_a_damaged_file_it_goes_on(kind: str) -> None:
    decoder = DaliDecoder(12, CPU, 4, threads=1)
    usual, _ = decoder(PLAIN, PLAIN_WINDOWS)
    result, failures = decoder([PLAIN[0], DAMAGED[kind][0]], PLAIN_WINDOWS[[0, 0]])
    assert list(failures) == [1]
    assert not result[1].any()
    assert torch.equal(decoder(PLAIN, PLAIN_WINDOWS)[0], usual)


@needs_dali
def test_an_image_that_does_not_hold_its_window_fails() -> None:
    windows = PLAIN_WINDOWS.clone()
    windows[1] = torch.tensor([0, 0, 34, 21])
    result, failures = DaliDecoder(12, CPU, 4, threads=1)(PLAIN, windows)
    assert failures == {1: "33 x 21 pixels do not hold a window of 34 x 21 at 0, 0"}
    assert not result[1].any()


@needs_dali
@pytest.mark.gpu
def test_on_a_gpu_photographs_are_nearly_those_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(200, 600, (48, 2), generator=generator).tolist()
    files = [jpeg(*size) for size in sizes]
    windows = torch.tensor([[h // 8, w // 5, h // 2 + 1, w // 2 + 1] for h, w in sizes])
    expected, _ = decode_and_crop(files, windows, 176, CPU)
    decoder, stream = DaliDecoder(176, torch.device("cuda"), 64), torch.cuda.Stream()
    for count in (48, 17, 48):
        with torch.cuda.stream(stream):
            result, failures = decoder(files[:count], windows[:count])
        torch.cuda.current_stream().wait_stream(stream)
        assert failures == {}
        assert result.is_cuda
        difference = (inner(result).cpu().int() - inner(expected[:count]).int()).abs().float()
        assert difference.mean() < 1
        assert difference.max() <= 24
    bad = DAMAGED["garbage"][0]
    result, failures = decoder([files[0], bad], windows[[0, 0]])
    assert list(failures) == [1]
    assert decoder(files, windows)[1] == {}
