"""Tests of decoding against exhaustive search, greedy loops and small tables with known answers."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from nero.checkpoints.beam_search import CachedDecoder, search
from nero.checkpoints.generate import as_lines, continuation, known_words, sample
from nero.checkpoints.options import Unusable
from nero.checkpoints.translate import bleu_metric, join_words, split_words, translations
from nero.data.sources import default_root, problems
from nero.data.text.parallel_text import BEGIN, END, PAD, UNKNOWN, raw_lines, tokenised_multi30k
from nero.data.text.vocabulary import Vocabulary
from nero.engine.precision import set_precision
from nero.models.translator import Translator

A, B = 4, 5  # word ids of tiny vocabularies
Words = tuple[int, ...]
Probabilities = Callable[[Words], Tensor]


class TableDecoder:
    """A decoder that looks up the probabilities [types] of the next word by the prefix, in one table per sentence."""

    def __init__(self, tables: Sequence[Probabilities]) -> None:
        self.tables, self.steps = list(tables), 0
        self.prefixes: list[list[Words]] = [[()] for _ in tables]

    def step(self, words: Tensor) -> Tensor:
        if self.steps:
            self.prefixes = [
                [(*prefix, word) for prefix, word in zip(rows, newest, strict=True)]
                for rows, newest in zip(self.prefixes, words.tolist(), strict=True)
            ]
        else:
            assert words.tolist() == [[BEGIN]] * len(self.tables)
        self.steps += 1
        pairs = zip(self.tables, self.prefixes, strict=True)
        return torch.stack([torch.stack([table(prefix).log() for prefix in rows]) for table, rows in pairs])

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        pairs = list(zip(sentences.tolist(), rows.tolist(), strict=True))
        self.tables = [self.tables[sentence] for sentence, _ in pairs]
        self.prefixes = [[self.prefixes[sentence][row] for row in chosen] for sentence, chosen in pairs]


def random_table(seed: int, types: int = 6) -> Probabilities:
    """Random probabilities for every prefix, determined by the seed."""

    def table(prefix: Words) -> Tensor:
        number = hash((seed, *prefix)) % 2**31
        return (2 * torch.randn(types, generator=torch.Generator().manual_seed(number))).softmax(dim=0)

    return table


def fixed_table(rows: dict[Words, dict[int, float]]) -> Probabilities:
    """Probabilities from a dictionary; other prefixes are followed by END."""

    def table(prefix: Words) -> Tensor:
        found = torch.zeros(6)
        for word, probability in rows.get(prefix, {END: 1.0}).items():
            found[word] = probability
        return found

    return table


def found_in(table: Probabilities, longest: int, beam: int, alpha: float) -> Words:
    (words,) = search(TableDecoder([table]), torch.tensor([longest]), beam, alpha)
    return tuple(words)


def log_probability(table: Probabilities, words: Words) -> float:
    whole = (*words, END)
    return sum(math.log(table(whole[:i])[word]) for i, word in enumerate(whole))


def best_of_all(table: Probabilities, longest: int, alpha: float, types: int = 6) -> Words:
    """The best sequence by exhaustive search."""
    usable = [word for word in range(types) if word not in (PAD, BEGIN, END)]
    every = (words for n in range(longest + 1) for words in itertools.product(usable, repeat=n))
    return max(every, key=lambda words: log_probability(table, words) / (len(words) + 1) ** alpha)


def greedy(table: Probabilities, longest: int) -> Words:
    words: Words = ()
    while len(words) < longest:
        probabilities = table(words).clone()
        probabilities[[PAD, BEGIN]] = 0
        if (word := int(probabilities.argmax())) == END:
            break
        words = (*words, word)
    return words


# ---------------------------------------------------------------------------------------------------- beam search


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_exhaustive_beam_finds_global_optimum(seed: int, alpha: float) -> None:
    table = random_table(seed)
    assert found_in(table, longest=4, beam=3**4 * 2, alpha=alpha) == best_of_all(table, 4, alpha)


def test_random_tables_have_varied_optima_that_differ_from_greedy() -> None:
    best = {(seed, alpha): best_of_all(random_table(seed), 4, alpha) for seed in range(6) for alpha in (0.0, 1.0)}
    assert len({len(words) for words in best.values()}) > 2
    assert any(best[seed, 0.0] != best[seed, 1.0] for seed in range(6))
    assert any(best[seed, 0.0] != greedy(random_table(seed), 4) for seed in range(6))


@pytest.mark.parametrize("seed", range(10))
def test_beam_of_one_is_greedy(seed: int) -> None:
    table = random_table(seed)
    assert found_in(table, longest=7, beam=1, alpha=0.6) == greedy(table, 7)


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_batched_search_matches_single_sentence_search(beam: int) -> None:
    tables, longest = [random_table(seed) for seed in range(8)], [1, 6, 3, 3, 9, 2, 5, 4]
    together = search(TableDecoder(tables), torch.tensor(longest), beam, 0.6)
    alone = [list(found_in(table, limit, beam, 0.6)) for table, limit in zip(tables, longest, strict=True)]
    assert together == alone
    assert all(len(words) <= limit for words, limit in zip(together, longest, strict=True))


def test_beam_of_two_finds_what_greedy_misses() -> None:
    table = fixed_table({(): {A: 0.6, B: 0.4}, (A,): {A: 0.5, B: 0.5}, (B,): {B: 1.0}})
    # A A and A B have 0.3 each, B B has 0.4.
    assert found_in(table, 5, beam=1, alpha=0.0)[0] == A
    assert found_in(table, 5, beam=2, alpha=0.0) == (B, B)


def test_alpha_controls_length_normalisation() -> None:
    table = fixed_table({(): {END: 0.5, A: 0.5}, (A,): {A: 0.9, B: 0.1}, (A, A): {B: 0.9, A: 0.1}})
    # log 0.5 = -0.693 for one token against log 0.405 = -0.904 for four: -0.226 when divided by the length.
    assert found_in(table, 5, beam=3, alpha=0.0) == ()
    assert found_in(table, 5, beam=3, alpha=1.0) == (A, A, B)


def test_search_never_chooses_padding_or_begin_but_may_choose_unknown() -> None:
    table = fixed_table({(): {PAD: 0.5, BEGIN: 0.3, UNKNOWN: 0.2}})
    assert found_in(table, 3, beam=1, alpha=0.6) == (UNKNOWN,)
    assert found_in(table, 3, beam=4, alpha=0.6) == (UNKNOWN,)


def test_search_is_cut_at_maximum_length() -> None:
    def table(prefix: Words) -> Tensor:
        return torch.tensor([0, 0, 0, 0.01, 0.9, 0.09])

    assert found_in(table, 4, beam=1, alpha=0.6) == (A,) * 4
    assert found_in(table, 1, beam=3, alpha=1.0) == (A,)


def test_search_stops_only_when_no_open_hypothesis_can_win() -> None:
    certain = TableDecoder([fixed_table({(): {END: 0.98, A: 0.02}, (A,): {A: 1.0}})])
    assert search(certain, torch.tensor([30]), 5, 0.0) == [[]]
    assert certain.steps == 1
    # The finished hypothesis scores log 0.3 = -1.204; the open one reaches log 0.7 / 3 = -0.119.
    late = TableDecoder([fixed_table({(): {END: 0.3, A: 0.7}, (A,): {B: 1.0}})])
    assert search(late, torch.tensor([30]), 5, 1.0) == [[A, B]]


def test_nan_logits_give_empty_translation() -> None:
    def table(prefix: Words) -> Tensor:
        return torch.full((6,), math.nan)

    assert found_in(table, 5, beam=3, alpha=0.6) == ()


@pytest.mark.parametrize(("beam", "alpha"), [(0, 0.6), (2, -1.0)])
def test_invalid_beam_or_alpha_raises(beam: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="beam must be at least 1"):
        found_in(random_table(0), 3, beam, alpha)


# ------------------------------------------------------------------------------------------------------ networks


def network(types: int = 12, layers: int = 2, longest: int = 40, seed: int = 0, **settings: bool) -> Translator:
    """An untrained network with large weights, so that its outputs depend on every input token."""
    torch.manual_seed(seed)
    made = Translator(types, width=8, heads=2, inner=16, layers=layers, longest=longest, **settings)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    return made.eval()


def sentences(count: int, types: int = 12, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [[BEGIN, *torch.randint(4, types, (n,), generator=generator).tolist(), END] for n in lengths]


def by_network(made: Translator, source: Sequence[int]) -> Probabilities:
    """Next-word probabilities from the full network, given a source sentence and the prefix."""

    @torch.no_grad()
    def table(prefix: Words) -> Tensor:
        features = made(torch.tensor([source]), torch.tensor([[BEGIN, *prefix]]))
        return (features[0, -1] @ made.output_weight.T).softmax(dim=0)

    return table


@pytest.mark.parametrize("settings", [{}, {"scale_embedding": False, "normalise_input": False}])
@torch.no_grad()
def test_cached_decoder_matches_full_network(settings: dict[str, bool]) -> None:
    made = network(**settings)
    source = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0], [2, 9, 9, 3, 0]])
    decoder, generator = CachedDecoder(made, source), torch.Generator().manual_seed(1)
    prefix = torch.full((3, 1, 1), BEGIN)
    for rows, kept in [(4, [0, 1, 2]), (4, [2, 0]), (2, [0, 1]), (5, [1])]:
        repeated = source.repeat_interleave(prefix.shape[1], 0)
        features = made(repeated, prefix.flatten(0, 1))[:, -1]
        expected = (features @ made.output_weight.T).view(*prefix.shape[:2], -1)
        torch.testing.assert_close(decoder.step(prefix[:, :, -1]), expected, rtol=1e-4, atol=1e-4)
        row = torch.randint(prefix.shape[1], (len(kept), rows), generator=generator)
        word = torch.randint(12, (len(kept), rows, 1), generator=generator)
        decoder.keep(torch.tensor(kept), row)
        source = source[kept]
        prefix = torch.cat([prefix[torch.tensor(kept)[:, None], row], word], dim=2)


def test_translations_do_not_depend_on_batch_size() -> None:
    made, sources = network(), sentences(11)
    alone = [next(translations(made, [source], beam=3))[1] for source in sources]
    assert len(set(map(tuple, alone))) > 5
    for batch_size in (1, 4, 11, 50):
        found = list(translations(made, sources, beam=3, batch_size=batch_size))
        assert sorted(number for number, _ in found) == list(range(11))
        assert [words for _, words in sorted(found)] == alone
    assert list(translations(made, [])) == []


def test_source_padding_does_not_change_translation() -> None:
    made, (source,) = network(), sentences(1)
    limit = torch.tensor([12])
    plain = search(CachedDecoder(made, torch.tensor([source])), limit, 4)
    assert search(CachedDecoder(made, torch.tensor([[*source, *[PAD] * 9]])), limit, 4) == plain


def test_greedy_translations_match_plain_loop() -> None:
    made, sources = network(), sentences(6)
    found = dict(translations(made, sources, beam=1))
    expected = [greedy(by_network(made, source), 2 * (len(source) - 2) + 10) for source in sources]
    assert [tuple(found[i]) for i in range(6)] == expected
    assert len(set(map(len, expected))) > 2


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_wide_beam_finds_best_translation_of_network(alpha: float) -> None:
    made, sources = network(types=6), sentences(3, types=6)
    found = dict(translations(made, sources, beam=100, alpha=alpha, longest=3))
    assert [tuple(found[i]) for i in range(3)] == [best_of_all(by_network(made, s), 3, alpha) for s in sources]


def test_translation_length_is_limited_by_positions() -> None:
    made = network(longest=10)
    with pytest.raises(ValueError, match="a sentence has 9 words, and the network takes at most 8"):
        list(translations(made, [[BEGIN, *[4] * 9, END]]))
    ((_, words),) = translations(made, [[BEGIN, *[4] * 8, END]], beam=2, longest=50)
    assert len(words) <= 9


def test_dropout_is_disabled_when_translating() -> None:
    made, sources = network().train(), sentences(4)
    assert dict(translations(made, sources)) == dict(translations(made, sources))


@pytest.mark.gpu
def test_gpu_translations_match_cpu() -> None:
    set_precision("fp32")
    made, sources = network(), sentences(20)
    expected = dict(translations(made, sources))
    assert dict(translations(made.cuda(), sources)) == expected


# ------------------------------------------------------------------------------------------------ words and lines


@pytest.mark.parametrize(
    "line",
    [
        "a man in a red t-shirt, smiling.",
        "the dogs' owner doesn't see it; the girl's dog does!",
        'a sign that says "stop here" (in white).',
        '"no"?',
        "player #8 has $5: all he's got.",
        "<unk> and <unk>",
    ],
)
def test_join_words_restores_original_spacing(line: str) -> None:
    spacy = pytest.importorskip("spacy")
    words = line.split() if "<" in line else [token.text for token in spacy.blank("en").tokenizer(line)]
    assert len(words) > len(line.split()) or "<" in line
    assert join_words(words) == line


def test_join_words_drops_space_tokens() -> None:
    assert join_words([]) == ""
    assert join_words(["two", " ", "dogs", "."]) == "two dogs."


needs_multi30k = pytest.mark.skipif(bool(problems("multi30k", default_root())), reason="needs multi30k")


@pytest.mark.data
@needs_multi30k
def test_joined_references_have_bleu_of_100() -> None:
    words = tokenised_multi30k(default_root())["test_2016_flickr"]["en"]
    references = raw_lines(default_root(), "test_2016_flickr", "en")
    score = bleu_metric().corpus_score([join_words(line) for line in words], [references])
    assert score.score == pytest.approx(100)


@pytest.mark.data
@needs_multi30k
def test_split_words_matches_dataset_tokenisation() -> None:
    pytest.importorskip("spacy")
    lines = raw_lines(default_root(), "test_2016_flickr", "de")
    assert split_words(lines, "real") == tokenised_multi30k(default_root())["test_2016_flickr"]["de"]


def test_split_words_lower_cases_only_real_data() -> None:
    pytest.importorskip("spacy")
    line = "Ein Hund läuft."
    assert split_words([line, ""], "real") == [["ein", "hund", "läuft", "."], []]
    assert split_words([line, ""], "embedded") == [["Ein", "Hund", "läuft."], []]


def test_unknown_prompt_words_are_replaced_or_raise() -> None:
    with_unknown, without = Vocabulary(("a", "<unk>", "b")), Vocabulary(("a", "b"))
    assert known_words("a b", without) == (["a", "b"], [])
    assert known_words(" a c  b d", with_unknown) == (["a", "<unk>", "b", "<unk>"], ["c", "d"])
    with pytest.raises(Unusable, match="'c' is not in the vocabulary of 2 words"):
        known_words("a c d", without)


def test_eos_becomes_line_break() -> None:
    assert as_lines(["a", "b", "<eos>", "<eos>", "c", "<eos>"]) == "a b\n\nc\n"
    assert as_lines([]) == ""


# ------------------------------------------------------------------------------------------------------- sampling

LOGITS = torch.tensor([1.0, 3.0, 0.0, 2.0])


def draws(temperature: float, top_k: int, count: int = 4000) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    return Counter(sample(LOGITS, temperature, top_k, generator) for _ in range(count))


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (2.0, 0), (0.5, 3), (1.0, 2), (1.0, 99)])
def test_sample_follows_softmax_with_temperature_and_top_k(temperature: float, top_k: int) -> None:
    weights = [math.exp(float(logit) / temperature) for logit in LOGITS]
    allowed = sorted(range(4), key=lambda i: -weights[i])[: top_k or 4]
    total = sum(weights[i] for i in allowed)
    found = draws(temperature, top_k)
    assert found.keys() == set(allowed)
    for i in allowed:
        assert found[i] / 4000 == pytest.approx(weights[i] / total, abs=0.03)


@pytest.mark.parametrize("settings", [(0.0, 0), (1e-300, 0), (1.0, 1)])
def test_zero_temperature_or_top_1_gives_argmax(settings: tuple[float, int]) -> None:
    assert draws(*settings, count=50) == {1: 50}


class Counting(nn.Module):
    """A network that predicts the number of input tokens as the next token, and records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.output, self.seen = nn.Linear(6, 6, bias=False), []
        nn.init.eye_(self.output.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        assert not self.training
        self.seen.append(tokens.tolist())
        ones = torch.ones_like(tokens).cumsum(dim=1)
        return 50 * torch.nn.functional.one_hot(ones, 6).float()


def test_continuation_context_is_limited_to_block() -> None:
    made = Counting()
    assert list(continuation(made, [5, 0], words=5, block=4)) == [2, 3, 4, 4, 4]
    assert made.seen[-2:] == [[[0, 2, 3, 4]], [[2, 3, 4, 4]]]


def test_continuation_of_empty_prompt_raises() -> None:
    with pytest.raises(ValueError, match="at least one word"):
        list(continuation(Counting(), [], words=5, block=4))
