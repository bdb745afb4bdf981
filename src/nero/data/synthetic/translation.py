"""Synthetic pairs of a German-like and an English-like sentence from one grammar.

A model can learn words; gender, case and number, which German articles, adjectives and relative pronouns show and
English drops; and order: the German verb comes second in a main clause and last in a subordinate one, participles and
infinitives go to the end, and the time stands before the object. The English is a function of the German.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Forms = tuple[str, str]
"""A word in the singular and in the plural; of a verb, with he and with they."""


class Noun(NamedTuple):
    german: Forms
    gender: str  # m, f or n
    english: Forms
    person: bool  # whether English says "who" and not "that"


class Verb(NamedTuple):
    german: Forms
    participle: str
    english: Forms
    past: str


def _nouns(text: str) -> tuple[Noun, ...]:
    """From "German, its plural, gender, English, its plural" and, for persons, "who"."""
    return tuple(Noun((a, b), c, (d, e), bool(who)) for a, b, c, d, e, *who in map(str.split, text.split(",")))


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(Verb((a, b), c, (d, e), f) for a, b, c, d, e, f in map(str.split, text.split(",")))


NOUNS = _nouns("""
    Mann Männer m man men who, Frau Frauen f woman women who, Kind Kinder n child children who,
    Hund Hunde m dog dogs, Katze Katzen f cat cats, Sohn Söhne m son sons who,
    Lehrerin Lehrerinnen f teacher teachers who, Koch Köche m cook cooks who, Pferd Pferde n horse horses,
    Arzt Ärzte m doctor doctors who, Nachbarin Nachbarinnen f neighbour neighbours who, Vogel Vögel m bird birds,
    Schaf Schafe n sheep sheep, Ziege Ziegen f goat goats, König Könige m king kings who,
    Esel Esel m donkey donkeys
""")
THINGS = _nouns("""
    Ball Bälle m ball balls, Buch Bücher n book books, Blume Blumen f flower flowers, Hut Hüte m hat hats,
    Bild Bilder n picture pictures, Tasche Taschen f bag bags, Apfel Äpfel m apple apples,
    Boot Boote n boat boats, Uhr Uhren f clock clocks, Stuhl Stühle m chair chairs, Ei Eier n egg eggs
""")
TRANSITIVE = _verbs("""
    sieht sehen gesehen sees see saw, sucht suchen gesucht seeks seek sought,
    findet finden gefunden finds find found, kauft kaufen gekauft buys buy bought,
    trägt tragen getragen carries carry carried, malt malen gemalt paints paint painted,
    zieht ziehen gezogen pulls pull pulled, hört hören gehört hears hear heard
""")
INTRANSITIVE = _verbs("""
    schläft schlafen geschlafen sleeps sleep slept, lacht lachen gelacht laughs laugh laughed,
    arbeitet arbeiten gearbeitet works work worked, wartet warten gewartet waits wait waited,
    singt singen gesungen sings sing sang
""")
REPORTS = _verbs("""
    glaubt glauben geglaubt believes believe believed, weiß wissen gewusst knows know knew,
    sagt sagen gesagt says say said
""")
# German with er and with sie (they); English with he and with they. The infinitive follows.
MODALS = (
    (("kann", "können"), ("can", "can")),
    (("will", "wollen"), ("wants to", "want to")),
    (("muss", "müssen"), ("must", "must")),
)
ADJECTIVES = (("klein", "small"), ("alt", "old"), ("rot", "red"), ("schön", "beautiful"), ("müde", "tired"),
              ("groß", "big"), ("ruhig", "quiet"), ("arm", "poor"), ("seltsam", "odd"))  # fmt: skip
TIMES = (("heute", "today"), ("gestern", "yesterday"), ("jeden Tag", "every day"), ("am Abend", "in the evening"))
PLACES = (
    ("in dem Garten", "in the garden"),
    ("auf der Straße", "in the street"),
    ("an dem See", "at the lake"),
    ("vor der Schule", "in front of the school"),
    ("unter der Brücke", "under the bridge"),
)
PRONOUNS = (("er", "he", False), ("sie", "she", False), ("sie", "they", True), ("wir", "we", True))
NUMBERS = (("zwei", "two"), ("drei", "three"), ("viele", "many"))
# By case (nominative, accusative) and gender, or plural: the article, and the ending of an adjective after it.
DEFINITE = {
    "nom": {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e"), "pl": ("die", "en")},
    "acc": {"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e"), "pl": ("die", "en")},
}
INDEFINITE = {
    "nom": {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    "acc": {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")},
}

Words = list[str]


def translation_pairs(seed: int, pairs: int) -> list[tuple[str, str]]:
    """(German-like, English-like) sentences of words and punctuation marks separated by spaces, no German one twice.

    A shorter list is the beginning of a longer one.
    """
    writer = _Writer(random.Random(f"{seed}/translation"))
    found: dict[str, str] = {}
    while len(found) < pairs:
        german, english = writer.sentence()
        found[" ".join(german)] = " ".join(english)
    return list(found.items())


def english_sentences(seed: int, count: int) -> list[str]:
    """The English side of as many pairs."""
    return [english for _, english in translation_pairs(seed, count)]


class _Phrase(NamedTuple):
    """A noun phrase in both languages."""

    german: Words
    english: Words
    plural: bool


class _Writer:
    """Draws sentences from the grammar, both languages at once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.random() * len(choices))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def sentence(self) -> tuple[Words, Words]:
        if self.chance(0.25):
            speaker, report = self.subject(depth=1), self.pick(REPORTS)
            german, english = self.clause(self.subject(depth=1), verb_last=True, depth=1)
            sagt, says = report.german[speaker.plural], report.english[speaker.plural]
            return [*speaker.german, sagt, ",", "dass", *german, "."], [*speaker.english, says, "that", *english, "."]
        german, english = self.clause(self.subject())
        return [*german, "."], [*english, "."]

    def subject(self, depth: int = 0) -> _Phrase:
        if self.chance(0.15):
            german, english, plural = self.pick(PRONOUNS)
            return _Phrase([german], [english], plural)
        return self.phrase("nom", NOUNS, depth)

    def clause(self, subject: _Phrase, verb_last: bool = False, depth: int = 0) -> tuple[Words, Words]:
        """A subject and what it does; without a subject's words, what follows a relative pronoun."""
        verb, objects = self.pick(INTRANSITIVE), _Phrase([], [], False)
        if self.chance(0.7):
            verb, objects = self.pick(TRANSITIVE), self.phrase("acc", (*THINGS, *NOUNS), depth + 1)
        return self.assemble(subject, verb, objects, verb_last)

    def assemble(self, subject: _Phrase, verb: Verb, objects: _Phrase, verb_last: bool) -> tuple[Words, Words]:
        finite, final, english = self.tense(verb, subject.plural)
        time, english_time = map(str.split, self.pick(TIMES) if self.chance(0.35) else ("", ""))
        place, english_place = map(str.split, self.pick(PLACES) if self.chance(0.25) else ("", ""))
        rest = [*objects.german, *place, *final]
        doing = [*subject.english, *english, *objects.english, *english_place]
        if verb_last:
            return [*subject.german, *time, *rest, finite], [*doing, *english_time]
        if time and self.chance(0.5):
            return [*time, finite, *subject.german, *rest], [*english_time, *doing]
        return [*subject.german, finite, *time, *rest], [*doing, *english_time]

    def tense(self, verb: Verb, plural: bool) -> tuple[str, Words, Words]:
        """The German finite verb, what of it goes to the end, and the English verb."""
        kind = self.rng.random()
        if kind < 0.45:
            return verb.german[plural], [], [verb.english[plural]]
        if kind < 0.75:
            return ("haben" if plural else "hat"), [verb.participle], [verb.past]
        german, english = self.pick(MODALS)
        # A regular German infinitive is the same word as the plural.
        return german[plural], [verb.german[True]], [*english[plural].split(), verb.english[True]]

    def phrase(self, case: str, nouns: Sequence[Noun], depth: int = 0) -> _Phrase:
        noun = self.pick(nouns)
        plural = self.chance(0.35)
        form = "pl" if plural else noun.gender
        if self.chance(0.6):
            (article, ending), english_article = DEFINITE[case][form], "the"
        elif plural:
            (article, english_article), ending = self.pick(NUMBERS), "e"
        else:
            (article, ending), english_article = INDEFINITE[case][form], "a"
        german, english = [article], []
        if self.chance(0.35):
            stem, adjective = self.pick(ADJECTIVES)
            german.append(stem.removesuffix("e") + ending)
            english.append(adjective)
        german.append(noun.german[plural])
        english.append(noun.english[plural])
        if english_article == "a" and english[0][0] in "aeiou":
            english_article = "an"
        english.insert(0, english_article)
        if depth < 2 and self.chance(0.18):
            more, english_more = self.relative(noun, plural, depth)
            german += [",", *more, ","]
            english += english_more
        return _Phrase(german, english, plural)

    def relative(self, noun: Noun, plural: bool, depth: int) -> tuple[Words, Words]:
        pronoun = "who" if noun.person else "that"
        if noun.gender == "m" and not plural and self.chance(0.4):
            # Only the masculine singular shows that it is the object; elsewhere German would be ambiguous.
            doer = self.phrase("nom", NOUNS, depth=2)
            german, english = self.assemble(doer, self.pick(TRANSITIVE), _Phrase([], [], False), verb_last=True)
            return ["den", *german], [pronoun, *english]
        german, english = self.clause(_Phrase([], [], plural), verb_last=True, depth=depth + 1)
        return [DEFINITE["nom"]["pl" if plural else noun.gender][0], *german], [pronoun, *english]
