"""Run directories: readable after a kill, and never written by two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.atomic import write_atomic
from nero.runs.lock import RunBusy
from nero.runs.store import VERSION, RunDirectory, Store, is_settled


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = Store(tmp_path).run("task", "task-optim-0.1-s0-00000000")
    directory.path.mkdir(parents=True)
    return directory


def test_metrics_are_read_back_in_order(run: RunDirectory) -> None:
    records = [{"epoch": epoch, "train/loss": 1 / epoch} for epoch in (1, 2, 3)]
    for record in records:
        run.append_metrics(record)
    assert run.read_metrics() == records


@pytest.mark.parametrize("name", ["train/" + "a" * 300, "train/\x07", "train/\n"])
def test_metric_whose_name_no_summary_can_have_is_refused(run: RunDirectory, name: str) -> None:
    with pytest.raises(ValueError, match="must be a short text"):
        run.append_metrics({"epoch": 1, name: 1.0})
    assert not run.read_metrics()


def test_non_finite_numbers_are_written_as_null_in_strict_json(run: RunDirectory) -> None:
    run.append_metrics({"epoch": 1, "train/loss": float("nan"), "trace": {"x": [1.0, float("inf")]}})
    run.write_summary({"status": "diverged", "final": float("nan")})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    line = json.loads((run.path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line == {"epoch": 1, "train/loss": None, "trace": {"x": [1.0, None]}}
    assert json.loads((run.path / "summary.json").read_text(), parse_constant=refuse)["final"] is None


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_truncated_last_line_loses_only_that_line(run: RunDirectory, cut: int) -> None:
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch, "train/loss": 0.123456})
    whole = (run.path / "metrics.jsonl").read_bytes()
    (run.path / "metrics.jsonl").write_bytes(whole[:-cut])
    assert [r["epoch"] for r in run.read_metrics()] == ([1, 2, 3] if cut == 1 else [1, 2])
    run.truncate_metrics(epochs=2)
    run.append_metrics({"epoch": 3, "train/loss": 0.5})
    assert [r["epoch"] for r in run.read_metrics()] == [1, 2, 3]
    assert all(json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines())


def test_truncate_metrics_drops_later_epochs(run: RunDirectory) -> None:
    for epoch in range(1, 6):
        run.append_metrics({"epoch": epoch})
    run.truncate_metrics(epochs=3)
    assert [r["epoch"] for r in run.read_metrics()] == [1, 2, 3]


def test_replace_last_metrics_changes_only_last_line(run: RunDirectory) -> None:
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch, "train/loss": 1 / epoch})
    run.replace_last_metrics({**run.read_metrics()[-1], "val/fid": 15.5})
    assert run.read_metrics() == [
        {"epoch": 1, "train/loss": 1.0},
        {"epoch": 2, "train/loss": 0.5},
        {"epoch": 3, "train/loss": 1 / 3, "val/fid": 15.5},
    ]
    run.append_metrics({"epoch": 4})
    assert [record["epoch"] for record in run.read_metrics()] == [1, 2, 3, 4]


def test_replace_last_metrics_is_atomic(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in (1, 2):
        run.append_metrics({"epoch": epoch})
    before = (run.path / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run.replace_last_metrics({"epoch": 2, "val/fid": 15.5})
    assert (run.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("killed", [False, True])
def test_checkpoint_stays_resumable_after_replace_last_metrics_even_if_killed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    for epoch in (1, 2):
        run.append_metrics({"epoch": epoch})
    run.save_checkpoint(b"state", {"epoch": 2, "step": 0})
    if killed:
        put = RunDirectory._put

        def dies(self: RunDirectory, name: str, data: bytes) -> None:
            if name == "metrics.jsonl":
                raise KeyboardInterrupt
            put(self, name, data)

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "_put", dies)
            with pytest.raises(KeyboardInterrupt):
                run.replace_last_metrics({"epoch": 2, "val/fid": 15.5})
    else:
        run.replace_last_metrics({"epoch": 2, "val/fid": 15.5})
    said: list[str] = []
    found = run.resumable_checkpoint(said.append)
    assert found is not None
    assert found[1] == b"state"
    assert not said
    (run.path / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n')
    assert run.resumable_checkpoint(said.append) is None, "a log that is damaged is none of the two"


def test_pictures_are_returned_sorted_by_epoch(run: RunDirectory) -> None:
    assert run.pictures("samples") == {}
    for epoch in (120, 10, 90):
        run.write_picture("samples.jpg", epoch, f"epoch {epoch}".encode())
    run.write_picture("other.jpg", 20, b"of another name")
    found = run.pictures("samples")
    assert list(found) == [10, 90, 120]
    assert {epoch: path.read_bytes() for epoch, path in found.items()} == {e: f"epoch {e}".encode() for e in found}
    assert found[10].relative_to(run.path) == Path("pictures/samples-epoch0010.jpg")


def test_write_picture_overwrites_same_epoch(run: RunDirectory) -> None:
    run.write_picture("samples.jpg", 10, b"old")
    run.write_picture("samples.jpg", 10, b"new")
    [path] = run.pictures("samples").values()
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_pictures_ignores_files_not_named_by_epoch(run: RunDirectory) -> None:
    run.write_picture("samples.jpg", 10000, b"more digits than most")
    for name in ("samples-epoch.jpg", "samples-epoch12x.jpg", "samples.jpg", "my-samples-epoch0010.jpg"):
        (run.path / "pictures" / name).write_bytes(b"")
    assert list(run.pictures("samples")) == [10000]


FID = {"key": "val/fid", "goal": "min", "label": "FID"}


@pytest.mark.parametrize(
    ("status", "final_metrics", "settled"),
    [
        ("done", {"val/fid": 15.5, "train/loss": 0.1}, True),
        ("done", {"val/fid": None}, True),  # measured, and not finite
        ("done", {"train/loss": 0.1}, False),
        ("done", {}, False),
        ("diverged", {}, True),
        ("failed", {"val/fid": 15.5}, False),
        ("running", {"val/fid": 15.5}, False),
    ],
)
def test_run_is_settled_once_diverged_or_measured(status: str, final_metrics: dict, settled: bool) -> None:
    assert is_settled({"status": status, "metric": FID, "final_metrics": final_metrics}) is settled


@pytest.mark.parametrize(
    "summary", [None, {}, {"status": "done"}, {"status": ["done"]}, {"status": "done", "metric": {}}]
)
def test_run_without_complete_summary_is_not_settled(summary: dict | None) -> None:
    assert not is_settled(summary)


def test_two_checkpoints_are_kept_and_damaged_one_falls_back_to_previous(run: RunDirectory) -> None:
    for epoch in (1, 2, 3):
        run.save_checkpoint(f"state {epoch}".encode(), {"epoch": epoch, "step": 0})
    assert run.load_checkpoint() == b"state 3"
    assert len(list(run.path.glob("checkpoint-*.pt"))) == 2
    newest = run.path / "checkpoint-epoch3-step0.pt"
    data = bytearray(newest.read_bytes())
    data[0] ^= 1
    newest.write_bytes(data)
    assert run.load_checkpoint() == b"state 2"
    newest.unlink()
    assert run.load_checkpoint() == b"state 2"
    (run.path / "checkpoint.json").write_text("[{")
    assert run.load_checkpoint() is None


def test_saving_same_position_twice_overwrites_it_and_keeps_previous(run: RunDirectory) -> None:
    run.save_checkpoint(b"one", {"epoch": 1, "step": 0})
    run.save_checkpoint(b"two", {"epoch": 2, "step": 0})
    run.save_checkpoint(b"two again", {"epoch": 2, "step": 0})
    assert run.load_checkpoint() == b"two again"
    (run.path / "checkpoint-epoch2-step0.pt").write_bytes(b"")
    assert run.load_checkpoint() == b"one"


SUMMARY = {
    "version": VERSION,
    "run_id": "task-optim-0.1-s0-00000000",
    "task": "task",
    "optim": "optim",
    "lr": 0.1,
    "seed": 0,
    "status": "done",
    "epochs_done": 3,
    "seconds": 1.5,
    "metric": FID,
    "final": 15.5,
    "final_metrics": {"val/fid": 15.5},
}


@pytest.mark.parametrize("text", ["", '{"status": ', "[]", "null", '"done"', "\x00" * 50, '{"status": "done"}'])
def test_unreadable_summary_is_treated_as_missing(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    for name, content in (("a", json.dumps({**SUMMARY, "run_id": "a"})), ("b", text)):
        run = store.run("task", name)
        run.path.mkdir(parents=True)
        (run.path / "summary.json").write_text(content)
    assert list(store.summaries()) == ["a"]
    assert store.run("task", "b").read_summary() is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 0),
        ("version", 2),
        ("version", None),
        ("status", "pondering"),
        ("status", ["done"]),
        ("task", None),
        ("optim", 3),
        ("lr", "0.1"),
        ("seed", True),
        ("epochs_done", None),
        ("epochs_done", 0),
        ("seconds", None),
        ("metric", None),
        ("metric", {"key": "val/fid"}),
        ("metric", "val/fid"),
        ("final", "good"),
        ("final_metrics", None),
    ],
)
def test_summary_with_wrong_version_or_invalid_keys_is_treated_as_missing(
    run: RunDirectory, key: str, value: object
) -> None:
    run.write_summary(SUMMARY)
    assert run.read_summary() == SUMMARY
    run.write_summary({**SUMMARY, key: value})
    assert run.read_summary() is None
    run.write_summary({other: kept for other, kept in SUMMARY.items() if other != key})
    assert (run.read_summary() is None) == (key != "final"), "no final value is null"
    assert (run.other_version() is None) == (key != "version")


def test_summary_of_unfinished_run_may_lack_metric(run: RunDirectory) -> None:
    for status in ("running", "failed"):
        unended = {**SUMMARY, "status": status, "metric": None, "final": None, "final_metrics": {}, "epochs_done": 0}
        run.write_summary(unended)
        assert run.read_summary() == unended


def test_append_after_truncated_provenance_line_is_not_lost(run: RunDirectory) -> None:
    run.add_provenance({"started": "one"})
    with (run.path / "provenance.jsonl").open("ab") as file:
        file.write(b'{"started": "tw')
    run.add_provenance({"started": "three"})
    run.add_provenance({"started": "four"})
    assert [start["started"] for start in run.read_provenance()] == ["one", "three", "four"]


def log_and_save_checkpoints(run: RunDirectory, epochs: int) -> None:
    for epoch in range(1, 1 + epochs):
        run.append_metrics({"epoch": epoch, "train/loss": 1 / epoch})
        run.save_checkpoint(f"state {epoch}".encode(), {"epoch": epoch})


def test_checkpoint_is_resumable_only_if_log_up_to_it_is_intact(run: RunDirectory) -> None:
    log_and_save_checkpoints(run, 3)
    log = run.path / "metrics.jsonl"
    whole = log.read_bytes()
    said: list[str] = []

    def state() -> bytes | None:
        said.clear()
        found = run.resumable_checkpoint(said.append)
        return found and found[1]

    assert state() == b"state 3"
    log.write_bytes(whole + b'{"epoch": 4, "tra')
    assert state() == b"state 3", "what comes after it is made again"
    assert said == []
    log.write_bytes(whole[:-5])
    assert state() == b"state 2"
    assert said == ["metrics.jsonl is damaged before checkpoint-epoch3.pt; resuming from checkpoint-epoch2.pt"]
    for damaged in (b"X" + whole[1:], whole.replace(b"0.5", b"0.7"), whole[10:], b""):
        log.write_bytes(damaged)
        assert state() is None
        assert len(said) == 2
        assert all(line.endswith("; starting over") for line in said)
    assert run.load_checkpoint() == b"state 3", "the weights are not damaged"


def test_old_checkpoints_without_log_checksum_are_accepted(run: RunDirectory) -> None:
    log_and_save_checkpoints(run, 2)
    index = json.loads((run.path / "checkpoint.json").read_text())
    (run.path / "checkpoint.json").write_text(json.dumps([{k: e[k] for k in e if k != "log"} for e in index]))
    found = run.resumable_checkpoint(pytest.fail)
    assert found == (run.path / "checkpoint-epoch2.pt", b"state 2")


def test_damaged_checkpoint_or_index_is_reported_in_one_line(run: RunDirectory) -> None:
    said: list[str] = []
    assert run.resumable_checkpoint(said.append) is None
    assert said == [], "a run that begins"
    log_and_save_checkpoints(run, 2)
    (run.path / "checkpoint-epoch2.pt").write_bytes(b"state 3")
    run.resumable_checkpoint(said.append)
    assert said.pop() == "checkpoint-epoch2.pt is damaged; resuming from checkpoint-epoch1.pt"
    (run.path / "checkpoint-epoch2.pt").unlink()
    run.resumable_checkpoint(said.append)
    expected = "checkpoint-epoch2.pt cannot be read (No such file or directory); resuming from checkpoint-epoch1.pt"
    assert said.pop() == expected
    for text in ("[{", "{}", "null"):
        (run.path / "checkpoint.json").write_text(text)
        assert run.resumable_checkpoint(said.append) is None
        assert said == ["checkpoint.json is damaged; starting over"]
        said.clear()


def test_temporary_files_of_killed_writer_are_removed_by_next_writer(run: RunDirectory) -> None:
    run.write_picture("samples.jpg", 1, b"picture")
    parts = [run.path / "summary.json.123.part", run.path / "pictures" / "samples-epoch0002.jpg.123.part"]
    for part in parts:
        part.write_bytes(b"half")
    with run.exclusive():
        assert not any(part.exists() for part in parts)
    assert list(run.pictures("samples")) == [1]


def test_run_lock_excludes_other_processes_until_holder_dies(run: RunDirectory) -> None:
    code = (
        "import sys, pathlib; from nero.runs.store import RunDirectory\n"
        "with RunDirectory(pathlib.Path(sys.argv[1])).exclusive():\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    assert run.is_held()
    with pytest.raises(RunBusy, match=f"process {other.pid} on"), run.exclusive():
        pass
    other.kill()  # the kernel releases the lock of a dead process
    other.wait()
    assert not run.is_held()
    with run.exclusive():
        assert run.is_held()


def test_failed_atomic_write_keeps_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


RESERVED = ("epoch", "step", "epochs", "trace")
NAMES = st.text(min_size=1, max_size=200).filter(lambda name: name.isprintable() and name not in RESERVED)
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)


@settings(max_examples=50)
@given(st.dictionaries(NAMES, st.one_of(INTEGERS, st.floats(allow_nan=False, allow_infinity=False))))
def test_metrics_record_round_trips(record: dict[str, float]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        run.append_metrics({**record, "epoch": 1})
        assert run.read_metrics() == [{**record, "epoch": 1}]
