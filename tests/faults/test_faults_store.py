"""Faults: damaged and hostile files in a store, under every command that reads one."""

import contextlib
import io
import random
import re
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import pytest

from nero.bundle import unpack
from nero.bundle.making import Spec, make_bundle, write_sums
from nero.cli.main import main
from nero.plans.config import run_id
from nero.runs.checking import check_run
from nero.runs.store import Store
from support import damages as files
from support.bundles import FILES, little_project, tree
from support.damages import CONFIG, FOLDER, METRICS, MORE, PROVENANCE, SUMMARY, Damage, damages
from support.faulty_places import Properties, repetitions
from support.logged_stores import ADAM, NERO, REPARAM, contents, write_whole

SECONDS = 60  # that a command may take, on a busy machine
EXPERIMENT = """
title: A tiny experiment
rows:
  - {task: mnist_mlp100, optim: [nero, adam], lr: [0.01]}
"""
PART = 6  # of all parts of the damages that a test has
TEXTS = (SUMMARY, CONFIG, METRICS, PROVENANCE)
BEGINNINGS = ("error: ", "left out: ", "not measured: ")  # of lines on stderr


@dataclass(frozen=True)
class Reader:
    """A command that reads a store.

    words:    given the store, another store and a folder for output
    reads:    files of which it names runs that are damaged
    output:   what it writes beside stdout
    status:   without damage
    shows:    whether all good runs are in its output
    """

    words: Callable[[Path, Path, Path], Sequence[str | Path]]
    reads: tuple[str, ...] = (SUMMARY,)
    output: str = ""
    status: int = 0
    shows: bool = True


READERS = {
    "list": Reader(lambda store, other, out: ["runs", "list", "--store", store]),
    "check": Reader(lambda store, other, out: ["runs", "check", "--store", store], (*files.FILES, MORE), shows=False),
    "compare": Reader(lambda store, other, out: ["runs", "compare", "mlp100-adam", "mnist_reparam", "--store", store]),
    "where": Reader(
        lambda store, other, out: ["runs", "list", "--where", "precision=tf32", "--store", store], (SUMMARY, CONFIG)
    ),
    "export": Reader(
        lambda store, other, out: ["runs", "export", out / "runs.csv", "--store", store],
        (SUMMARY, CONFIG),
        "runs.csv",
    ),
    "curves": Reader(
        lambda store, other, out: ["runs", "export", out / "curves.csv", "--curves", "--store", store],
        (SUMMARY, METRICS),
        "curves.csv",
    ),
    "import": Reader(lambda store, other, out: ["runs", "import", store, "--store", out / "imported"], TEXTS),
    "dry import": Reader(
        lambda store, other, out: ["runs", "import", store, "--dry-run", "--store", out / "elsewhere"], TEXTS
    ),
    "plan": Reader(lambda store, other, out: ["plan", "tiny", "--store", store], shows=False),
    "report": Reader(
        lambda store, other, out: ["report", "tiny", "--page", "--store", store, "--out", out],
        TEXTS,
        "tables/tiny.md",
        shows=False,
    ),
}
"""Commands that name what they leave out."""

QUICK = ("list", "export", "plan", "curves", "import", "where", "list", "dry import", "compare")  # in turn

ON_A_RUN = (["sample"], ["play"], ["translate"], ["generate"], ["theory", "measure"], ["runs", "compare"])
"""Commands on one run, which end with an error before they need its data: it is of another task, or damaged."""


class Hang(BaseException):
    """No command may catch it."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three runs."""
    root = tmp_path_factory.mktemp("template") / "runs"
    for name in (NERO, ADAM, REPARAM):
        run = write_whole(Store(root), name, 0.01)
        run.save_checkpoint(b"a state", {"epoch": 3})
        run.write_picture("samples.jpg", 3, b"no picture")
    return root


@dataclass(frozen=True)
class Place:
    """A damaged store, its damaged run and what must not change."""

    store: Path
    victim: Path
    other: Path
    outside: Path
    out: Path

    @property
    def good(self) -> list[str]:
        return [run.run_id for run in Store(self.other).runs() if run.run_id != self.victim.name]


@contextlib.contextmanager
def damaged(template: Path, folder: Path, damage: Damage) -> Iterator[Place]:
    """Copies of the template: a damaged one, a good one, and files outside both."""
    place = Place(folder / "runs", Path(), folder / "other", folder / "outside" / "file", folder / "out")
    for copy in (place.store, place.other):
        shutil.copytree(template, copy)
    victim = next(run.path for run in Store(place.store).runs() if "mnist_mlp100-nero" in run.run_id)
    (folder / "outside").mkdir()
    place.outside.write_text('{"a": 1}\n')
    shutil.copytree(victim, folder / "outside" / "copy")
    place.out.mkdir()
    damage.apply(victim, place.outside)
    yield replace(place, victim=victim)
    shutil.rmtree(folder)


def called(words: Sequence[str | Path]) -> tuple[int, str, str]:
    """Status, stdout and stderr of a command. Raises what it raises, and Hang if it takes too long."""

    def stop(number: int, frame: object) -> None:
        raise Hang

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status: object = main([str(word) for word in words])
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            err.write(f"{status}\n")
            status = 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert isinstance(status, int)
    return status, out.getvalue(), err.getvalue()


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time and content of all files below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 20 else b""
        found[str(path)] = status.st_mode, status.st_mtime_ns, content
    return found


def faults(name: str, place: Place, damage: Damage) -> Iterator[str]:
    """What a command does wrong on a damaged store."""
    reader = READERS[name]
    before = state(place.outside.parent), state(place.store)
    try:
        status, out, err = called(reader.words(place.store, place.other, place.out))
    except Hang:
        yield "it hangs"
        return
    except Exception as error:
        yield f"it raises {type(error).__name__}: {str(error)[:200]}"
        return
    written = place.out / reader.output
    text = out + (written.read_text() if reader.output and written.is_file() else "")
    if (state(place.outside.parent), state(place.store)) != before:
        yield "it changes files"
    if reader.shows and (missing := [run for run in place.good if run not in text]):
        yield f"it does not show {missing}"
    lines = err.splitlines()
    if strange := [line for line in lines if not line.startswith(BEGINNINGS) or len(line) > 1000]:
        yield f"it prints {strange[0][:200]!r}"
    named = [line for line in (out if name == "check" else f"{out}{err}").splitlines() if _names(line, place, damage)]
    if damage.is_sure and damage.file in (*reader.reads, FOLDER) and not (named and status):
        yield f"it does not name the run and fail (status {status}: {err.strip()[-200:]})"
    missing = name == "report" and status == 1 and "missing:" in out  # a run of another metric is not the one planned
    if bool(named) != bool(status) and damage.file != FOLDER and not missing:
        yield f"its status is {status}, and it names {named}"


def faults_on_a_run(command: Sequence[str], place: Place) -> Iterator[str]:
    """What a command on the damaged run does wrong, but for its status: it may not read what is damaged."""
    before = state(place.outside.parent), state(place.store)
    try:
        status, _, err = called([*command, place.victim.name, "--store", place.store])
    except Hang:
        yield "it hangs"
        return
    except Exception as error:
        yield f"it raises {type(error).__name__}: {str(error)[:200]}"
        return
    if (state(place.outside.parent), state(place.store)) != before:
        yield "it changes files"
    if strange := [line for line in err.splitlines() if not line.startswith(BEGINNINGS) or len(line) > 1000]:
        yield f"it prints {strange[0][:200]!r}"
    if command != ["runs", "compare"] and not (status and err):
        yield f"its status is {status}, and it says nothing"


def _names(line: str, place: Place, damage: Damage) -> bool:
    """Whether a line names the damaged run and a reason."""
    about = line.startswith(("left out: ", str(place.store))) or ": damaged: " in line or ": conflict: " in line
    return about and "(no problem)" not in line and (place.victim.name in line or damage.file == FOLDER)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local" / "experiments").mkdir(parents=True)
    (tmp_path / "local" / "experiments" / "tiny.yaml").write_text(EXPERIMENT)
    for name, value in (("NERO_LOCAL", tmp_path / "local"), ("NERO_DATA", tmp_path / "data"), ("NERO_DEBUG", "1")):
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("part", range(PART))
def test_commands_survive_damaged_run_files_and_name_them(
    template: Path, tmp_path: Path, record_property: Properties, part: int
) -> None:
    record_property("fault", "damaged files of a run under every command that reads a store")
    tried, found = 0, []
    rotation, on_a_run = cycle(QUICK), cycle(ON_A_RUN)
    for number, damage in enumerate(list(damages(part, repetitions(3, 0.01)))[part::PART]):
        names = ["check", next(rotation), *(["report"] if number % 60 == 0 else [])]
        with damaged(template, tmp_path / "place", damage) as place:
            found += [f"{damage}: {name}: {fault}" for name in names for fault in faults(name, place, damage)]
            if number % 2:
                command = next(on_a_run)
                found += [f"{damage}: {' '.join(command)}: {fault}" for fault in faults_on_a_run(command, place)]
        tried += 1
    record_property("repetitions", tried)
    record_property("lost", sum("does not show" in fault for fault in found))
    assert found == []


@pytest.mark.usefixtures("tiny")
def test_import_takes_only_whole_runs_and_the_bytes_of_their_files(
    template: Path, tmp_path: Path, record_property: Properties
) -> None:
    record_property("fault", "imports of hostile and damaged runs")
    tried, lost = 0, 0
    for damage in list(damages(0, repetitions(3, 0.01)))[::12]:
        with damaged(template, tmp_path / "place", damage) as place:
            into = place.out / "imported"
            outside = state(place.outside.parent)
            called(["runs", "import", place.store, "--store", into])
            assert state(place.outside.parent) == outside, damage
            found = Store(into).runs()
            lost += len(set(place.good) - {run.run_id for run in found})
            for run in found:
                assert [str(finding) for finding in check_run(run, run_id) if finding.is_problem] == [], damage
                source = contents(place.store / run.path.parent.name / run.run_id)
                assert source.items() >= contents(run.path).items(), damage
            for path in into.rglob("*"):
                kind = path.lstat().st_mode
                assert stat.S_ISDIR(kind) or (stat.S_ISREG(kind) and not kind & 0o7133), damage
        tried += 1
    record_property("repetitions", tried)
    record_property("lost", lost)
    assert lost == 0


def test_unpack_writes_all_files_of_a_bundle_or_names_what_is_damaged(
    tmp_path: Path, record_property: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the right checksums: by accident, and by intention."""
    record_property("fault", "damaged and hostile archives of a bundle")
    monkeypatch.setenv("NERO_COMMIT", "abc")
    make_bundle(Spec(archive_size=64 << 10, root=little_project(tmp_path / "project")), tmp_path / "whole")
    chance, tried = random.Random(0), 0
    whole = unpacked(tmp_path / "whole", tmp_path / "there")
    assert whole.keys() >= FILES.keys() - {
        "results/runs/task/task-1/summary.json",
        "results/runs/task/task-1/metrics.jsonl",
    }
    for _ in range(repetitions(20, 0.1)):
        for name in ("nero-bundle.000", "contents.json", "SHA256SUMS"):
            for change in (cut, flip, insert, replace_word):
                shutil.rmtree(tmp_path / "there", ignore_errors=True)
                shutil.rmtree(tmp_path / "out", ignore_errors=True)
                shutil.copytree(tmp_path / "whole", tmp_path / "out")
                path = tmp_path / "out" / name
                path.write_bytes(change(path.read_bytes(), chance))
                if chance.random() < 0.7 and name != "SHA256SUMS":
                    write_sums(tmp_path / "out")
                before = state(tmp_path / "out")
                found = unpacked(tmp_path / "out", tmp_path / "there")
                assert state(tmp_path / "out") == before
                assert found.keys() <= {*whole, ".bundle.json"} or name == "contents.json"
                tried += 1
    record_property("repetitions", tried)


def unpacked(bundle: Path, to: Path) -> dict[str, bytes]:
    """The files that unpacking writes. If it does not write all that contents.json lists, it must say so in lines."""
    try:
        listed, archives = unpack.checked(bundle)
        unpack.unpack(listed, archives, to)
    except SystemExit as end:
        lines = str(end.code).splitlines()
        assert lines
        assert all(line.startswith("error: ") and len(line) < 1000 for line in lines)
    else:
        assert all(unpack.is_correct(to / file["path"], file) for file in listed["files"])
    return tree(to) if to.exists() else {}


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def flip(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(3):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(chance.randrange(1, 600)) + data[at:]


def replace_word(data: bytes, chance: random.Random) -> bytes:
    """Another value where a number or a text was, in the text files; another header field in the archives."""
    places = [match.span() for match in re.finditer(rb"\d+|true|false|null|\"[^\"]*\"", data)] or [(0, 1)]
    start, end = chance.choice(places)
    word = chance.choice(
        [b"-1", b"99999999999999", b'"many"', b"null", b"[]", b"{}", b"NaN", b"../../outside", b"[" * 50]
    )
    return data[:start] + word + data[end:]
