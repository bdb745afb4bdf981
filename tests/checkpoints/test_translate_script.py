"""Tests of `nero translate` on a run trained on embedded data."""

import io
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from nero.checkpoints.translate import split_words
from nero.cli.trained import translate as main
from nero.data.synthetic.translation import translation_pairs
from nero.data.text.parallel_text import toy_pairs
from nero.runs.store import RunDirectory
from support.whole_runs import trained

TINY = (
    "task=multi30k_transformer",
    "data=embedded",
    "task.train_examples=200",
    "task.epochs=1",
    "task.network.width=16",
    "task.network.heads=2",
    "task.network.inner=16",
    "task.network.layers=1",
    "optim=adam",
    "optim.lr=0.003",
    "task.schedule.peak=1",
    "task.schedule.epochs=2",
    "machine=cpu",
)
SENTENCE = "der Hund sieht die Katze ."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("store"), TINY)


@pytest.fixture
def damaged(run: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of the run that a test may damage."""
    return RunDirectory(Path(shutil.copytree(run.path, tmp_path / run.run_id)))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The only line of the error; also checks for exit status 2 and no output."""
    assert main([*words, "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = [line for line in said.err.splitlines() if " epochs, " not in line]
    assert line.startswith("error: ")
    return line


def test_translate_writes_test_set_translations_and_bleu(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    out = tmp_path / "folder" / "ours.en"
    assert main([str(run.path), "--out", str(out), "--device", "cpu", "--examples", "2"]) == 0
    said = capsys.readouterr()
    ours, references = out.read_text().splitlines(), toy_pairs(200, 20).test_lines.target
    assert len(ours) == len(references) == 20
    german = [pair[0] for pair in translation_pairs(0, 240)[220:]]
    shown = [f"source:    {german[i]}\nreference: {references[i]}\nours:      {ours[i]}\n" for i in range(2)]
    score = sacrebleu.corpus_bleu(ours, [references], lowercase=True).score
    measure = f"BLEU {score:.2f} on 20 sentences of embedded test, beam 5, alpha 0.6"
    signature = f"sacrebleu: nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert said.out.splitlines() == "\n".join([*shown, measure, signature]).splitlines()
    assert said.err == f"{run.run_id}: after 1 of 1 epochs, embedded data\n"


def test_run_is_found_by_id_and_validation_part_is_translated(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    store = ["--store", str(run.path.parents[1])]
    assert main([run.run_id, *store, "--part", "val", "--beam", "1", "--examples", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"source:    {translation_pairs(0, 201)[200][0]}\n")
    assert "on 20 sentences of embedded val, beam 1" in said


def test_user_sentences_are_translated_line_by_line(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = [str(run.path), "--device", "cpu", "--longest", "7"]
    assert main([*common, "--text", SENTENCE, "--text", "Qwert schläft ."]) == 0
    said = capsys.readouterr()
    first, second = said.out.splitlines()
    assert "not in the vocabulary: Qwert" in said.err
    (tmp_path / "lines.de").write_text(f"{SENTENCE}\n\nQwert schläft .\n")
    assert main([*common, "--input", str(tmp_path / "lines.de"), "--batch-size", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [first, "", second]
    monkeypatch.setattr(sys, "stdin", io.StringIO(SENTENCE))
    assert main([*common, "--input", "-", "--out", str(tmp_path / "out.en")]) == 0
    assert capsys.readouterr().out.splitlines() == [first]
    assert (tmp_path / "out.en").read_text() == f"{first}\n"


def test_weights_and_vocabulary_come_from_checkpoint(damaged: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(damaged.path), "--device", "cpu", "--text", SENTENCE, "--longest", "4"]
    data = damaged.load_checkpoint()
    assert data is not None
    state = torch.load(io.BytesIO(data), weights_only=True)
    # The features have the same direction for any input, and only one word's embedding is not zero.
    network = state["networks"]["network"]
    word = toy_pairs(200, 20, minimum=3).vocabulary.ids["goats"]
    network["decoder.0.feed_forward.outer.bias"].zero_()[0] = 1e4
    network["embedding.weight"].zero_()[word, 0] = 10
    save(damaged, state)
    assert main(words) == 0
    assert capsys.readouterr().out == "goats goats goats goats\n"


def save(run: RunDirectory, state: object) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    run.save_checkpoint(buffer.getvalue(), {"epoch": 9})


def test_missing_run_or_checkpoint_gives_one_line_error(
    damaged: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "error: no run is called 'nope' (in " in refused(capsys, "nope", "--store", str(damaged.path.parent))
    damaged.drop_checkpoints()
    line = refused(capsys, str(damaged.path))
    assert f"{damaged.run_id} has no checkpoint; to train it again, add --retrain, or: nero train " in line


def test_damaged_checkpoint_gives_one_line_error(damaged: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    data = damaged.load_checkpoint()
    assert data is not None
    state = torch.load(io.BytesIO(data), weights_only=True)
    for path in damaged.path.glob("checkpoint-*.pt"):
        path.write_bytes(path.read_bytes()[:-100])
    assert refused(capsys, str(damaged.path)).endswith("its checkpoint is damaged")
    damaged.save_checkpoint(b"whole, and no checkpoint", {"epoch": 9})
    assert refused(capsys, str(damaged.path)).endswith("its checkpoint is damaged")
    save(damaged, [1])
    assert refused(capsys, str(damaged.path)).endswith("its checkpoint is damaged")
    state["networks"]["network"]["embedding.weight"][5, 5] = torch.nan
    save(damaged, state)
    assert refused(capsys, str(damaged.path)).endswith("weights that are not finite")
    state["networks"]["network"]["embedding.weight"] = torch.zeros(7, 16)
    save(damaged, state)
    assert "does not fit its config.yaml" in refused(capsys, str(damaged.path))


def test_other_task_or_invalid_config_gives_one_line_error(
    damaged: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    config = damaged.read_config()
    damaged.write_config({**config, "task_name": "cifar10_vgg11", "task": {"_target_": "nero.tasks.cifar10.CIFAR10"}})
    assert refused(capsys, str(damaged.path)).endswith("is a run of cifar10_vgg11, not of a Translation task")
    damaged.write_config({**config, "task": {"_target_": "nero.tasks.no.Such"}})
    line = refused(capsys, str(damaged.path))
    assert line.endswith("task._target_ is nero.tasks.no.Such, which this code does not have")
    damaged.write_config({"task": {}})
    assert "config.yaml is not the config of a run" in refused(capsys, str(damaged.path))
    for text in ("a: [", "- a list", "words"):
        (damaged.path / "config.yaml").write_text(text)
        assert "config.yaml cannot be read" in refused(capsys, str(damaged.path))


def test_obsolete_setting_gives_one_line_error(damaged: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    config = damaged.read_config()
    config["task"]["network"]["wings"] = 2
    (damaged.path / "config.yaml").write_text(yaml.safe_dump(config))
    assert "wings" in refused(capsys, str(damaged.path))


def test_missing_data_error_names_download_command(
    damaged: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged.write_config({**damaged.read_config(), "data": "real"})
    line = refused(capsys, str(damaged.path), "--data-root", str(tmp_path))
    assert "multi30k" in line
    assert "nero data multi30k" in line


def test_missing_input_file_or_package_gives_one_line_error(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nowhere.de" in refused(capsys, str(run.path), "--input", str(tmp_path / "nowhere.de"))
    for name in ("sacrebleu", "sacrebleu.metrics", "spacy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install -e '.[suite]'" in refused(capsys, str(run.path))
    # spaCy is only needed for real text.
    assert main([str(run.path), "--text", SENTENCE, "--device", "cpu"]) == 0
    with pytest.raises(ValueError, match=r"pip install -e '\.\[suite\]'"):
        split_words([SENTENCE], "real")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_gives_error(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path), "--device", "cuda"]) == 2
    assert "torch sees no CUDA GPU here; use --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--beam", "0"], ["--alpha", "-1"], ["--alpha", "nan"], ["--text", "a", "--input", "b"], ["--part", "x"]]
)
def test_invalid_options_are_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", *words])
    assert stop.value.code == 2
    assert words[-2] in capsys.readouterr().err
