"""Tests of vocabularies, against torchtext's Vocab."""

from collections import Counter
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nero.data.synthetic.translation import english_sentences
from nero.data.text.vocabulary import Vocabulary, frequent

WORDS = st.sampled_from(["der", "Der", "die", "dass", "daß", "zwölf", "z", "", " ", "été", "日本", "a", "b"])
SENTENCES = st.lists(st.lists(WORDS, max_size=8), max_size=12)


def test_ids_are_list_indices() -> None:
    vocabulary = Vocabulary(("<unk>", "a", "b"), unknown=0)
    assert len(vocabulary) == 3
    assert vocabulary.ids == {"<unk>": 0, "a": 1, "b": 2}
    assert vocabulary.ids is vocabulary.ids
    assert vocabulary.encode(["b", "c", "a", "b"]) == [2, 0, 1, 2]
    assert vocabulary.decode([2, 0, 1]) == ["b", "<unk>", "a"]
    assert vocabulary.encode([]) == vocabulary.decode([]) == []


def test_encode_raises_for_unknown_word_in_closed_vocabulary() -> None:
    vocabulary = Vocabulary(("a", "b"))
    assert vocabulary.encode("abba") == [0, 1, 1, 0]
    with pytest.raises(KeyError, match="'c'"):
        vocabulary.encode(["a", "c"])


def test_vocabulary_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Vocabulary(("a",)).words = ("b",)  # type: ignore[misc]


def test_decode_raises_for_id_out_of_range() -> None:
    with pytest.raises(IndexError):
        Vocabulary(("a", "b")).decode([0, 2])


@given(words=st.lists(st.text(max_size=3), unique=True, min_size=1), data=st.data())
def test_decode_inverts_encode(words: list[str], data: st.DataObject) -> None:
    vocabulary = Vocabulary(tuple(words))
    text = data.draw(st.lists(st.sampled_from(words), max_size=20))
    assert vocabulary.decode(vocabulary.encode(text)) == text


@given(sentences=SENTENCES, minimum=st.integers(0, 4))
def test_frequent_words_match_torchtext_order(sentences: list[list[str]], minimum: int) -> None:
    vocab = pytest.importorskip("torchtext.vocab")
    counts = Counter(word for sentence in sentences for word in sentence)
    assert frequent(sentences, minimum) == vocab.Vocab(counts, min_freq=minimum, specials=[]).itos


def test_frequent_words_of_longer_text_match_torchtext_order() -> None:
    data = pytest.importorskip("torchtext.data")
    sentences = [line.split() for line in english_sentences(0, 300)]
    field = data.Field()
    field.build_vocab(sentences, min_freq=3)
    vocabulary = Vocabulary(("<unk>", "<pad>", *frequent(iter(sentences), 3)), unknown=0)
    assert list(vocabulary.words) == field.vocab.itos
    assert 50 < len(vocabulary) < len(frequent(sentences, 1))
    other = [line.split() for line in english_sentences(1, 50)]
    encoded = [vocabulary.encode(words) for words in other]
    assert encoded == [[field.vocab.stoi[word] for word in words] for words in other]
    assert any(0 in ids for ids in encoded)
