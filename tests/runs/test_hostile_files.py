"""Files that somebody else, or an accident, has put in the place of a run's: nothing waits, and no link is followed."""

import json
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.atomic import open_to_read, write_atomic
from nero.plans.config import ConfigError, run_id
from nero.runs import slots
from nero.runs.importing import Import, ImportOutcome
from nero.runs.lock import exclusive, is_held
from nero.runs.logged import logged_runs
from nero.runs.records import DEEPEST, encode_yaml, parse, parse_lines, parse_yaml
from nero.runs.slots import counted_among, default_folder, slot
from nero.runs.store import ALL, RunDirectory, Store
from nero.runs.validation import Damaged, line_problem
from nero.train.run import train
from runs.test_store import SUMMARY
from support.damages import LAUGHS
from support.faulty_places import run_of
from support.logged_stores import ADAM, change_summary, contents, write_unfinished, write_whole

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for files of other users")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """A reader that waits for a FIFO fails, instead of waiting for ever."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.write_text("of somebody\n")
    return path


@pytest.fixture
def run(store: Store) -> RunDirectory:
    return write_whole(store)


# Writing


def test_lock_that_is_a_link_is_refused_and_its_target_kept(run: RunDirectory, outside: Path) -> None:
    lock = run.path / "lock"
    lock.unlink()
    lock.symlink_to(outside)
    assert not run.is_held()
    with pytest.raises(OSError, match="it is a link and not a regular file"), run.exclusive():
        pass
    assert outside.read_text() == "of somebody\n"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_lock_that_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "lock")
    assert not is_held(tmp_path / "lock")
    with pytest.raises(OSError, match="not a regular file"), exclusive(tmp_path / "lock"):
        pass


def test_writes_do_not_follow_links(run: RunDirectory, outside: Path) -> None:
    for name in ("metrics.jsonl", "provenance.jsonl"):
        (run.path / name).unlink()
        (run.path / name).symlink_to(outside)
    for write in (lambda: run.append_metrics({"epoch": 4}), lambda: run.add_provenance({})):
        with pytest.raises(OSError, match="it is a link and not a regular file"):
            write()
    (run.path / f"summary.json.{os.getpid()}.part").symlink_to(outside)
    (run.path / "summary.json").unlink()
    (run.path / "summary.json").symlink_to(outside)
    run.write_summary({"status": "done"})
    assert not (run.path / "summary.json").is_symlink()
    assert json.loads((run.path / "summary.json").read_text()) == {"status": "done"}
    assert outside.read_text() == "of somebody\n"


def test_partial_file_is_never_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    target = tmp_path / "data.json"
    target.with_name(f"data.json.{os.getpid()}.part").symlink_to(outside)
    write_atomic(target, b"ours")
    assert (target.read_bytes(), outside.read_text()) == (b"ours", "of somebody\n")


@pytest.mark.parametrize("name", ["", "pictures"])
def test_run_whose_folder_is_a_link_is_not_written(run: RunDirectory, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run.path / name).rename(elsewhere) if not name else elsewhere.mkdir()
    (run.path / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    with pytest.raises(OSError, match="it is a link"), RunDirectory(run.path).exclusive():
        pass
    assert contents(elsewhere) == before


def test_metrics_that_no_reader_would_take_are_not_written(run: RunDirectory) -> None:
    before = (run.path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"metrics.jsonl: 'val/words' must be a number, not 'many'"):
        run.append_metrics({"epoch": 4, "val/words": "many"})
    assert (run.path / "metrics.jsonl").read_bytes() == before


def test_config_is_written_without_aliases() -> None:
    shared = [0.9, 0.999]
    config = {"task": {"betas": shared}, "optim": {"betas": shared}}
    assert "&" in yaml.safe_dump(config)
    assert parse_yaml(encode_yaml(config)) == config


@pytest.mark.parametrize("taken", ["link", "file", "for all"])
def test_folder_that_counts_runs_is_not_one_that_others_may_write(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = default_folder()
    assert first == default_folder() == tmp_path / f"nero-gpus-{os.getuid()}"
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    first.rmdir()
    if taken == "link":
        first.symlink_to(tmp_path)
    elif taken == "file":
        first.touch()
    else:
        first.mkdir()
        first.chmod(0o777)
    assert default_folder() == tmp_path / f"nero-gpus-{os.getuid()}.1"


@needs_root
def test_folder_of_another_user_does_not_count_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    os.chown(default_folder(), 1000, 1000)
    assert default_folder().name == "nero-gpus-0.1"


def test_slots_do_not_follow_links(tmp_path: Path, outside: Path) -> None:
    for name in ("gpu0-0", "run-gpu-0"):
        (tmp_path / name).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="it is a link"), slot(1, tmp_path):
        pass
    with counted_among("gpu", tmp_path) as others:
        assert others is slots.no_other_runs
    assert not (tmp_path / "made").exists()


# Reading


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path, outside: Path) -> None:
    with open_to_read(outside, 100) as file:
        assert file.read() == b"of somebody\n"
    with pytest.raises(OSError, match="it has 12 bytes, and at most 11 are read"):
        open_to_read(outside, 11)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(outside)
    for name in ("fifo", "link", "."):
        with pytest.raises(OSError, match="not a regular file"):
            open_to_read(tmp_path / name, 100)
    with pytest.raises(FileNotFoundError):
        open_to_read(tmp_path / "missing", 100)


NOT_JSON = {
    b"[" * 100_000: "more than 16 lists",
    b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1): "more than 16 lists",
    b"9" * 5000: "more than 64 bits",
    b"[-9223372036854775809]": "more than 64 bits",
    b"[1e999]": "too large",
    b"[NaN]": "it has NaN",
    b"[-Infinity]": "it has -Infinity",
    b'"\\ud800"': "half of a character",
    b"\xff": "not UTF-8",
    "1".encode("utf-16"): "not UTF-8",
    b"": "not JSON",
    b"{": "not JSON",
    b"1" + b" " * (16 << 20): "16,777,217 bytes",
}


@pytest.mark.parametrize(("data", "reason"), NOT_JSON.items(), ids=range(len(NOT_JSON)))
def test_json_beyond_limits_is_refused_in_one_line(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse(data)
    assert "\n" not in str(refused.value)
    first, line, last = parse_lines(b'{"epoch": 1}\n' + data.replace(b"\n", b"") + b'\n{"epoch": 2}')
    assert (first, last) == ({"epoch": 1}, {"epoch": 2})
    assert line is None or reason == "more than 16 lists", "all lines are parsed at once, and then looked at"
    assert line_problem(line)


def test_json_within_limits_is_read() -> None:
    values = [2**63 - 1, -(2**63) + 1, 1e308, 1.2345678901234567e-05, 0.00012345678901234567, "\U0001f600", None, True]
    nested = json.loads("[" * DEEPEST + "]" * DEEPEST)
    for value in (*values, nested):
        assert parse(json.dumps(value).encode()) == value
        assert parse_lines(json.dumps({"a": value}).encode()) == [{"a": value}]


NOT_YAML = {
    LAUGHS.encode(): "aliases or tags",
    b"a: &a [1]\n": "aliases or tags",
    b"a: !!python/name:os.system\n": "aliases or tags",
    b"a: !!binary aGk=\n": "aliases or tags",
    b"[" * 100_000: "more than 16 lists",
    b"- " * 100_000: "more than 16 lists",
    b"? " * 100_000: "more than 16 lists",
    "\u2028".join(" " * depth + "a:" for depth in range(200)).encode(): "more than 16 lists",
    "\n".join(" " * depth + "a:" for depth in range(200)).encode(): "more than 16 lists",
    b"a: " + b"9" * 30: "more than 64 bits",
    b"a: " + b"9" * 5000: "digits",
    b"a: 2021-99-99": "month",
    b"a: \xff": "not UTF-8",
    b"{": "not YAML",
    b"? [a]\n: b": "not YAML",
}


@pytest.mark.parametrize(("data", "reason"), NOT_YAML.items(), ids=range(len(NOT_YAML)))
def test_yaml_beyond_limits_is_refused_in_one_line(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse_yaml(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "metrics.jsonl", "provenance.jsonl"])
def test_store_leaves_out_run_with_damaged_file_and_says_why(store: Store, run: RunDirectory, name: str) -> None:
    other = write_whole(store, ADAM)
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    found = [each.run_id for each in store.without_damaged().runs()]
    assert found == [other.run_id]
    assert [each.run_id for each in logged_runs(store, *ALL)] == [other.run_id]
    assert store.left_out == {run.path: f"{name} cannot be read: it is a FIFO and not a regular file"}


def test_run_that_is_being_started_or_written_is_not_damaged(store: Store, run: RunDirectory) -> None:
    with run.exclusive():
        (run.path / "summary.json").unlink()
        assert (store.summaries(), store.left_out) == ({}, {})
    assert (store.summaries(), store.left_out) == ({}, {run.path: "there is no summary.json"})
    going_on = write_unfinished(store, ADAM)
    with (going_on.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 3, "tra')
    going_on.check(*ALL)


def test_config_of_another_run_is_found_only_where_all_files_are_read(store: Store, run: RunDirectory) -> None:
    change_summary(run, data="embedded")
    run.check("config.yaml")
    with pytest.raises(Damaged, match="has data 'embedded' and"):
        run.check(*ALL)


def test_large_checkpoint_is_not_read_into_memory(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save_checkpoint(b"a state", {"epoch": 3})
    os.truncate(run.path / "checkpoint-epoch3.pt", 200 << 20)
    monkeypatch.setattr(RunDirectory, "_read", lambda self, name: (_ for _ in ()).throw(MemoryError(name)))
    index = json.loads((run.path / "checkpoint.json").read_text())
    monkeypatch.setattr(RunDirectory, "_checkpoint_index", lambda self: index)
    assert list(run.checkpoints()) == [("checkpoint-epoch3.pt", None, "checkpoint-epoch3.pt is damaged")]


# Importing


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


def imported(store: Store, other: Store) -> tuple[ImportOutcome, str]:
    [(_, outcome, why)] = Import(store, run_id).runs(logged_runs(other))
    return outcome, why


def test_import_takes_the_bytes_of_files_but_neither_modes_nor_attributes(store: Store, other: Store) -> None:
    run = write_whole(other)
    run.write_picture("samples.jpg", 1, b"a picture")
    for path in run.path.rglob("*"):
        path.chmod(0o6777)
    has_attributes = hasattr(os, "setxattr")
    if has_attributes:
        try:
            os.setxattr(run.path / "summary.json", "user.note", b"of somebody")
        except OSError:
            has_attributes = False
    if os.geteuid() == 0:
        for path in run.path.rglob("*"):
            os.chown(path, 1000, 1000)
            path.chmod(0o6777)
    mask = os.umask(0o022)
    try:
        assert imported(store, other)[0] == ImportOutcome.IMPORTED
    finally:
        os.umask(mask)
    copy = store.run(run.path.parent.name, run.run_id)
    assert contents(copy.path) == {name: data for name, data in contents(run.path).items() if name != "lock"}
    for path in copy.path.rglob("*"):
        found, of_theirs = path.stat(), (run.path / path.relative_to(copy.path)).stat()
        assert stat.S_IMODE(found.st_mode) == (0o755 if path.is_dir() else 0o644)
        assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
        assert path.is_dir() or found.st_mtime_ns == of_theirs.st_mtime_ns
    if has_attributes:
        assert os.listxattr(copy.path / "summary.json") == []


IN_PLACE: dict[str, Callable[[Path, Path], object]] = {
    "FIFO": lambda path, outside: os.mkfifo(path),
    "link": lambda path, outside: path.symlink_to(outside),
    "folder": lambda path, outside: path.mkdir(),
    "device": lambda path, outside: os.mknod(path, 0o020666, os.makedev(1, 5)),
}


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("name", ["config.yaml", "checkpoint-epoch3.pt", "pictures/samples-epoch0002.jpg", "more"])
def test_import_refuses_what_is_not_a_regular_file(
    store: Store, other: Store, outside: Path, name: str, kind: str
) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("needs root, to make a device")
    if (name, kind) == ("more", "folder"):
        pytest.skip("an empty folder of another name harms nobody")
    run = write_whole(other)
    run.save_checkpoint(b"a state", {"epoch": 3})
    (run.path / "pictures").mkdir()
    (run.path / name).unlink(missing_ok=True)
    IN_PLACE[kind](run.path / name, outside)
    outcome, why = imported(store, other)
    assert outcome == ImportOutcome.PROBLEM
    assert f"{name} is not a regular file" in why
    assert store.runs() == []


def test_import_refuses_more_files_or_bytes_than_there_is_room_for(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_whole(other)
    (run.path / "more").touch()
    os.truncate(run.path / "more", 1 << 43)
    outcome, why = imported(store, other)
    assert (outcome, "are free here" in why) == (ImportOutcome.PROBLEM, True)
    (run.path / "more").unlink()
    monkeypatch.setattr("nero.runs.importing.MOST_FILES", 3)
    assert imported(store, other) == (ImportOutcome.PROBLEM, "it has more than 3 files")
    assert store.runs() == []


@pytest.mark.parametrize("kind", ["FIFO", "link", "file"])
def test_import_does_not_replace_what_is_no_folder(store: Store, other: Store, outside: Path, kind: str) -> None:
    run = write_whole(other)
    here = store.run(run.path.parent.name, run.run_id).path
    here.parent.mkdir(parents=True)
    here.write_text("") if kind == "file" else IN_PLACE[kind](here, outside)
    assert imported(store, other) == (ImportOutcome.CONFLICT, f"{here} is not a folder")
    assert os.path.lexists(here)


@settings(max_examples=300)
@given(st.text('[]{}",:0123456789.eE+-naNfIity \\u\n\xff&*!?', max_size=60))
def test_readers_of_text_raise_nothing_but_value_errors_of_one_line(text: str) -> None:
    data = text.encode("latin-1")
    for read in (parse, parse_yaml):
        with suppress(ValueError):
            read(data)
    assert len(parse_lines(data)) == len(data.splitlines())


def test_result_that_cannot_be_read_is_not_trained_again(tmp_path: Path) -> None:
    config, run = run_of(tmp_path, "optim=nero")
    run.path.mkdir(parents=True)
    run.write_config(config.identity)
    for damage in ({"joules": "many"}, {"run_id": "another"}, {"final_metrics": []}):
        run.write_summary({**SUMMARY, "run_id": run.run_id, "task": config.task_name, **damage})
        before = contents(run.path)
        with pytest.raises(ConfigError, match=r"summary.json (cannot be read: .* must be|is that of)") as refused:
            train(config)
        assert str(run.path) in str(refused.value)
        assert contents(run.path) == before
