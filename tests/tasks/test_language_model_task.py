"""Tests of language modelling on the embedded grammar: batches, metrics and resumed runs."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.data.sources import MissingData
from nero.data.text.corpus import grammar_corpus
from nero.engine.seeding import SeedStreams
from nero.tasks import language_model
from nero.tasks.base import Context
from nero.tasks.language_model import LanguageModelling, perplexity
from nero.train.build import build_task
from nero.train.run import train
from support.real_data import root_with
from support.whole_runs import LANGUAGE_RATES, assert_cut_runs_go_on, assert_follows_the_cpu, assert_one_line, prepare

CPU = torch.device("cpu")
TASK = "wikitext2_transformer"
SMALL = ("task.train_examples=60", "task.batch_size=5", "task.block=11", "task.epochs=3", "task.network.width=8")

STILL = (*SMALL, "task.network.dropout=0")


class Bigram(nn.Module):
    """A bigram model, which is fast and behaves the same in training and evaluation."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 6)
        self.output = nn.Linear(6, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)


def make_task(train_examples: int | None = 60, batch_size: int = 5, block: int = 11) -> LanguageModelling:
    torch.manual_seed(0)
    context = Context(CPU, SeedStreams(0), "embedded", Path())
    return LanguageModelling(context, Bigram, 3, batch_size, block, 4, train_examples)


def mean_loss(task: LanguageModelling, inputs: Tensor, targets: Tensor) -> float:
    logits = task.network.output(task.network(inputs))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def test_batches_are_consecutive_blocks_of_every_stream() -> None:
    task = make_task()
    text = grammar_corpus(60, 10).train
    length = len(text) // 5
    batches = list(task.batches(0))
    assert len(batches) == task.steps_per_epoch == -(-(length - 1) // 11)
    assert {tuple(inputs.shape) for inputs, _ in batches[:-1]} == {(5, 11)}
    assert 0 < batches[-1][0].shape[1] < 11, "what is left over is a batch too"
    for stream in range(5):
        piece = text[stream * length : (stream + 1) * length]
        assert torch.equal(torch.cat([inputs[stream] for inputs, _ in batches]), piece[:-1])
        assert torch.equal(torch.cat([targets[stream] for _, targets in batches]), piece[1:])


def test_epoch_can_resume_midway() -> None:
    task = make_task()
    whole = list(task.batches(1))
    for start in (3, len(whole) - 1):
        rest = list(task.batches(1, start))
        assert len(rest) == len(whole) - start
        assert all(
            torch.equal(a, b) for x, y in zip(rest, whole[start:], strict=True) for a, b in zip(x, y, strict=True)
        )


def test_evenly_divided_text_has_no_smaller_last_batch() -> None:
    task = make_task(block=1)
    assert task.rest is None
    assert {tuple(inputs.shape) for inputs, _ in task.batches(0)} == {(5, 1)}


def test_loss_is_mean_over_words() -> None:
    task = make_task()
    for batch in [*task.batches(0)][-2:]:
        [(name, loss)] = task.losses(batch)
        assert name == "network"
        assert loss.item() == pytest.approx(mean_loss(task, *batch), rel=1e-5)


def test_perplexity_weights_all_words_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    total = count = 0.0
    for batch in task.batches(0):
        words = batch[1].numel()
        total, count = total + words * mean_loss(task, *batch), count + words
        for _, _loss in task.losses(batch):
            pass
    metrics = task.evaluate()
    assert metrics["train/loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["train/perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    text = grammar_corpus(60, 10).valid
    length = len(text) // 4
    streams = text[: 4 * length].view(4, length)
    # The bigram model sees one word at a time, so the division into blocks does not matter.
    assert metrics["val/loss"] == pytest.approx(mean_loss(task, streams[:, :-1], streams[:, 1:]), rel=1e-5)
    assert metrics["val/perplexity"] == pytest.approx(math.exp(metrics["val/loss"]), rel=1e-6)
    assert task.network.training
    monkeypatch.setattr(language_model, "EVALUATION_TOKENS", 30)
    assert task.loss_over(task.valid) == pytest.approx(metrics["val/loss"], rel=1e-6)


def test_validation_context_is_limited_to_one_block(tmp_path: Path) -> None:
    config, _ = prepare(tmp_path, TASK, *SMALL)
    task = build_task(config, CPU)
    task.network.eval()
    text = grammar_corpus(60, 10).valid
    length = len(text) // 10
    streams = text[: 10 * length].view(10, length)
    total = 0.0
    with torch.no_grad():
        for start in range(0, length - 1, 11):
            inputs = streams[:, start : min(start + 11, length - 1)]
            targets = streams[:, start + 1 : start + 1 + inputs.shape[1]]
            total += mean_loss(task, inputs, targets) * targets.numel()
    assert task.loss_over(task.valid) == pytest.approx(total / (10 * (length - 1)), rel=1e-5)


def test_perplexity_overflow_is_infinite() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(700.0) < math.inf
    assert perplexity(1e4) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_run_logs_final_perplexity(tmp_path: Path) -> None:
    config, run = prepare(tmp_path, TASK, *SMALL, "task.schedule.milestones=[2]")
    outcome = train(config)
    assert outcome["status"] == "done"
    records = run.read_metrics()
    assert outcome["metric"] == {"key": "val/perplexity", "goal": "min", "label": "perplexity"}
    assert outcome["final"] == records[-1]["val/perplexity"]
    assert [record["lr"] for record in records] == pytest.approx([0.01, 0.01, 0.001]), "a tenth after the milestone"


def test_paper_schedule_drops_after_epoch_ten(tmp_path: Path) -> None:
    from hydra.utils import instantiate

    schedule = instantiate(prepare(tmp_path, TASK)[0].cfg.task.schedule)
    assert [schedule(epoch) for epoch in (0, 9.99, 10, 19)] == pytest.approx([1, 1, 0.1, 0.1])


def test_only_sgd_has_gradient_clipping(tmp_path: Path) -> None:
    for optim in ("nero", "sgd", "adam", "lamb"):
        config, _ = prepare(tmp_path, TASK, f"optim={optim}")
        assert config.cfg.optim.get("clip_norm") == (0.25 if optim == "sgd" else None)


@pytest.mark.slow
def test_interrupted_run_ends_like_uninterrupted_run(tmp_path: Path) -> None:
    assert_cut_runs_go_on(tmp_path, TASK, *SMALL)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_precision_trains(tmp_path: Path, precision: str) -> None:
    config, _ = prepare(tmp_path, TASK, *SMALL, f"precision={precision}", "task.epochs=1")
    assert train(config)["status"] == "done"


@pytest.mark.slow
def test_language_model_learns_grammar(tmp_path: Path) -> None:
    """A unigram model of this text has a perplexity of at least 80."""
    words = ["task.train_examples=1200", "task.epochs=3", "task.network.width=32", "task.network.dropout=0"]
    config, _ = prepare(tmp_path, TASK, *words, "task.schedule.milestones=[2]", "optim=adam", "optim.lr=0.003")
    assert train(config)["final"] < 40


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("task.batch_size=0", "task: batch_size must be a positive integer, not 0"),
        ("task.block=-3", "task: block must be a positive integer, not -3"),
        ("task.evaluation_batch=1.5", "task: evaluation_batch must be a positive integer, not 1.5"),
        ("task.train_examples=0", "task: train_examples must be a positive integer, not 0"),
        ("task.batch_size=100000", "task: batch_size: "),
        ("task.network.heads=3", "task: network: width must be a multiple of heads: 8 is not a multiple of 3"),
        ("+task.network.colour=3", "task: network: .*unexpected keyword argument 'colour'"),
    ],
)
def test_invalid_setting_gives_one_line_error(tmp_path: Path, word: str, message: str) -> None:
    assert_one_line(tmp_path, TASK, [*SMALL, word], message)


def test_missing_data_error_names_download_command(tmp_path: Path) -> None:
    config, _ = prepare(tmp_path, TASK, "data=real", f"data_root={tmp_path / 'none'}")
    with pytest.raises(MissingData, match=r"nero data wikitext2"):
        train(config)


@pytest.mark.data
def test_wikitext2_epoch_has_2984_steps(tmp_path: Path) -> None:
    root = root_with("wikitext2")
    config, _ = prepare(tmp_path, TASK, "data=real", f"data_root={root}")
    task = build_task(config, CPU)
    assert (task.steps_per_epoch, tuple(task.inputs.shape), tuple(task.rest[0].shape)) == (
        2984,
        (2983, 20, 35),
        (20, 25),
    )
    parameters = list(task.network.parameters())
    assert (len(parameters), len(task.vocabulary)) == (19, 33_278)
    assert sum(targets.numel() for _, targets in task.valid) == 10 * (217_646 // 10 - 1)


@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["nero", "sgd", "adam", "lamb"])
def test_captured_run_matches_cpu_run(tmp_path: Path, optim: str) -> None:
    assert_follows_the_cpu(tmp_path, TASK, LANGUAGE_RATES[optim], [*STILL, f"optim={optim}"])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("optim", ["nero", "sgd"])
def test_compiled_and_captured_run_matches_cpu_run(tmp_path: Path, optim: str) -> None:
    words = [*STILL, f"optim={optim}"]
    assert_follows_the_cpu(tmp_path, TASK, LANGUAGE_RATES[optim], words, gpu=["machine.compile=true"])
