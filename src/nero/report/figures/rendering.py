"""Files of figures whose bytes do not depend on the time or the machine.

Coordinates in vector formats are rounded: layouts and transformations differ between processors in their last digits.
"""

import hashlib
import io
import re
from typing import Any

from matplotlib.figure import Figure

DECIMALS = 4  # of coordinates, in points
NO_DATES = {
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None},
    "png": {"Software": None},
}


def file_bytes(figure: Figure, file_format: str) -> bytes:
    if file_format == "pdf":
        return _rounded_pdf(figure)
    file = io.BytesIO()
    figure.savefig(file, format=file_format, metadata=NO_DATES[file_format])
    if file_format == "png":
        return _small_png(file, has_images=any(axes.images for axes in figure.axes))
    return _rounded_svg(file.getvalue().decode()).encode() if file_format == "svg" else file.getvalue()


def _small_png(file: io.BytesIO, has_images: bool) -> bytes:
    """Without transparency and, if there are only lines and text, with 256 colours: less than half the bytes."""
    from PIL import Image  # slow to import, and no table needs it

    smaller = io.BytesIO()
    with Image.open(file) as picture:
        opaque = picture.convert("RGB")
        resolution = picture.info.get("dpi")
    (opaque if has_images else opaque.quantize(256)).save(smaller, "PNG", optimize=True, dpi=resolution)
    return smaller.getvalue()


def _rounded_pdf(figure: Figure) -> bytes:
    """Fewer decimals than matplotlib writes."""
    from matplotlib.backends.backend_pdf import PdfFile, PdfPages, Verbatim  # slow to import, and no table needs it

    def rounded(value: Any) -> Any:
        if isinstance(value, Verbatim):  # a path
            return Verbatim(_with_fewer_decimals(value.pdfRepr().decode()).encode())
        return round(value, DECIMALS) if isinstance(value, float) else value

    class RoundedPdf(PdfFile):
        def output(self, *data: Any) -> None:
            super().output(*map(rounded, data))

    file = io.BytesIO()
    with PdfPages(file) as pages:
        pages._file = RoundedPdf(file, metadata=NO_DATES["pdf"])
        figure.savefig(pages, format="pdf")
    return file.getvalue()


def _with_fewer_decimals(text: str) -> str:
    def shorter(found: re.Match[str]) -> str:
        return f"{round(float(found[0]), DECIMALS) + 0.0:.{DECIMALS}f}".rstrip("0").rstrip(".")

    return re.sub(rf"-?\d+\.\d{{{DECIMALS + 1},}}", shorter, text)


def _rounded_svg(text: str) -> str:
    """Fewer decimals; and ids, which are hashes of unrounded coordinates, are numbered instead."""
    text = re.sub("<[^>]*>", lambda tag: _with_fewer_decimals(tag[0]), text)
    names = dict.fromkeys(re.findall(r'\bid="(\w*[0-9a-f]{10})"', text))
    prefix = hashlib.sha256(re.sub("|".join(names) or "$", "", text).encode()).hexdigest()[:8]  # of this figure alone
    ids = {name: f"id{prefix}-{number}" for number, name in enumerate(names)}
    return re.sub("|".join(names), lambda found: ids[found[0]], text) if names else text
