"""Tests of translation on the embedded grammar: batches, metrics and resumed runs."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor

from nero.data.sources import MissingData
from nero.data.text.parallel_text import PAD, toy_pairs
from nero.models.attention import EMPTY
from nero.plans.config import ConfigError
from nero.tasks import translation
from nero.tasks.translation import Translation
from nero.train.build import build_task
from nero.train.run import train
from support.real_data import root_with
from support.whole_runs import LANGUAGE_RATES, assert_cut_runs_go_on, assert_follows_the_cpu, assert_one_line, prepare

CPU = torch.device("cpu")
TASK = "multi30k_transformer"
TRAIN, BATCH = 70, 16
SMALL = (
    f"task.train_examples={TRAIN}",
    f"task.batch_size={BATCH}",
    "task.epochs=3",
    "task.minimum_count=1",
    "task.padded_lengths=[8,16,24]",
    "task.network.width=8",
    "task.network.heads=2",
    "task.network.inner=8",
    "task.network.layers=1",
)


def make_task(tmp_path: Path, *words: str) -> Translation:
    task = build_task(prepare(tmp_path, TASK, *SMALL, *words)[0], CPU)
    assert isinstance(task, Translation)
    return task


def sentences(tokens: Tensor) -> list[list[int]]:
    """Rows without padding; rows that are only padding are omitted."""
    rows = [[token for token in row if token != PAD] for row in tokens.tolist()]
    return [row for row in rows if row]


def test_epoch_has_every_pair_once_in_few_shapes(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    batches = list(task.batches(0))
    assert len(batches) == task.steps_per_epoch == 5
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for source, target, source_places, target_places in batches:
        length = source.shape[1]
        looked_at = [(source_places, source), (target_places, target[:, 1:])]
        for places, side in looked_at:
            assert places[places != EMPTY].tolist() == (side.flatten() != PAD).nonzero().flatten().tolist()
            assert len(places) % (4 * BATCH) == 0
        assert len(source_places) == len(target_places)
        assert length in (8, 16, 24) or length % 16 == 0
        assert (source.shape, target.shape) == ((BATCH, length), (BATCH, length + 1))
        assert all(row[: row.count(PAD) * -1 or None].count(PAD) == 0 for row in source.tolist()), "padding comes last"
        pairs = zip(sentences(source), sentences(target), strict=True)
        found.update((tuple(german), tuple(english)) for german, english in pairs)
    train_text = toy_pairs(TRAIN, 10).train
    assert found == Counter(zip(map(tuple, train_text.source), map(tuple, train_text.target), strict=True))


def test_larger_pool_reduces_padding(tmp_path: Path) -> None:
    def padding(*words: str) -> float:
        task = make_task(tmp_path, "task.train_examples=640", *words)
        batches = [*task.batches(0)]
        sources = [source for source, *_ in batches]
        return sum((source == PAD).sum().item() for source in sources) / sum(map(Tensor.numel, sources))

    assert padding("task.pool=100") < 0.6 * padding("task.pool=1")


def test_epochs_differ_and_are_reproducible_from_seed(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    first, second = [*task.batches(0)], [*task.batches(1)]
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True) if a[0].shape == b[0].shape)
    again = [*make_task(tmp_path).batches(1)]  # not prefetched during the previous epoch
    assert all(torch.equal(a, b) for x, y in zip(second, again, strict=True) for a, b in zip(x, y, strict=True))
    rest = [*make_task(tmp_path).batches(1, start=3)]
    assert all(torch.equal(a, b) for x, y in zip(rest, again[3:], strict=True) for a, b in zip(x, y, strict=True))
    other = [*make_task(tmp_path, "seed=1").batches(0)]
    assert not all(a[0].shape == b[0].shape and torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))
    list(task.batches(2))
    assert not task.prefetch, "nothing follows the last epoch"


def plain_sums(task: Translation, source: Tensor, target: Tensor, smoothing: float = 0.0) -> tuple[float, int]:
    """Summed loss and number of words, computed pair by pair without padding."""
    total, words = 0.0, 0
    for german, english in zip(sentences(source), sentences(target), strict=True):
        features = task.network(torch.tensor([german]), torch.tensor([english[:-1]]))
        logits = features[0] @ task.network.output_weight.T
        wanted = torch.tensor(english[1:])
        total += F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=smoothing).item()
        words += len(wanted)
    return total, words


def test_loss_is_sum_over_words_with_label_smoothing(tmp_path: Path) -> None:
    task = make_task(tmp_path, "task.network.dropout=0")
    total = words = 0.0
    for batch in task.batches(0):
        [(name, loss)] = task.losses(batch)
        wanted, count = plain_sums(task, *batch[:2], smoothing=0.1)
        assert name == "network"
        assert loss.item() == pytest.approx(wanted, rel=1e-5)
        total, words = total + wanted, words + count
    metrics = task.evaluate()
    assert metrics["train/loss"] == pytest.approx(total / words, rel=1e-5)
    assert metrics["train/perplexity"] == pytest.approx(math.exp(total / words), rel=1e-4)


def test_validation_has_no_smoothing_and_no_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path, "task.network.dropout=0.5")
    valid = toy_pairs(TRAIN, 10).valid
    task.network.eval()
    pairs = [
        (torch.tensor([german]), torch.tensor([english]))
        for german, english in zip(valid.source, valid.target, strict=True)
    ]
    sums = [plain_sums(task, *pair) for pair in pairs]
    task.network.train()
    metrics = task.evaluate()
    wanted = sum(total for total, _ in sums) / sum(words for _, words in sums)
    assert metrics["val/loss"] == pytest.approx(wanted, rel=1e-5)
    assert metrics["val/perplexity"] == pytest.approx(math.exp(wanted), rel=1e-4)
    assert task.network.training
    monkeypatch.setattr(translation, "EVALUATION_BATCH", 3)
    again = make_task(tmp_path, "task.network.dropout=0.5")
    assert len(again.validation) == 4 > len(task.validation)
    assert again.validation_loss() == pytest.approx(wanted, rel=1e-5)


def test_run_logs_final_perplexity_and_learning_rate(tmp_path: Path) -> None:
    words = ["task.schedule.peak=2", "task.schedule.epochs=3"]
    config, run = prepare(tmp_path, TASK, *SMALL, *words)
    outcome = train(config)
    assert outcome["status"] == "done"
    records = run.read_metrics()
    assert outcome["metric"] == {"key": "val/perplexity", "goal": "min", "label": "perplexity"}
    assert outcome["final"] == records[-1]["val/perplexity"]
    assert [record["lr"] for record in records] == pytest.approx([0.005, 0.01, 0.0])
    assert records[2]["val/loss"] == records[1]["val/loss"], "the last epoch stands still, as the authors' did"


def test_paper_schedule_rises_to_epoch_50_and_falls_to_100(tmp_path: Path) -> None:
    schedule = instantiate(prepare(tmp_path, TASK)[0].cfg.task.schedule)
    assert [schedule(epoch - 1) for epoch in (1, 25, 50, 75, 100)] == pytest.approx([0.02, 0.5, 1, 0.5, 0])


@pytest.mark.slow
def test_interrupted_run_ends_like_uninterrupted_run(tmp_path: Path) -> None:
    assert_cut_runs_go_on(tmp_path, TASK, *SMALL)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_precision_trains(tmp_path: Path, precision: str) -> None:
    config, _ = prepare(tmp_path, TASK, *SMALL, f"precision={precision}", "task.epochs=1")
    assert train(config)["status"] == "done"


@pytest.mark.slow
def test_translator_learns_grammar(tmp_path: Path) -> None:
    words = ["task.train_examples=1500", "task.batch_size=32", "task.epochs=6", "task.minimum_count=1", "optim=adam"]
    words += ["task.network.width=64", "task.network.heads=4", "task.network.inner=64", "task.network.layers=1"]
    words += ["task.schedule.peak=3", "task.schedule.epochs=6", "optim.lr=0.003", "task.network.scale_embedding=true"]
    words += ["+task.network.fused=false"]  # Triton's interpreter would take minutes
    config, _ = prepare(tmp_path, TASK, *words)
    assert train(config)["final"] < 12


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("task.batch_size=0", "task: batch_size must be a positive integer, not 0"),
        ("task.pool=0", "task: pool must be a positive integer, not 0"),
        ("task.minimum_count=0", "task: minimum_count must be a positive integer, not 0"),
        ("task.padded_lengths=[8,0]", "task: padded_lengths must be a positive integer, not 0"),
        ("task.smoothing=1", "task: smoothing must be at least 0 and below 1, not 1"),
        ("task.smoothing=-0.1", "task: smoothing must be at least 0 and below 1, not -0.1"),
        ("task.smoothing=much", "task.smoothing must be a number, not 'much'"),
        ("task.train_examples=-2", "task: train_examples must be a positive integer, not -2"),
        ("task.network.heads=3", "task: network: width must be a multiple of heads: 8 is not a multiple of 3"),
    ],
)
def test_invalid_setting_gives_one_line_error(tmp_path: Path, word: str, message: str) -> None:
    assert_one_line(tmp_path, TASK, [*SMALL, word], message)


def test_missing_data_error_names_download_command(tmp_path: Path) -> None:
    config, _ = prepare(tmp_path, TASK, "data=real", f"data_root={tmp_path / 'none'}")
    with pytest.raises(MissingData, match=r"nero data multi30k"):
        train(config)


@pytest.mark.data
def test_multi30k_epoch_has_227_steps_in_few_shapes(tmp_path: Path) -> None:
    root = root_with("multi30k")
    config, _ = prepare(tmp_path, TASK, "data=real", f"data_root={root}", "task.network.layers=1")
    task = build_task(config, CPU)
    batches = [*task.batches(0)]
    assert (len(batches), task.steps_per_epoch, len(task.vocabulary)) == (227, 227, 9_521)
    assert {source.shape[1] for source, *_ in batches} <= {12, 16, 20, 24, 32, 48}
    assert {len(source) for source, *_ in batches} == {128}
    assert sum(len(sentences(source)) for source, *_ in batches) == 29_000
    assert len({tuple(part.shape for part in batch) for batch in batches}) <= 8
    assert Counter(len(places) for *_, places in batches).most_common(1) == [(2048, 226)]
    with pytest.raises(ConfigError, match="train_examples must be at most 29000, not 30000"):
        build_task(prepare(tmp_path, TASK, "data=real", f"data_root={root}", "task.train_examples=30000")[0], CPU)


STILL = (*SMALL, "task.network.dropout=0", "task.schedule.peak=1", "task.schedule.epochs=5")


@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["nero", "sgd", "adam", "lamb"])
def test_captured_run_matches_cpu_run(tmp_path: Path, optim: str) -> None:
    assert_follows_the_cpu(tmp_path, TASK, LANGUAGE_RATES[optim], [*STILL, f"optim={optim}"])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True])
def test_compiled_and_captured_run_matches_cpu_run(tmp_path: Path, fused: bool) -> None:
    words = [*STILL, "optim=nero", f"+task.network.fused={fused}", "task.network.width=32"]  # the kernels' minimum
    assert_follows_the_cpu(tmp_path, TASK, LANGUAGE_RATES["nero"], words, gpu=["machine.compile=true"])
