"""Ways to damage the files of a run, as faulty disks, other programs and people with bad intentions do."""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIG, SUMMARY, METRICS, PROVENANCE = "config.yaml", "summary.json", "metrics.jsonl", "provenance.jsonl"
INDEX, CHECKPOINT, PICTURE, LOCK = "checkpoint.json", "checkpoint-epoch3.pt", "pictures/samples-epoch0003.jpg", "lock"
FOLDER, MORE = ".", "more"  # the run's folder itself, and what else may be in it
FILES = (CONFIG, SUMMARY, METRICS, PROVENANCE, INDEX, CHECKPOINT, PICTURE, LOCK, FOLDER)
HUGE = 3 << 30  # bytes of sparse files


@dataclass(frozen=True)
class Damage:
    """A way to damage a file of a run.

    apply:    damages it, given the run's folder and a file outside the store
    is_sure:  whether every reader of the file must notice; bytes at random places may not matter
    """

    file: str
    kind: str
    apply: Callable[[Path, Path], object]
    is_sure: bool = True

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}"


JUNK: dict[str, Any] = {
    "null": None,
    "text": "many",
    "number": 1.5,
    "negative number": -1,
    "boolean": True,
    "list": [1, "two"],
    "mapping": {"one": "two"},
    "long integer": 10**30,
    "endless integer": 10**4000,
    "large number": 1e308,
    "control characters": "\x1b[31m\nmany",
    "path": "../../../../outside",
    "half a character": "\ud800",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "deep list": json.loads("[" * 60 + "]" * 60),
    "no key": ...,
}
"""Values that are of the wrong type for most keys."""

NUMBERS = {"null", "number", "negative number", "boolean", "large number"}
COSTS = {"null", "number"}
NO_VALUE = {"null", "no key"}
# By key, what is junk to no reader: tables and pages may be made with it.
HARMLESS = {
    SUMMARY: {
        "optim": {"text"},
        "lr": {"number", "large number"},
        "seconds": {"number"},
        "data": NO_VALUE,
        "epochs": NO_VALUE,
        "final": {*NUMBERS, "no key"},
        "device": {"text", "path", *NO_VALUE},
        "parameters": NO_VALUE,
        "diverged_at": NO_VALUE,
        "traceback": {"text", "path", "control characters", *NO_VALUE},
        "joules": {*COSTS, "no key"},
        "gpu_processes": NO_VALUE,
        "beside": NO_VALUE,
        "metric": set(),
    },
    METRICS: {
        "step": NO_VALUE,
        "seconds": {*NUMBERS, "no key"},
        "lr": {*NUMBERS, "no key"},
        "train/accuracy": {*NUMBERS, "no key"},
        "trace": NO_VALUE,
    },
    PROVENANCE: {
        "commit": {"text", "path", *NO_VALUE},
        "dirty": {"boolean", *NO_VALUE},
        "device": {"text", "path", "control characters", "mapping", *NUMBERS, *NO_VALUE},
        "started": {"text", "path", *NO_VALUE},
    },
    CONFIG: {"seed": set(), "optim": set()},
    INDEX: {},
}
# The checker and a report compare a config with its summary, and find nearly all; other readers take most of it.
SURELY_NO_CONFIG = {"long integer", "endless integer", "control characters", "deep list"}


def damages(seed: int, times: int = 3) -> Iterator[Damage]:
    """All kinds of damage for each file; those at random places several times."""
    for file in FILES:
        yield from _to_any(file)
        if file != FOLDER:
            yield from _to_bytes(file, random.Random(f"{seed} {file}"), times)
    for file in (SUMMARY, METRICS, PROVENANCE, CONFIG, INDEX):
        yield from _to_keys(file, random.Random(f"{seed} keys of {file}"))
    yield from _to_text()


def _to_any(file: str) -> Iterator[Damage]:
    """What is there instead of a file, or of a run's folder."""

    def instead(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
        def apply(folder: Path, outside: Path) -> None:
            path = folder / file if file != FOLDER else folder
            _remove(path)
            path.parent.mkdir(exist_ok=True)
            make(path, outside)

        return apply

    kinds: dict[str, Callable[[Path, Path], object]] = {
        "missing": lambda path, outside: None,
        "link to a file outside": lambda path, outside: path.symlink_to(outside),
        "link to itself": lambda path, outside: path.symlink_to(path.name),
        "link to nothing": lambda path, outside: path.symlink_to("nowhere"),
        "link to a folder": lambda path, outside: path.symlink_to(outside.parent),
        "link to the same outside": lambda path, outside: path.symlink_to(outside.parent / "copy" / file),
        "FIFO": lambda path, outside: os.mkfifo(path),
        "socket": lambda path, outside: _socket(path),
        "folder": lambda path, outside: path.mkdir(),
        "folder with a file": lambda path, outside: (path.mkdir(), (path / "file").touch()),
    }
    if os.geteuid() == 0:
        kinds["device"] = lambda path, outside: os.mknod(path, 0o020666, os.makedev(1, 5))  # /dev/zero
    for kind, make in kinds.items():
        # A run without a picture, a lock or checkpoints is a run; a folder that is gone is none.
        missing = kind == "missing" and file in (PROVENANCE, INDEX, PICTURE, LOCK, FOLDER)
        no_run = file == FOLDER and not kind.startswith("link to the same")
        yield Damage(file, kind, instead(make), is_sure=not missing and not no_run)
    if file != FOLDER and os.geteuid() != 0:
        yield Damage(file, "unreadable", lambda folder, outside: (folder / file).chmod(0))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _socket(path: Path) -> None:
    """Paths of sockets are short."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _to_bytes(file: str, chance: random.Random, times: int) -> Iterator[Damage]:
    def changed(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], object]:
        return lambda folder, outside: (folder / file).write_bytes(change((folder / file).read_bytes()))

    def flipped(data: bytes, places: list[float], bits: list[int]) -> bytes:
        made = bytearray(data)
        for place, bit in zip(places, bits, strict=True):
            if made:
                made[int(place * len(made))] ^= 1 << bit
        return bytes(made)

    for number in range(times):
        at, noise = chance.random(), chance.randbytes(chance.randrange(1, 200))
        places, bits = [chance.random() for _ in range(3)], [chance.randrange(8) for _ in range(3)]
        yield Damage(file, f"cut {number}", changed(lambda d, at=at: d[: int(at * len(d))]), False)
        yield Damage(
            file,
            f"noise {number}",
            changed(lambda d, at=at, noise=noise: d[: int(at * len(d))] + noise + d[int(at * len(d)) :]),
            False,
        )
        yield Damage(file, f"flipped bits {number}", changed(lambda d, p=places, b=bits: flipped(d, p, b)), False)
    is_text = file in (CONFIG, SUMMARY, METRICS, PROVENANCE)
    is_json = is_text and file != CONFIG
    yield Damage(file, "invalid UTF-8", changed(lambda d: b"\xff\xfe" + d), is_text)
    yield Damage(file, "UTF-16", changed(lambda d: d.decode(errors="replace").encode("utf-16")), is_text)
    yield Damage(file, "empty", changed(lambda d: b""), file in (CONFIG, SUMMARY, METRICS))
    yield Damage(file, "zeros", changed(lambda d: b"\0" * (len(d) + 1)), is_text and file != PROVENANCE)
    random_bytes = chance.randbytes(500)
    yield Damage(file, "random", changed(lambda d: random_bytes + b"\n"), is_text)
    yield Damage(file, "a long line", changed(lambda d: b"[" + b"1," * (1 << 20) + b"1]\n" + d), is_text)
    yield Damage(file, "deep lists", changed(lambda d: b"[" * 100_000 + b"\n" + d), is_text)
    yield Damage(file, "deep mappings", changed(lambda d: b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n" + d), is_text)
    yield Damage(file, "two of it", changed(lambda d: d + d), file == SUMMARY)
    yield Damage(file, "another encoding of it", changed(lambda d: b'"' + d.hex().encode() + b'"\n'), is_text)
    size = HUGE if is_text else HUGE >> 4
    yield Damage(file, "huge", lambda folder, outside: os.truncate(folder / file, size), is_text)
    if is_json:
        yield Damage(file, "null", changed(lambda d: b"null\n"))
        yield Damage(file, "a number", changed(lambda d: b"1e999\n"))


def _to_keys(file: str, chance: random.Random) -> Iterator[Damage]:
    """Junk as the value of each key; of logs, in a line that is not the last."""
    keys = {
        SUMMARY: [*HARMLESS[SUMMARY], "version", "status", "run_id", "task", "seed", "epochs_done", "final_metrics"],
        METRICS: [*HARMLESS[METRICS], "epoch"],
        PROVENANCE: [*HARMLESS[PROVENANCE]],
        CONFIG: ["task_name", "optim_name", "seed", "data", "precision", "task", "optim"],
        INDEX: ["file", "sha256", "position", "log"],
    }[file]
    if file == SUMMARY:
        keys += ["metric.key", "metric.goal", "metric.label", "final_metrics.x"]
    if file == CONFIG:
        keys += ["optim.lr"]
    for key in dict.fromkeys(keys):
        for kind, junk in JUNK.items():
            if file == CONFIG and kind in ("half a character", "NaN", "infinity"):
                continue
            sure = kind not in HARMLESS[file].get(key, set())
            if key == "final_metrics.x":
                sure = kind not in {*NUMBERS, "no key"}
            if key in ("metric.key", "metric.label"):
                sure = kind not in {"text", "path"}
            if file == CONFIG:
                sure = kind in SURELY_NO_CONFIG
            if file == INDEX:
                sure = False
            place = chance.randrange(2) if file == METRICS else 0

            def apply(folder: Path, outside: Path, key: str = key, junk: Any = junk, place: int = place) -> None:
                path = folder / file
                if file == CONFIG:
                    config = yaml.safe_load(path.read_text())
                    _put(config, key, junk)
                    path.write_text(yaml.safe_dump(config))
                    return
                texts = path.read_text().splitlines() if file.endswith("l") else [path.read_text()]
                lines = [json.loads(text) for text in texts]
                _put(lines[place][0] if file == INDEX else lines[place], key, junk)
                path.write_text("".join(json.dumps(line) + "\n" for line in lines))

            yield Damage(file, f"{kind} as {key}", apply, sure)


def _put(record: dict[str, Any], key: str, junk: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        record = record[parent]
    if junk is ...:
        record.pop(last, None)
    else:
        record[last] = junk


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)


def _to_text() -> Iterator[Damage]:
    """What only one format has."""
    texts = {
        "alias bomb": LAUGHS,
        "alias": "again: &a [1]\nonce_more: *a\n",
        "contains itself": "again: &a {self: *a}\n",
        "merged keys": "base: &b {x: 1}\nmore:\n  <<: *b\n",
        "object": "again: !!python/object/apply:os.system ['touch hacked']\n",
        "binary": "again: !!binary aGVsbG8=\n",
        "set": "again: !!set {a, b}\n",
        "no date": "again: 2021-99-99\n",
        "sexagesimal": f"again: 1{':59' * 2000}\n",
        "list as a key": "? [a, b]\n: 1\n",
        "tab": "again:\t- 1\n\t- 2\n",
    }
    for kind, text in texts.items():

        def apply(folder: Path, outside: Path, text: str = text) -> None:
            path = folder / CONFIG
            path.write_text(text + path.read_text())

        yield Damage(CONFIG, kind, apply, kind != "sexagesimal")
    paths = {
        "absolute": "/etc/passwd",
        "outside": "../../../outside",
        "itself": INDEX,
        "folder": "pictures",
        "control": "\x1b[2J",
    }
    for kind, name in paths.items():

        def name_file(folder: Path, outside: Path, name: str = name) -> None:
            path = folder / INDEX
            index = json.loads(path.read_text())
            path.write_text(json.dumps([{**index[0], "file": name}]))

        yield Damage(INDEX, f"a file {kind}", name_file, False)
    for name in ("samples-epoch²³.jpg", "samples-epoch99999999999999999999.jpg", "samples-epoch0002.jpg\n", "x" * 200):

        def add_picture(folder: Path, outside: Path, name: str = name) -> None:
            shutil.copy(folder / PICTURE, folder / "pictures" / name)

        yield Damage(PICTURE, f"a picture {name[:30]!r}", add_picture, False)
    yield Damage(PICTURE, "pictures elsewhere", lambda folder, outside: _link_pictures(folder, outside))
    yield Damage(LOCK, "of a deep record", lambda folder, outside: (folder / LOCK).write_text("[" * 4000), False)
    record = json.dumps({"pid": "\x1b[2J\n", "host": {"a": [1]}, "since": 10**300})
    yield Damage(LOCK, "of a strange holder", lambda folder, outside: (folder / LOCK).write_text(record), False)
    yield Damage(MORE, "a file with a strange name", lambda folder, outside: _strange(folder), False)
    yield Damage(MORE, "a part", lambda folder, outside: (folder / "summary.json.1.part").symlink_to(outside))
    yield Damage(MORE, "a FIFO", lambda folder, outside: os.mkfifo(folder / MORE))
    yield Damage(FOLDER, "under another name", lambda folder, outside: folder.rename(folder.with_name("another")))
    yield Damage(FOLDER, "a name that is no text", lambda folder, outside: os.rename(folder, f"{folder}\udcff"))
    yield Damage(FOLDER, "a name of two lines", lambda folder, outside: folder.rename(f"{folder}\n[1m"))
    yield Damage(FOLDER, "a name with stars", lambda folder, outside: folder.rename(folder.with_name("*")))
    yield Damage(FOLDER, "of another task", lambda folder, outside: _move(folder))


def _link_pictures(folder: Path, outside: Path) -> None:
    shutil.rmtree(folder / "pictures")
    (folder / "pictures").symlink_to(outside.parent)


def _strange(folder: Path) -> None:
    (folder / os.fsdecode(b"name\xff\n")).touch()


def _move(folder: Path) -> None:
    (folder.parents[1] / "other_task").mkdir()
    folder.rename(folder.parents[1] / "other_task" / folder.name)
