"""The files of data sets, checked, with what was made of them once and saves a node that work."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nero.bundle.parcels import Entry
from nero.bundle.refusal import Refusal
from nero.data.sources import MissingData, command, dataset, problems
from nero.data.text.tokenised import tokenised_multi30k

KEPT = {
    "multi30k": ("multi30k/tokens.json",),
    # Of the real images, for FID; a run works them out anew if they are of other images or another device.
    "inception": ("*-statistics-*.pt",),
}
"""What runs keep beside a data set, as patterns under the data root."""

MADE_BEFORE = {"multi30k": tokenised_multi30k}
"""What brings that up to date. A node may lack what it takes: spaCy."""

FOLDER = "data"
"""Where the data root is in an unpacked bundle: where runs look for it unless they are told otherwise."""


def data_files(names: Sequence[str], root: Path, say: Callable[[str], None] = lambda line: None) -> list[Entry]:
    """Refusal, with the command that gets it, if one of a data set's files is missing or damaged."""
    found = {}
    for name in dict.fromkeys(names):
        try:
            files = dataset(name).files
        except ValueError as error:
            raise Refusal(str(error)) from error
        if wrong := problems(name, root, checksums=True):
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise Refusal(f"{name}: {wrong[0]}{more}; get it with: {command(name, root)}")
        paths = [root / file.path for file in files]
        if name in MADE_BEFORE:
            try:
                MADE_BEFORE[name](root)
            except MissingData as error:
                say(f"goes without what runs make of {name}: {error}")
        kept = [path for pattern in KEPT.get(name, ()) for path in sorted(root.glob(pattern)) if path.is_file()]
        for path in (*paths, *kept):
            inside = f"{FOLDER}/{path.relative_to(root).as_posix()}"
            found[inside] = Entry(inside, path)
    return list(found.values())
