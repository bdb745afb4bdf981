"""CIFAR-10 from PNG sheets with one image per row, rebuilt into the records of the official binary version."""

import io
import json

import numpy as np
from PIL import Image

SIDE = 32
PIXELS = SIDE * SIDE


def records_from_sheet(png: bytes, labels: list[int]) -> bytes:
    """The official records: for each image one label byte, then the red, green and blue planes row by row.

    The sheet is PIXELS wide and has one row per label, in the order of the records. Raises ValueError if it does not
    fit or is damaged.
    """
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as sheet:
            # The size is known before a pixel is decoded, so a sheet that claims to be huge costs nothing.
            width, height = sheet.size
            if (width, height, sheet.mode) != (PIXELS, len(labels), "RGB"):
                raise ValueError(f"a sheet of {width} x {height} {sheet.mode} pixels for {len(labels)} labels")
            pixels = np.asarray(sheet)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow says of a bad PNG
        raise ValueError(f"a damaged sheet: {error}") from error
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3 * PIXELS)
    return np.concatenate([np.asarray(labels, np.uint8)[:, None], planes], axis=1).tobytes()


def read_labels(text: bytes) -> list[int]:
    """A JSON list of class numbers; ValueError if it is anything else."""
    labels = json.loads(text)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("the labels are not a list of class numbers from 0 to 9")
    return labels
