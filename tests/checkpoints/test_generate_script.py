"""Tests of `nero generate` on a run trained on embedded data."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from nero.cli.trained import generate as main
from nero.data.text.corpus import grammar_corpus
from nero.runs.store import RunDirectory
from support.whole_runs import assert_only_runs_of_a_kind, trained

TINY = (
    "task=wikitext2_transformer",
    "data=embedded",
    "task.train_examples=200",
    "task.epochs=3",
    "task.network.width=16",
    "task.network.inner=16",
    "optim=adam",
    "optim.lr=0.01",
    "machine=cpu",
)
Generate = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("store"), TINY)


@pytest.fixture
def generate(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> Generate:
    def call(*words: str) -> str:
        assert main([str(run.path), "--device", "cpu", *words]) == 0
        return capsys.readouterr().out

    return call


def test_generate_writes_requested_number_of_known_words(generate: Generate) -> None:
    text = generate("--words", "400")
    words = text.removesuffix("\n").replace("\n", " <eos> ").split()
    assert len(words) == 400
    assert set(words) <= set(grammar_corpus(200, 20).vocabulary.words)
    assert text.count("\n") > 1


def test_text_is_determined_by_seed(generate: Generate) -> None:
    assert generate("--seed", "3") == generate("--seed", "3") != generate("--seed", "4")
    assert len(generate().split()) > 80


def test_zero_temperature_ignores_seed(generate: Generate) -> None:
    cold = ["--temperature", "0", "--words", "20", "--prompt", "the"]
    assert generate(*cold, "--seed", "1") == generate(*cold, "--seed", "2") == generate(*cold, "--top-k", "1")


def test_greedy_text_matches_network(generate: Generate, run: RunDirectory) -> None:
    """The reference loads the checkpoint into a network and decodes in a plain loop."""
    from nero.models.language_model import LanguageModel

    vocabulary = grammar_corpus(200, 20).vocabulary
    network = LanguageModel(len(vocabulary), width=16, inner=16).eval()
    (place,) = run.path.glob("checkpoint-*.pt")
    network.load_state_dict(torch.load(place, weights_only=True)["networks"]["network"])
    text = vocabulary.encode(["<eos>", "the", "old"])
    for _ in range(40):  # longer than the block of 35
        text.append(int(network.output(network(torch.tensor([text[-35:]]))[0, -1]).argmax()))
    shown = " ".join(vocabulary.decode(text[1:])).replace(" <eos> ", "\n").replace(" <eos>", "\n")
    assert generate("--temperature", "0", "--words", "40", "--prompt", "the old") == f"{shown}\n"


def test_evaluated_perplexity_matches_logged_perplexity(generate: Generate, run: RunDirectory) -> None:
    summary = run.read_summary()
    assert summary is not None
    validation, test = generate("--evaluate", "--words", "0").splitlines()
    assert validation == f"validation perplexity {summary['final_metrics']['val/perplexity']:.2f}"
    assert test.startswith("test perplexity ")
    assert test.split()[-1] != validation.split()[-1]


@torch.no_grad()
def test_test_perplexity_matches_plain_loop(generate: Generate, run: RunDirectory) -> None:
    from nero.models.language_model import LanguageModel

    corpus = grammar_corpus(200, 20)
    network = LanguageModel(len(corpus.vocabulary), width=16, inner=16).eval()
    (place,) = run.path.glob("checkpoint-*.pt")
    network.load_state_dict(torch.load(place, weights_only=True)["networks"]["network"])
    length = len(corpus.test) // 10
    total, count = 0.0, 0
    for stream in corpus.test[: 10 * length].view(10, length):
        for start in range(0, length - 1, 35):
            stretch = stream[start : start + 36]
            logits = network.output(network(stretch[None, :-1]))[0]
            total += float(nn.functional.cross_entropy(logits, stretch[1:], reduction="sum"))
            count += len(stretch) - 1
    said = float(generate("--evaluate", "--words", "0").split()[-1])
    assert said == pytest.approx(math.exp(total / count), abs=0.011)


def test_unknown_prompt_word_gives_one_line_error(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path), "--device", "cpu", "--prompt", "the qwert"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: 'qwert' is not in the vocabulary" in said.err.splitlines()[-1]


def test_generate_rejects_runs_of_other_tasks(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_only_runs_of_a_kind(main, run, "LanguageModelling", tmp_path, capsys)


@pytest.mark.parametrize(
    "words", [["--words", "-1"], ["--temperature", "hot"], ["--temperature", "-1"], ["--top-k", "x"]]
)
def test_invalid_options_are_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", *words])
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err
