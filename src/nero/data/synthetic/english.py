"""Synthetic English-like sentences from a small probabilistic grammar.

A language model can learn which kinds of words follow each other; that verbs, determiners and reflexives agree with
their noun, also across a clause between them; and that each sentence keeps to one scene, whose nouns, verbs and places
go together. Within a kind, frequencies follow Zipf's law.
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Scene(NamedTuple):
    """Words that occur together: nouns as (singular, plural, reflexive), verbs as (with singular, with plural)."""

    actors: tuple[tuple[str, str, str], ...]
    things: tuple[tuple[str, str, str], ...]
    adjectives: tuple[str, ...]
    transitive: tuple[tuple[str, str], ...]
    intransitive: tuple[tuple[str, str], ...]
    places: tuple[str, ...]


def _nouns(words: str, reflexive: str = "itself") -> tuple[tuple[str, str, str], ...]:
    """ "dog wolf/wolves ant*" -> singular, plural (with an s, unless given) and reflexive; * stands for herself."""
    nouns = ((*word.rstrip("*").partition("/"), word.endswith("*")) for word in words.split())
    return tuple((one, many or f"{one}s", "herself" if hers else reflexive) for one, _, many, hers in nouns)


def _verbs(words: str) -> tuple[tuple[str, str], ...]:
    """Plural forms -> (with a singular subject, with a plural one)."""
    return tuple((f"{verb}es" if verb.endswith(("ch", "sh", "ss")) else f"{verb}s", verb) for verb in words.split())


SCENES = (
    Scene(
        _nouns("farmer shepherd aunt* milkmaid* blacksmith", "himself")
        + _nouns("dog cow horse goose/geese goat sheepdog ox/oxen"),
        _nouns("cart fence apple bucket plough egg haystack"),
        ("old", "brown", "hungry", "muddy", "angry", "gentle", "lame"),
        _verbs("feed follow chase push pull guard"),
        _verbs("sleep wait graze limp"),
        ("barn", "field", "orchard", "stable"),
    ),
    Scene(
        _nouns("sailor captain fisherman/fishermen queen* diver* pirate", "himself")
        + _nouns("gull whale octopus seal"),
        _nouns("boat anchor island map net oar lantern"),
        ("brave", "salty", "enormous", "lost", "quiet", "ancient"),
        _verbs("watch catch drag repair search steer"),
        _verbs("swim drift sink sing"),
        ("harbour", "bay", "lighthouse", "deck"),
    ),
    Scene(
        _nouns("teacher pupil professor actress/actresses* librarian* neighbour", "himself")
        + _nouns("robot parrot owl cat"),
        _nouns("book letter question answer machine essay poem"),
        ("clever", "young", "patient", "odd", "famous", "inky"),
        _verbs("teach read write explain correct discuss"),
        _verbs("listen think laugh whisper"),
        ("library", "school", "office", "garden"),
    ),
    Scene(
        _nouns("cook baker waitress/waitresses* guest widow* thief/thieves", "himself") + _nouns("mouse/mice ant pig"),
        _nouns("loaf/loaves knife/knives onion pie oven spoon dish/dishes"),
        ("warm", "fat", "greedy", "fresh", "upset", "tidy"),
        _verbs("bake taste wash steal burn slice"),
        _verbs("eat cough dance complain"),
        ("kitchen", "cellar", "inn", "market"),
    ),
)
SINGULAR = ("the", "a", "this", "every", "no")
PLURAL = ("the", "some", "these", "many", "two", "few")
PREPOSITIONS = ("in", "near", "behind", "outside")
CONJUNCTIONS = ("when", "because", "although", "while")
REPORTS = _verbs("say believe know hope")
ADVERBS = ("quietly", "often", "never", "slowly", "again")


def grammar_text(seed: int, sentences: int) -> list[str]:
    """Sentences of words and punctuation marks separated by spaces; a shorter list is the beginning of a longer one."""
    rng = random.Random(f"{seed}/grammar")
    return [_Writer(rng).sentence() for _ in range(sentences)]


class _Noun(NamedTuple):
    """A noun phrase and what has to agree with it."""

    words: list[str]
    plural: bool
    reflexive: str


class _Writer:
    """Draws one sentence from the grammar, within one scene."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scene = self.pick(SCENES)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, the k-th with a weight of 1 / (k + 2)."""
        weights = list(accumulate(1 / (k + 2) for k in range(len(choices))))
        return self.rng.choices(choices, cum_weights=weights)[0]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sentence(self) -> str:
        kind = self.rng.random()
        if kind < 0.6:
            words = [*self.clause(), "."]
        elif kind < 0.75:
            words = [self.pick(CONJUNCTIONS), *self.clause(), ",", *self.clause(), "."]
        elif kind < 0.87:
            speaker = self.noun(self.scene.actors, depth=1)
            words = [*speaker.words, self.pick(REPORTS)[speaker.plural], "that", *self.clause(), "."]
        else:
            subject, base = self.noun(self.scene.actors), self.pick(self.scene.transitive)[1]
            words = ["do" if subject.plural else "does", *subject.words, base, *self.object(subject), "?"]
        return " ".join(words)

    def clause(self, depth: int = 0) -> list[str]:
        subject = self.noun(self.scene.actors, depth)
        return [*subject.words, *self.predicate(subject, depth)]

    def predicate(self, subject: _Noun, depth: int) -> list[str]:
        words = [self.pick(ADVERBS)] if self.chance(0.15) else []
        if self.chance(0.65):
            words += [self.pick(self.scene.transitive)[subject.plural], *self.object(subject, depth)]
        else:
            words.append(self.pick(self.scene.intransitive)[subject.plural])
        if self.chance(0.25):
            words += self.place()
        return words

    def object(self, subject: _Noun, depth: int = 0) -> list[str]:
        if self.chance(0.1):
            return [subject.reflexive]
        return self.noun(self.scene.things if self.chance(0.7) else self.scene.actors, depth + 1).words

    def place(self) -> list[str]:
        return [self.pick(PREPOSITIONS), "the", self.pick(self.scene.places)]

    def noun(self, nouns: Sequence[tuple[str, str, str]], depth: int = 0) -> _Noun:
        singular, many, own = self.pick(nouns)
        plural = self.chance(0.4)
        words = [self.pick(self.scene.adjectives)] if self.chance(0.35) else []
        words.append(many if plural else singular)
        determiner = self.pick(PLURAL if plural else SINGULAR)
        if determiner == "a" and words[0][0] in "aeiou":
            determiner = "an"
        noun = _Noun([determiner, *words], plural, "themselves" if plural else own)
        if depth < 2 and self.chance(0.2):
            noun.words.extend(["that", *self.relative(noun, depth)])
        elif self.chance(0.12):
            noun.words.extend(self.place())
        return noun

    def relative(self, noun: _Noun, depth: int) -> list[str]:
        """What follows "that": the noun does something, or something is done to it."""
        if self.chance(0.6):
            return self.predicate(noun, depth + 1)
        doer = self.noun(self.scene.actors, depth + 1)
        return [*doer.words, self.pick(self.scene.transitive)[doer.plural]]
