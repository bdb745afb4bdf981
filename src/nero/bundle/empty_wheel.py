"""Wheels with nothing in them but a name, a version and requirements: they stand in for packages that are left out."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_empty_wheel(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    modules: Mapping[str, str] | None = None,
) -> Path:
    """The file; `modules`, path -> text, are put in if it is not to be quite empty."""
    stem = f"{name.replace('-', '_')}-{version}"
    about = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    kind = ["Wheel-Version: 1.0", "Generator: nero", "Root-Is-Purelib: true", f"Tag: {tag}"]
    files = {
        **(modules or {}),
        f"{stem}.dist-info/METADATA": "\n".join([*about, ""]),
        f"{stem}.dist-info/WHEEL": "\n".join([*kind, ""]),
    }
    record = [f"{path},sha256={_digest(text.encode())},{len(text.encode())}" for path, text in files.items()]
    files[f"{stem}.dist-info/RECORD"] = "\n".join([*record, f"{stem}.dist-info/RECORD,,", ""])
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def _digest(data: bytes) -> str:
    """As a wheel's RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
