"""Tests of the synthetic data sets: deterministic, balanced, learnable, and without overlap of training and test."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from nero.data.images.arrays import ImageSet
from nero.data.synthetic.digits import digits
from nero.data.synthetic.shapes import shapes
from nero.data.synthetic.translation import (
    DEFINITE,
    INTRANSITIVE,
    NOUNS,
    THINGS,
    TRANSITIVE,
    english_sentences,
    translation_pairs,
)

MAKERS = pytest.mark.parametrize(("make", "shape"), [(digits, (28, 28)), (shapes, (3, 32, 32))])
Maker = Callable[..., ImageSet]


@MAKERS
def test_images_have_documented_shape_dtype_and_class_balance(make: Maker, shape: tuple[int, ...]) -> None:
    images = make(seed=3, train=205, test=37)
    assert images.train_images.shape == (205, *shape)
    assert images.test_images.shape == (37, *shape)
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert images.train_labels.dtype == images.test_labels.dtype == torch.int64
    assert images.classes == 10
    assert sorted(images.train_labels.bincount(minlength=10).tolist()) == [20] * 5 + [21] * 5
    assert sorted(images.test_labels.bincount(minlength=10).tolist()) == [3] * 3 + [4] * 7
    assert images.train_images.max() > 200
    assert images.train_labels.tolist() != sorted(images.train_labels.tolist())


@MAKERS
def test_images_are_determined_by_seed(make: Maker, shape: tuple[int, ...]) -> None:
    # More images than one chunk, so that the boundary between chunks is covered.
    one, two, other = (make(seed=seed, train=1030, test=20) for seed in (0, 0, 1))
    for field in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(one, field), getattr(two, field))
        assert not torch.equal(getattr(one, field), getattr(other, field))


@MAKERS
def test_images_do_not_depend_on_the_number_of_threads(make: Maker, shape: tuple[int, ...]) -> None:
    threads = torch.get_num_threads()
    one = make(train=64, test=0).train_images
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        two = make(train=64, test=0).train_images
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)


@MAKERS
def test_images_are_unique(make: Maker, shape: tuple[int, ...]) -> None:
    images = make(seed=0, train=1500, test=1500)
    seen = {image.numpy().tobytes() for part in (images.train_images, images.test_images) for image in part}
    assert len(seen) == 3000


def test_test_images_do_not_depend_on_training_set_size() -> None:
    assert torch.equal(digits(train=10, test=30).test_images, digits(train=500, test=30).test_images)


def test_digits_have_pixel_statistics_of_mnist() -> None:
    pixels = digits(train=3000, test=0).train_images.float() / 255
    assert pixels.mean().item() == pytest.approx(0.13, abs=0.02)
    assert pixels.std().item() == pytest.approx(0.31, abs=0.03)
    assert (pixels == 0).float().mean() > 0.7  # dark background


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"train": -1}, {"test": -5}])
@MAKERS
def test_negative_arguments_raise(make: Maker, shape: tuple[int, ...], arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        make(**{"train": 2, "test": 2, **arguments})


def accuracy(images: ImageSet, hidden: int, epochs: int) -> float:
    """Test accuracy of a network with one hidden layer, or of a linear one if hidden is 0."""
    torch.manual_seed(0)
    inputs = images.train_images[0].numel()
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10)] if hidden else [nn.Linear(inputs, 10)]
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    train, test = ((part.flatten(1).float() / 255 - 0.3) / 0.3 for part in (images.train_images, images.test_images))
    for _ in range(epochs):
        for chosen in torch.randperm(len(train)).split(100):
            optimizer.zero_grad()
            cross_entropy(network(train[chosen]), images.train_labels[chosen]).backward()
            optimizer.step()
    with torch.no_grad():
        return (network(test).argmax(1) == images.test_labels).float().mean().item()


def test_small_network_beats_linear_model_on_digits() -> None:
    images = digits(seed=0, train=6000, test=1000)
    small, linear = accuracy(images, hidden=64, epochs=6), accuracy(images, hidden=0, epochs=6)
    assert small > 0.9
    assert 0.5 < linear < small - 0.03


def test_small_network_beats_linear_model_on_shapes() -> None:
    images = shapes(seed=0, train=4000, test=1000)
    small, linear = accuracy(images, hidden=64, epochs=5), accuracy(images, hidden=0, epochs=5)
    assert small > 0.7
    assert 0.3 < linear < small - 0.05


def test_mean_colour_is_weak_predictor_of_shape_class() -> None:
    """A classifier that sees only each image's mean colour stays far below one that sees the shape."""
    images = shapes(seed=0, train=2000, test=1000)
    train, test = (part.float().mean(dim=(2, 3)) for part in (images.train_images, images.test_images))
    nearest = torch.cdist(test, train).topk(15, largest=False).indices
    votes = images.train_labels[nearest].mode(dim=1).values
    assert (votes == images.test_labels).float().mean() < 0.25


def perplexity(probabilities: Iterable[float]) -> float:
    logs = [math.log(p) for p in probabilities]
    return math.exp(-sum(logs) / len(logs))


def test_bigram_model_beats_unigram_model_on_english_sentences() -> None:
    sentences = [["<s>", *sentence.split()] for sentence in english_sentences(0, 5000)]
    train, test = sentences[:4500], sentences[4500:]
    words = Counter(word for sentence in train for word in sentence[1:])
    contexts = Counter(word for sentence in train for word in sentence[:-1])
    bigrams = Counter(pair for sentence in train for pair in pairwise(sentence))
    total, kinds = words.total(), len(words) + 1
    assert 100 < kinds < 200
    pairs = [pair for sentence in test for pair in pairwise(sentence)]
    unigram = perplexity((words[word] + 0.1) / (total + 0.1 * kinds) for _, word in pairs)
    bigram = perplexity((bigrams[pair] + 0.1) / (contexts[pair[0]] + 0.1 * kinds) for pair in pairs)
    assert unigram > 50
    assert bigram < unigram / 3


def test_english_articles_and_verbs_agree() -> None:
    nouns = {form: number for noun in (*NOUNS, *THINGS) for number, form in enumerate(noun.english)}
    verbs = {form: number for verb in (*TRANSITIVE, *INTRANSITIVE) for number, form in enumerate(verb.english)}
    del nouns["sheep"]  # one or several
    subjects: Counter[int] = Counter()
    for sentence in english_sentences(0, 3000):
        words = sentence.split()
        for first, second in pairwise(words):
            assert not (first == "a" and second[0] in "aeiou"), sentence
            assert not (first == "an" and second[0] not in "aeiou"), sentence
            assert not (first in {"a", "an"} and nouns.get(second)), sentence
            assert not (first in {"two", "three", "many"} and not nouns.get(second, 1)), sentence
        # At the start of a sentence a noun directly before a verb is its subject, so no parser is needed.
        if words[1] in nouns and words[2] in verbs:
            assert nouns[words[1]] == verbs[words[2]], sentence
            subjects[nouns[words[1]]] += 1
    assert min(subjects[0], subjects[1]) > 100


def test_translation_pairs_are_deterministic_and_never_repeat_a_source() -> None:
    pairs = translation_pairs(0, 4000)
    assert pairs == translation_pairs(0, 4500)[:4000]
    assert pairs != translation_pairs(1, 4000)
    assert len({german for german, _ in pairs}) == 4000


def test_german_sentence_has_same_translation_for_every_seed() -> None:
    known: dict[str, str] = {}
    shared = 0
    for seed in range(4):
        for german, english in translation_pairs(seed, 6000):
            shared += german in known
            assert known.setdefault(german, english) == english
    assert shared > 100  # otherwise nothing would have been compared


def test_german_articles_and_relative_pronouns_agree_with_their_nouns() -> None:
    """Articles before a noun, and pronouns after a noun and a comma, have its gender or number in one of two cases."""
    allowed: dict[str, set[str]] = {}
    for noun in (*NOUNS, *THINGS):
        for case in ("nom", "acc"):
            allowed.setdefault(noun.german[0], set()).add(DEFINITE[case][noun.gender][0])
            allowed.setdefault(noun.german[1], set()).add(DEFINITE[case]["pl"][0])
    articles = relatives = 0
    for german, _ in translation_pairs(0, 2000):
        words = german.split()
        for article, noun in pairwise(words):
            if article in {"der", "die", "das", "den"} and noun in allowed:
                assert article in allowed[noun], german
                articles += 1
        for noun, comma, pronoun in zip(words, words[1:], words[2:], strict=False):
            if noun in allowed and comma == "," and pronoun != "dass":
                assert pronoun in allowed[noun], german
                relatives += 1
    assert articles > 1000
    assert relatives > 300


def test_german_verb_comes_last_in_subordinate_clause() -> None:
    pairs = dict(translation_pairs(0, 3000))
    last = [german for german in pairs if german.endswith((" gesehen .", " sehen .", " sieht ."))]
    subordinate = [german for german in last if ", dass " in german and german.endswith(" sieht .")]
    assert len(last) > 50
    assert subordinate
    for german in subordinate:
        english = pairs[german].split()
        assert "that" in english
        assert "sees" in english[:-2], german  # in English the verb is not last
