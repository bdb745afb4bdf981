"""Tests of sentence pairs as token ids, against torchtext's fields and vocabularies."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.test_tokenised import RAW, install
from nero.data.sources import MissingData, default_root
from nero.data.synthetic.translation import translation_pairs
from nero.data.text.parallel_text import (
    BEGIN,
    END,
    MARKS,
    PAD,
    UNKNOWN,
    Pairs,
    load_multi30k,
    merged_vocabulary,
    raw_lines,
    tokenised_multi30k,
    toy_pairs,
)
from nero.data.text.vocabulary import Vocabulary
from support.real_data import root_with

SENTENCES = st.lists(st.lists(st.sampled_from(["a", "b", "c", "<s>", "<unk>", "<blank>", "é", " "]), max_size=6))


def field_of(sentences: list[list[str]], minimum: int, **settings: Any) -> Any:
    """A torchtext field with the vocabulary of tokenised sentences."""
    data = pytest.importorskip("torchtext.data")
    field = data.Field(init_token="<s>", eos_token="</s>", pad_token="<blank>", batch_first=True, **settings)
    field.build_vocab([field.preprocess(words) for words in sentences], min_freq=minimum)
    return field


def merge(source: Any, target: Any) -> None:
    """Replace both torchtext vocabularies with their union, source words first."""
    words = list(dict.fromkeys([*source.vocab.itos, *target.vocab.itos]))
    for field in (source, target):
        field.vocab.itos = words
        field.vocab.stoi.clear()
        field.vocab.stoi.update({word: number for number, word in enumerate(words)})


def in_words(vocabulary: Vocabulary, sentences: list[list[int]]) -> list[list[str]]:
    return [vocabulary.decode(ids) for ids in sentences]


def test_special_tokens_have_first_ids() -> None:
    assert (PAD, UNKNOWN, BEGIN, END) == (0, 1, 2, 3)
    vocabulary = merged_vocabulary([], [], 1)
    assert vocabulary.words == MARKS == ("<blank>", "<unk>", "<s>", "</s>")
    assert vocabulary.unknown == UNKNOWN


def test_word_frequency_is_counted_per_language() -> None:
    german = [["in", "der", "hand"], ["in", "der", "stadt"]]
    english = [["in", "the", "hand"], ["the", "hand", "the"]]
    assert merged_vocabulary(german, english, 2).words[4:] == ("der", "in", "the", "hand")
    assert merged_vocabulary(german, english, 1).words[4:] == ("der", "in", "hand", "stadt", "the")


@given(source=SENTENCES, target=SENTENCES, minimum=st.integers(1, 3))
def test_merged_vocabulary_matches_torchtext(source: list[list[str]], target: list[list[str]], minimum: int) -> None:
    one, two = (field_of(sentences, minimum) for sentences in (source, target))
    # torchtext orders the special tokens differently: unknown, padding, begin, end.
    expected = [word for word in [*one.vocab.itos, *two.vocab.itos] if word not in MARKS]
    assert list(merged_vocabulary(source, target, minimum).words) == [*MARKS, *dict.fromkeys(expected)]


def test_pairs_have_a_length_and_a_first_part() -> None:
    pairs = Pairs([[2, 4, 3], [2, 3], [2, 5, 3]], [[2, 6, 3], [2, 7, 3], [2, 3]])
    assert len(pairs) == 3
    assert pairs.first(2) == Pairs([[2, 4, 3], [2, 3]], [[2, 6, 3], [2, 7, 3]])
    assert pairs.first(None) == pairs
    assert len(pairs.first(0)) == 0


def test_toy_pairs_splits_are_consecutive_slices() -> None:
    text = toy_pairs(60, 20)
    drawn = translation_pairs(0, 100)
    assert (len(text.train), len(text.valid), len(text.test)) == (60, 20, 20)
    assert text.test_lines.target == [english for _, english in drawn[80:]]
    assert text.valid_lines.source == [german for german, _ in drawn[60:80]]
    assert text == toy_pairs(60, 20)
    for part, pairs in ((text.train, drawn[:60]), (text.valid, drawn[60:80]), (text.test, drawn[80:])):
        for side, sentences in enumerate((part.source, part.target)):
            for words, ids in zip([pair[side].split() for pair in pairs], sentences, strict=True):
                assert (ids[0], ids[-1]) == (BEGIN, END)
                known = [word if word in text.vocabulary.ids else "<unk>" for word in words]
                assert text.vocabulary.decode(ids[1:-1]) == known
    assert not any(UNKNOWN in ids for ids in (*text.train.source, *text.train.target))
    assert any(UNKNOWN in ids for ids in (*text.valid.source, *text.valid.target))


@pytest.mark.parametrize("minimum", [1, 3])
def test_toy_pairs_match_torchtext_encoding(minimum: int) -> None:
    text = toy_pairs(150, 40, minimum)
    drawn = [[sentence.split() for sentence in pair] for pair in translation_pairs(0, 230)]
    fields = [field_of([pair[side] for pair in drawn[:150]], minimum) for side in (0, 1)]
    merge(*fields)
    for part, pairs in ((text.train, drawn[:150]), (text.valid, drawn[150:190]), (text.test, drawn[190:])):
        for side, sentences in enumerate((part.source, part.target)):
            assert in_words(text.vocabulary, sentences) == without_padding(fields[side], [pair[side] for pair in pairs])


def without_padding(field: Any, sentences: list[list[str]]) -> list[list[str]]:
    """Sentences encoded by torchtext and decoded to words again, up to the end token."""
    rows = [[field.vocab.itos[number] for number in row] for row in field.process(sentences).tolist()]
    return [row[: row.index("</s>") + 1] for row in rows]


def test_load_multi30k_reads_all_six_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    install(monkeypatch, tmp_path, RAW)
    text = load_multi30k(tmp_path, minimum=2)
    assert text.vocabulary.words[4:] == (".", ",", "ein", "a")
    assert (len(text.train), len(text.valid), len(text.test)) == (3, 1, 2)
    assert text.vocabulary.decode(text.train.source[0]) == ["<s>", "ein", "<unk>", "<unk>", "<unk>", ".", "</s>"]
    assert text.test_lines.target == ["A T-shirt.", "The U.S. street."]


def test_train_pairs_limit_changes_only_training_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("spacy")
    install(monkeypatch, tmp_path, RAW)
    whole, cut = load_multi30k(tmp_path, minimum=1), load_multi30k(tmp_path, minimum=1, train_pairs=2)
    assert cut.train == whole.train.first(2)
    assert cut.vocabulary == whole.vocabulary
    assert (cut.valid, cut.test) == (whole.valid, whole.test)


def test_load_multi30k_error_names_download_command(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"nero data multi30k --root"):
        load_multi30k(tmp_path)


def real_root() -> Path:
    return root_with("multi30k")


@pytest.mark.data
def test_real_multi30k() -> None:
    text = load_multi30k(real_root())
    assert len(text.vocabulary) == 9_521
    assert (len(text.train), len(text.valid), len(text.test)) == (29_000, 1_014, 1_000)
    assert text.test_lines.target == raw_lines(default_root(), "test_2016_flickr", "en")
    assert text.test_lines.target[0] == "A man in an orange hat starring at something."
    everything = [*text.train.source, *text.train.target, *text.valid.source, *text.valid.target]
    assert all((ids[0], ids[-1]) == (BEGIN, END) for ids in everything)
    assert all(min(ids) > PAD and max(ids) < 9_521 for ids in everything)
    assert max(map(len, everything)) == 46


@pytest.mark.data
def test_real_multi30k_matches_torchtext() -> None:
    words = tokenised_multi30k(real_root())
    text = load_multi30k(default_root())
    fields = [field_of(words["train"][language], 3, lower=True) for language in ("de", "en")]
    assert [len(field.vocab) - 4 for field in fields] == [5_370, 4_552]
    merge(*fields)
    assert set(fields[0].vocab.itos) == set(text.vocabulary.words)
    assert [w for w in fields[0].vocab.itos if w not in MARKS] == list(text.vocabulary.words[4:])
    for part, pairs in (("train", text.train.first(3_000)), ("val", text.valid), ("test_2016_flickr", text.test)):
        for field, language, ids in zip(fields, ("de", "en"), (pairs.source, pairs.target), strict=True):
            assert in_words(text.vocabulary, ids) == without_padding(field, words[part][language][: len(ids)])
