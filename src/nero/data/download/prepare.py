"""Bring a data set under the data root, from the first origin that can give it."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from nero.data.download.checked_file import DamagedData
from nero.data.download.origins import OriginFailed
from nero.data.sources import dataset


class Unobtainable(RuntimeError):
    """No origin gave the data set; the message is one line that says what was tried."""


def prepare(name: str, root: Path | str, say: Callable[[str], None] = lambda line: None) -> bool:
    """Fetch what is missing or damaged of a data set; False if it was already whole, and then no network is touched.

    Files are put in place one by one, each after its checksum: a command that was cut off goes on where it stopped.
    `say` receives a line for each step. Raises Unobtainable.
    """
    root = Path(root)
    missing = [file for file in dataset(name).files if file.problem(root, checksums=True)]
    if not missing:
        return False
    tried: list[str] = []
    for origin in dataset(name).origins:
        say(f"{name}: trying {origin.place}")
        root.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root, ignore_cleanup_errors=True) as scratch:
                for file, content in origin.fetch(tuple(missing), Path(scratch)):
                    file.put(root, content)
                    missing.remove(file)
                    say(f"{name}: {file.path} is in place")
        except (OriginFailed, DamagedData) as error:
            tried.append(f"{origin.place} ({error})")
            say(f"{name}: no: {error}")
        if not missing:
            return True
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    raise Unobtainable(
        f"{name}: no source gave {missing[0].path}{more}; tried {'; '.join(tried) or 'none: it has none'}"
    )
