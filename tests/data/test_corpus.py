"""Tests of text as token ids and of its division into blocks, against torchtext's BPTTIterator."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nero.data.download.files import CheckedFile
from nero.data.sources import DATASETS, Dataset, MissingData, default_root
from nero.data.synthetic.translation import english_sentences
from nero.data.text.corpus import (
    END_OF_LINE,
    Corpus,
    blocks,
    corpus_from_lines,
    grammar_corpus,
    load_wikitext2,
    streams,
)
from support.real_data import root_with

PARTS = ("train", "valid", "test")
# Includes characters that `str.splitlines` treats as line ends and `str.split` as spaces: they only separate words.
LINES = st.lists(st.lists(st.sampled_from(["a", "b", "<unk>", "é", "", " ", "\t", "\x85", "\u2028"]), max_size=6))


def words_of(lines: Sequence[str]) -> list[str]:
    """The words of all lines, with END_OF_LINE after each line."""
    return [word for line in lines for word in (*line.split(), END_OF_LINE)]


def tokens(count: int) -> Tensor:
    return torch.arange(count) * 7 + 3


@given(parts=st.lists(LINES, min_size=3, max_size=3))
def test_lines_become_word_ids_followed_by_eos(parts: list[list[list[str]]]) -> None:
    train, valid, test = ([" ".join(words) for words in lines] for lines in parts)
    corpus = corpus_from_lines(train, valid, test)
    everything = [word for lines in (train, valid, test) for word in words_of(lines)]
    assert corpus.vocabulary.words == tuple(sorted(set(everything), key=everything.index))
    for part, lines in zip((corpus.train, corpus.valid, corpus.test), (train, valid, test), strict=True):
        assert part.dtype == torch.int64
        assert part.ndim == 1
        assert corpus.vocabulary.decode(part.tolist()) == words_of(lines)


def test_blank_line_becomes_single_eos() -> None:
    corpus = corpus_from_lines(["", " = A title = ", " ", "a  b"], ["b c"], [])
    assert corpus.vocabulary.words == ("<eos>", "=", "A", "title", "a", "b", "c")
    assert corpus.train.tolist() == [0, 1, 2, 3, 1, 0, 0, 4, 5, 0]
    assert corpus.valid.tolist() == [5, 6, 0]
    assert corpus.test.tolist() == []


def install_wikitext2(monkeypatch: pytest.MonkeyPatch, root: Path, texts: dict[str, str]) -> None:
    contents = {f"wikitext-2/wiki.{part}.tokens": texts[part].encode() for part in PARTS}
    files = tuple(CheckedFile.of(path, content) for path, content in contents.items())
    monkeypatch.setitem(DATASETS, "wikitext2", Dataset(files, origins=()))
    for file in files:
        file.put(root, contents[file.path])


def test_load_wikitext2_reads_all_three_splits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = {"train": " \n = Töpfe = \n \n a\x85 b\u2028a \n", "valid": "b\r\nc\n\n", "test": "no newline at the end"}
    install_wikitext2(monkeypatch, tmp_path, texts)
    corpus = load_wikitext2(tmp_path)
    words = {part: corpus.vocabulary.decode(getattr(corpus, part).tolist()) for part in PARTS}
    assert words["train"] == ["<eos>", "=", "Töpfe", "=", "<eos>", "<eos>", "a", "b", "a", "<eos>"]
    assert words["valid"] == ["b", "<eos>", "c", "<eos>", "<eos>"]
    assert words["test"] == ["no", "newline", "at", "the", "end", "<eos>"]


@pytest.mark.parametrize(("lines", "kept"), [(0, 0), (1, 1), (2, 5), (3, 8), (4, 8)])
def test_train_lines_limit_does_not_change_vocabulary(
    lines: int, kept: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_wikitext2(monkeypatch, tmp_path, {"train": "\na b c\nc d\n", "valid": "e\n", "test": "f\n"})
    whole, cut = load_wikitext2(tmp_path), load_wikitext2(tmp_path, train_lines=lines)
    assert cut.vocabulary == whole.vocabulary
    assert len(whole.train) == 8
    assert torch.equal(cut.train, whole.train[:kept])
    assert cut.train.untyped_storage().nbytes() == kept * 8 or kept == 8
    assert torch.equal(cut.valid, whole.valid)
    assert torch.equal(cut.test, whole.test)


def test_load_wikitext2_error_names_download_command(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"nero data wikitext2 --root"):
        load_wikitext2(tmp_path)


def test_grammar_corpus_splits_are_consecutive_slices() -> None:
    corpus, again = grammar_corpus(40, 15), grammar_corpus(40, 15)
    joined = torch.cat([corpus.train, corpus.valid, corpus.test]).tolist()
    lines = english_sentences(0, 70)
    assert corpus.vocabulary.decode(joined) == words_of(lines)
    assert len(corpus.train) == len(words_of(lines[:40]))
    assert len(corpus.valid) == len(words_of(lines[40:55]))
    assert corpus.vocabulary == again.vocabulary
    assert torch.equal(corpus.train, again.train)


@given(count=st.integers(1, 9), length=st.integers(2, 30), more=st.integers(0, 8))
def test_streams_are_contiguous_slices_of_text(count: int, length: int, more: int) -> None:
    text = tokens(count * length + more % count)
    rows = streams(text, count)
    assert rows.shape == (count, length)
    assert rows.is_contiguous()
    assert torch.equal(rows.flatten(), text[: count * length])


@pytest.mark.parametrize(("length", "count"), [(0, 1), (1, 1), (19, 10)])
def test_too_few_tokens_are_refused(length: int, count: int) -> None:
    with pytest.raises(ValueError, match="streams"):
        streams(tokens(length), count)


@given(count=st.integers(1, 6), stream=st.integers(2, 40), length=st.integers(1, 45))
def test_blocks_cover_every_target_token_once(count: int, stream: int, length: int) -> None:
    rows = streams(tokens(count * stream), count)
    (inputs, targets), rest = blocks(rows, length)
    assert inputs.shape == targets.shape == ((stream - 1) // length, count, length)
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    read = [*inputs, *([rest[0]] if rest else [])]
    predicted = [*targets, *([rest[1]] if rest else [])]
    assert torch.equal(torch.cat(read, 1), rows[:, :-1])
    assert torch.equal(torch.cat(predicted, 1), rows[:, 1:])
    if rest is None:
        assert (stream - 1) % length == 0
    else:
        assert 0 < rest[0].shape[1] < length
        assert rest[0].is_contiguous()
        assert rest[1].is_contiguous()


@settings(max_examples=40)
@given(count=st.integers(1, 6), stream=st.integers(2, 40), length=st.integers(1, 45))
def test_blocks_match_torchtext_bptt_iterator(count: int, stream: int, length: int) -> None:
    # torchtext pads the last stream where `streams` trims the text, so the text length is a multiple of `count`.
    data = pytest.importorskip("torchtext.data")
    words = words_of(english_sentences(0, 40))[: count * stream]
    field = data.Field()
    field.build_vocab([words])
    dataset = data.Dataset([data.Example.fromlist([words], [("text", field)])], [("text", field)])
    expected = [(b.text.t(), b.target.t()) for b in data.BPTTIterator(dataset, batch_size=count, bptt_len=length)]

    ours = torch.tensor([field.vocab.stoi[word] for word in words])
    (inputs, targets), rest = blocks(streams(ours, count), length)
    found = [*zip(inputs, targets, strict=True), *([rest] if rest else [])]
    assert len(found) == len(expected)
    for block, batch in zip(found, expected, strict=True):
        assert torch.equal(block[0], batch[0])
        assert torch.equal(block[1], batch[1])


@pytest.fixture(scope="module")
def wikitext2() -> Corpus:
    return load_wikitext2(root_with("wikitext2"))


@pytest.mark.data
def test_real_wikitext2(wikitext2: Corpus) -> None:
    assert len(wikitext2.vocabulary) == 33_278
    assert [len(part) for part in (wikitext2.train, wikitext2.valid, wikitext2.test)] == [2_088_628, 217_646, 245_569]
    for part in PARTS:
        path = default_root() / "wikitext-2" / f"wiki.{part}.tokens"
        with path.open(encoding="utf-8") as lines:
            assert wikitext2.vocabulary.decode(getattr(wikitext2, part).tolist()) == words_of(list(lines))
    # The paper's number of training steps per epoch: 20 streams in blocks of 35 words.
    (inputs, _), rest = blocks(streams(wikitext2.train, 20), 35)
    assert len(inputs) == 2_983
    assert rest is not None
    assert rest[0].shape == (20, 25)


@pytest.mark.data
def test_train_lines_limit_keeps_vocabulary_of_real_wikitext2(wikitext2: Corpus) -> None:
    part = load_wikitext2(default_root(), train_lines=1000)
    assert part.vocabulary == wikitext2.vocabulary
    assert 10_000 < len(part.train) < len(wikitext2.train)
    assert torch.equal(part.train, wikitext2.train[: len(part.train)])
    assert (part.train == part.vocabulary.ids[END_OF_LINE]).sum() == 1000
