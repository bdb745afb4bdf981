"""What a bundle says of itself, in contents.json: for people, and for what unpacks it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nero.bundle.parcels import Packed

FORMAT = 1
FILE = "contents.json"
WHEELS = "wheels"
"""The folder of the wheels in an unpacked bundle."""


@dataclass(frozen=True)
class Contents:
    """commit:  as `git describe --always --dirty --abbrev=40` printed it
    python, platform:  what the wheels are for; None without wheels
    without:  what was asked to be left out, names or patterns
    left_out:  what the machine must therefore have, as requirements
    install_bytes:  what the wheels take once they are installed
    """

    name: str
    version: str
    commit: str
    python: str | None = None
    platform: str | None = None
    extras: Sequence[str] = ()
    without: Sequence[str] = ()
    left_out: Sequence[str] = ()
    data: Sequence[str] = ()
    runs: bool = False
    install_bytes: int = 0
    parcel_size: int = 0
    parcels: int = 0
    files: Sequence[Packed] = field(default=())

    def as_json(self) -> str:
        """One line for each file, so that it can be read and compared."""
        about = asdict(self)
        files = [json.dumps(file, ensure_ascii=False) for file in about.pop("files")]
        sizes = {kind: sum(file.size for file in self.files if _kind(file.path) == kind) for kind in KINDS}
        head = json.dumps({"format": FORMAT, **about, "bytes": sizes}, indent=2, ensure_ascii=False)
        return head.removesuffix("\n}") + ',\n  "files": [\n    ' + ",\n    ".join(files) + "\n  ]\n}\n"


KINDS = ("code", "wheels", "data")


def _kind(path: str) -> str:
    top = path.partition("/")[0]
    return top if top in KINDS else "code"


def unpacker() -> Path:
    """The script that goes into a bundle: it stands alone."""
    return Path(__file__).with_name("unpack.py")
