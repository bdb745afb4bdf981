"""Tests of decoding image files against Pillow, and of crops against torchvision's transforms."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from nero.data.images.reading import (
    FILL,
    MEAN,
    STD,
    Unreadable,
    centre_crop,
    decode,
    header,
    random_window,
    read,
    resized_crop,
)
from support.image_files import DAMAGED, SOUND, encoded, garbage, picture

PICTURE = picture()
HEIGHT, WIDTH = 37, 53
GREYS = np.linspace(0, 65535, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint16)


def with_alpha() -> Image.Image:
    image = PICTURE.copy()
    image.putalpha(Image.fromarray((GREYS >> 8).astype(np.uint8)))
    return image


def with_palette() -> Image.Image:
    return PICTURE.convert("P", palette=Image.Palette.ADAPTIVE)


def png_of_16_bits(pixels: np.ndarray) -> bytes:
    """A PNG with three 16-bit channels, which Pillow reads but cannot write, from uint16 [height, width, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    size = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


KINDS = {
    "JPEG": encoded(PICTURE),
    "JPEG, progressive": encoded(PICTURE, progressive=True),
    "JPEG, whole colours": encoded(PICTURE, subsampling=0),
    "JPEG, grey": encoded(PICTURE.convert("L")),
    "JPEG, CMYK": encoded(PICTURE.convert("CMYK"), quality=95),
    "PNG": encoded(PICTURE, "PNG"),
    "PNG, grey": encoded(PICTURE.convert("L"), "PNG"),
    "PNG, black and white": encoded(PICTURE.convert("1"), "PNG"),
    "PNG, palette": encoded(with_palette(), "PNG"),
    "PNG, palette with a transparent colour": encoded(with_palette(), "PNG", transparency=3),
    "PNG, alpha": encoded(with_alpha(), "PNG"),
    "PNG, grey with alpha": encoded(with_alpha().convert("LA"), "PNG"),
    "PNG, 16 bits": png_of_16_bits(np.stack([GREYS, GREYS.T.reshape(HEIGHT, WIDTH), GREYS // 3], -1)),
    "BMP": encoded(PICTURE, "BMP"),
    "GIF": encoded(PICTURE, "GIF"),
    "GIF, animated": encoded(with_palette(), "GIF", save_all=True, append_images=[with_palette().rotate(90)]),
    "WEBP": encoded(PICTURE, "WEBP"),
    "WEBP, alpha": encoded(with_alpha(), "WEBP", lossless=True),
    "TIFF": encoded(PICTURE, "TIFF"),
    "PPM": encoded(PICTURE, "PPM"),
}
GREYS_OF_16_BITS = {kind: encoded(Image.fromarray(GREYS), kind) for kind in ("PNG", "TIFF", "PPM")}


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def by_pillow(data: bytes) -> Tensor:
    with Image.open(io.BytesIO(data)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def levels_apart(found: Tensor, expected: Tensor) -> int:
    assert found.shape == expected.shape
    return int((found.int() - expected.int()).abs().max())


# decoding


@pytest.mark.parametrize("kind", KINDS)
def test_decode_matches_pillow_for_every_format(kind: str) -> None:
    pixels = decode(as_tensor(KINDS[kind]))
    assert pixels.dtype == torch.uint8
    # Two builds of libjpeg may round differently.
    assert levels_apart(pixels, by_pillow(KINDS[kind])) <= (2 if kind.startswith("JPEG") else 0)


def test_cmyk_jpeg_is_converted_to_rgb() -> None:
    """The colours must not be inverted, although Adobe's CMYK files store inverted values."""
    original = torch.from_numpy(np.array(PICTURE)).permute(2, 0, 1)
    pixels = decode(as_tensor(KINDS["JPEG, CMYK"]))
    assert (pixels.int() - original.int()).abs().float().mean() < 1


@pytest.mark.parametrize("kind", GREYS_OF_16_BITS)
def test_16_bit_greyscale_keeps_upper_8_bits(kind: str) -> None:
    """Pillow's convert("RGB") would turn nearly all pixels white."""
    pixels = decode(as_tensor(GREYS_OF_16_BITS[kind]))
    assert pixels.dtype == torch.uint8
    expected = torch.from_numpy((GREYS >> 8).astype(np.uint8)).expand(3, HEIGHT, WIDTH)
    assert torch.equal(pixels, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_header_reports_size_and_plain_jpeg(kind: str) -> None:
    data = KINDS[kind]
    height, width, is_plain_jpeg = header(as_tensor(data))
    with Image.open(io.BytesIO(data)) as image:
        assert (width, height) == image.size == (WIDTH, HEIGHT)
    assert is_plain_jpeg == (kind.startswith("JPEG") and "CMYK" not in kind)


def test_exif_orientation_is_ignored() -> None:
    """ImageFolder ignores it too. `header` and `decode` must agree, since windows are drawn for the header's size."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    data = as_tensor(encoded(PICTURE, exif=exif))
    assert header(data)[:2] == tuple(decode(data).shape[1:]) == (HEIGHT, WIDTH)


# damaged files


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_error_is_one_line_without_addresses(tmp_path: Path, kind: str) -> None:
    data, reason = DAMAGED[kind]
    (tmp_path / "x.jpg").write_bytes(data)
    with pytest.raises(Unreadable, match=f"^{reason}") as error:
        decode(read(tmp_path / "x.jpg"))
    assert_one_line(str(error.value))
    if kind != "truncated":  # its header is intact
        with pytest.raises(Unreadable, match=f"^{reason}"):
            header(read(tmp_path / "x.jpg"))


def assert_one_line(reason: str) -> None:
    assert reason
    assert "\n" not in reason
    assert "0x" not in reason


def test_read_error_does_not_include_path(tmp_path: Path) -> None:
    """The caller adds the path to the message."""
    for path, reason in ((tmp_path / "gone.jpg", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(Unreadable, match=f"^{reason}$"):
            read(path)
    (tmp_path / "x.jpg").write_bytes(SOUND)
    assert bytes(read(tmp_path / "x.jpg").tolist()) == SOUND


@given(
    kind=st.sampled_from(sorted(KINDS)),
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12),
    near_the_beginning=st.booleans(),
)
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore")
def test_corrupted_file_gives_image_or_unreadable_error(
    kind: str, cut: float, changes: list[tuple[float, int]], near_the_beginning: bool
) -> None:
    """A crashed worker or an unexpected exception would end a run of several days."""
    data = bytearray(KINDS[kind])
    for place, value in changes:
        data[int(place * (min(64, len(data)) if near_the_beginning else len(data)))] = value
    file = as_tensor(bytes(data[: max(1, round(cut * len(data)))]))
    for look in (decode, header):
        try:
            found = look(file)
        except Unreadable as error:
            assert_one_line(str(error))
        else:
            assert look is header or (found.dtype, found.ndim, found.shape[0]) == (torch.uint8, 3, 3)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(struct.error("unpack\n requires 4 bytes"), "unpack requires 4 bytes"), (EOFError(), "no image")],
)
def test_any_decoder_exception_becomes_unreadable_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def stumble(self: Image.Image, mode: str) -> None:
        raise error

    monkeypatch.setattr(Image.Image, "convert", stumble)
    with pytest.raises(Unreadable, match=f"^{reason}$"):
        decode(as_tensor(KINDS["BMP"]))


def test_only_jpeg_files_are_decoded_by_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's GIF decoder writes out of bounds for damaged files, which crashes the process."""
    asked = []

    def decode_jpeg(data: Tensor, **options: object) -> Tensor:
        asked.append(bytes(data[:3].tolist()))
        raise RuntimeError("not today")

    monkeypatch.setattr("nero.data.images.reading.decode_jpeg", decode_jpeg)
    for data in KINDS.values():
        decode(as_tensor(data))
    assert set(asked) == {b"\xff\xd8\xff"}
    assert len(asked) == sum(kind.startswith("JPEG") for kind in KINDS), "and what it refuses goes to Pillow"


# crops


# torchvision's uint8 resizing to a single pixel fails on x86-64, so that size has its own test below.
@given(height=st.integers(1, 90), width=st.integers(1, 90), size=st.integers(2, 40), seed=st.integers(0, 2**62))
@settings(max_examples=60)
def test_random_window_matches_torchvision_random_resized_crop(height: int, width: int, size: int, seed: int) -> None:
    pixels = torch.randint(256, (3, height, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    torch.manual_seed(seed)
    expected = v2.RandomResizedCrop(size, antialias=True)(pixels)
    window = random_window(height, width, torch.Generator().manual_seed(seed))
    assert torch.equal(resized_crop(pixels, window, size), expected)


def test_random_windows_have_standard_area_and_aspect_ratio() -> None:
    """8 to 100 % of the area and aspect ratios from 3:4 to 4:3, as is usual for ImageNet."""
    generator = torch.Generator().manual_seed(0)
    windows = torch.tensor([random_window(500, 400, generator) for _ in range(500)]).double()
    area, ratio = windows[:, 2] * windows[:, 3] / (500 * 400), windows[:, 3] / windows[:, 2]
    assert 0.078 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.35


@given(height=st.integers(1, 90), width=st.integers(1, 90), size=st.integers(1, 40), more=st.integers(0, 20))
@example(height=2, width=2, size=1, more=1)
@settings(max_examples=60)
def test_centre_crop_matches_torchvision_even_for_small_images(height: int, width: int, size: int, more: int) -> None:
    pixels = torch.randint(256, (3, height, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    resize = max(2, size + more)
    expected = v2.Compose([v2.Resize(resize, antialias=True), v2.CenterCrop(size)])(pixels)
    shown = centre_crop(pixels, resize, size)
    assert shown.shape == (3, size, size)
    assert torch.equal(shown, expected)


@given(height=st.integers(1, 9), width=st.integers(1, 9), channels_last=st.booleans())
@example(height=2, width=2, channels_last=False)
@settings(max_examples=60)
def test_resize_to_one_pixel_is_triangle_weighted_mean(height: int, width: int, channels_last: bool) -> None:
    """The result must not depend on the machine or on the memory layout."""
    pixels = torch.randint(256, (3, height, width), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    if channels_last:
        pixels = pixels[None].contiguous(memory_format=torch.channels_last)[0]
    mean = torch.einsum("h,w,chw->c", triangle(height), triangle(width), pixels.double())
    window = resized_crop(pixels, (0, 0, height, width), 1)
    assert (window.dtype, window.shape) == (torch.uint8, (3, 1, 1))
    assert ((window.flatten() - mean).abs() <= 0.5 + 1e-4).all()
    if max(height, width) < 2 * min(height, width):  # otherwise the longer side keeps more than one pixel
        assert torch.equal(centre_crop(pixels, 1, 1), window)


def triangle(length: int) -> Tensor:
    """Normalised weights for reducing `length` pixels to one: 1 - distance from the centre / length."""
    distance = (torch.arange(length, dtype=torch.float64) + 0.5 - length / 2).abs()
    weights = 1 - distance / length
    return weights / weights.sum()


def test_fill_colour_is_near_zero_after_normalisation() -> None:
    for value, mean, std in zip(FILL, MEAN, STD, strict=True):
        assert abs(value / 255 - mean) / std < 0.01


def test_sample_files_have_their_stated_format() -> None:
    for kind, data in KINDS.items():
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == kind.split(",")[0]
    assert garbage() == garbage()


@pytest.mark.parametrize("side_by_side", [False, True])
def test_resized_crop_preserves_memory_layout(side_by_side: bool) -> None:
    planes = torch.randint(256, (3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = planes.permute(1, 2, 0).contiguous().permute(2, 0, 1) if side_by_side else planes
    shown = resized_crop(pixels, (3, 5, 30, 40), 16)
    assert torch.equal(shown, v2.functional.resized_crop(planes, 3, 5, 30, 40, [16, 16], antialias=True))
    assert (shown.stride(0) == 1) == side_by_side
