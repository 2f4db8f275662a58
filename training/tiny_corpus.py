# ruff: noqa: RUF001 - letters of four scripts on purpose
"""A made-up guidebook in four languages: small, regular, partly predictable text for a tiny target that is really trained.

A walk goes from one thing to the next. In each language there are twenty-four things on a closed round; each has a
usual quality, place and use, which the text keeps to most of the time. An answer starts at the thing that was asked for
and describes the next six, so a long answer does not loop. Asked to repeat a word, it repeats it for ever. All words were
chosen for this file; nothing is copied.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

NUM_THINGS = 24
STOPS = 6  # things in an answer
KEEPS_TO_USUAL = 0.8  # how often a described thing has its usual quality, place or use
DEFAULT_SYSTEM = "You are the guide of a small town."

SYSTEMS = (
    "Answer as a sailor would.",
    "Be brief and kind.",
    "You write for the city paper. Check each name twice.",
    "Reply in the language of the question.",
)


@dataclass(frozen=True)
class Language:
    """`tells` are sentence patterns, one for each form of question in `asks`; in the same order."""

    code: str
    things: tuple[str, ...]
    qualities: tuple[str, ...]
    places: tuple[str, ...]
    uses: tuple[str, ...]
    asks: tuple[str, ...]
    tells: tuple[str, ...]
    repeat: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


ENGLISH = Language(
    code="en",
    things=_words(
        "old tower, stone bridge, market, green door, harbour, school, lamp, garden, mill, chapel, bakery, clock, "
        "well, ferry, theatre, wall, library, orchard, forge, fountain, inn, gate, museum, stable"
    ),
    qualities=_words("quiet, tall, warm, narrow, bright, cold, famous, round"),
    places=_words("by the river, on the hill, near the square, behind the park, under the trees, at the corner"),
    uses=_words("people sing there, boys play chess, a cat sleeps there, they sell bread, nobody waits, birds nest"),
    asks=("Tell me about the {0}.", "What do I see from the {0} on?", "Walk with me from the {0}."),
    tells=(
        "The {0} is {1}. You find it {2}, where {3}. ",
        "First {2} comes the {0}: {3}, and it is {1}. ",
        "We pass the {0}; {3}. How {1} it is {2}! ",
    ),
    repeat="Repeat for ever: {0}",
)
GERMAN = Language(
    code="de",
    things=_words(
        "Turm, Brunnen, Garten, Hafen, Markt, Keller, Bahnhof, Friedhof, Teich, Stall, Palast, Dom, Hof, Park, Laden, "
        "Zoo, Kanal, Steg, Wald, Berg, Acker, Weg, Platz, Saal"
    ),
    qualities=_words("leise, hoch, warm, schmal, hell, kalt, bekannt, rund"),
    places=_words("am Fluss, auf dem Hügel, beim Tor, hinter dem Haus, unter Linden, an der Ecke"),
    uses=_words("man singt dort, Kinder spielen, ein Hund schläft, es gibt Brot, niemand wartet, Vögel nisten"),
    asks=("Erzähle vom {0}.", "Was sehe ich ab dem {0}?", "Geh mit mir ab dem {0}."),
    tells=(
        "Der {0} ist {1}. Er liegt {2}, und {3}. ",
        "Zuerst kommt {2} der {0}: {3}, und er ist {1}. ",
        "Wir gehen zum {0}; {3}. Wie {1} ist es {2}! ",
    ),
    repeat="Wiederhole immer: {0}",
)
RUSSIAN = Language(
    code="ru",
    things=_words(
        "дом, мост, сад, порт, рынок, театр, музей, парк, завод, лес, храм, двор, пруд, вокзал, замок, колодец, "
        "магазин, причал, канал, холм, амбар, погреб, цирк, маяк"
    ),
    qualities=_words("тихий, высокий, тёплый, узкий, светлый, старый, новый, круглый"),
    places=_words("у реки, на горе, за углом, под липами, возле церкви, на краю"),
    uses=_words("там поют, дети играют, спит кот, продают хлеб, никто не ждёт, птицы живут"),
    asks=("Расскажи про {0}.", "Что дальше, где {0}?", "Идём туда, где {0}."),
    tells=(
        "Вот {0}, он {1}. Он стоит {2}, и {3}. ",
        "Сначала {2} будет {0}: {3}, и он {1}. ",
        "Мы видим {0}; {3}. Какой он {1} {2}! ",
    ),
    repeat="Повторяй всегда: {0}",
)
GREEK = Language(
    code="el",
    things=_words(
        "πύργος, κήπος, δρόμος, σταθμός, ναός, μύλος, τοίχος, λόφος, φάρος, κάμπος, στάβλος, φούρνος, βράχος, χώρος, "
        "τόπος, πάγκος, κύκλος, θόλος, βωμός, ποταμός, όρμος, αγρός, στύλος, τάφος"
    ),
    qualities=_words("ήσυχος, ψηλός, ζεστός, στενός, λαμπρός, παλιός, γνωστός, μικρός"),
    places=_words("στο ποτάμι, στο βουνό, κάτω εκεί, πίσω από το σπίτι, στη γωνία, στην άκρη"),
    uses=_words("τραγουδούν εκεί, παίζουν παιδιά, μια γάτα κοιμάται, πουλάνε ψωμί, κανείς δεν μένει, ζουν πουλιά"),
    asks=("Πες μου για: {0}.", "Τι βλέπω μετά: {0};", "Πάμε μαζί: {0}."),
    tells=(
        "Ο {0} είναι {1}. Είναι {2}, και {3}. ",
        "Πρώτα {2} έρχεται ο {0}: {3}, και είναι {1}. ",
        "Να ο {0}; {3}. Πόσο {1} είναι {2}! ",
    ),
    repeat="Πες πάντα: {0}",
)
LANGUAGES = (ENGLISH, GERMAN, RUSSIAN, GREEK)


@dataclass(frozen=True)
class Exchange:
    """`answer` None: for the target to write."""

    language: str
    question: str
    answer: str


def question(language: Language, form: int, thing: int) -> str:
    return language.asks[form].format(language.things[thing])


def sentences(language: Language, form: int, first: int, num: int, draw: random.Random | None) -> str:
    """`num` things from `first` on; `draw` None: all of them as usual."""

    def pick(options: tuple[str, ...], usual: int) -> str:
        if draw is None or draw.random() < KEEPS_TO_USUAL:
            return options[usual % len(options)]
        return draw.choice(options)

    parts = []
    for thing in range(first, first + num):
        i = thing % NUM_THINGS
        quality = pick(language.qualities, i * 5 + form)
        place = pick(language.places, i * 7 + i // 6)
        use = pick(language.uses, i * 11 + i // 4 + form)
        parts.append(language.tells[form].format(language.things[i], quality, place, use))
    return "".join(parts).rstrip()


def exchanges(seed: int, languages: tuple[Language, ...] = LANGUAGES, *, repeats: float = 0.04) -> Iterator[Exchange]:
    """Without end. A share of `repeats` asks for a word to be repeated; their answers end nowhere."""
    draw = random.Random(seed)
    while True:
        language = draw.choice(languages)
        if draw.random() < repeats:
            word = draw.choice(language.things)
            yield Exchange(language.code, language.repeat.format(word), " ".join([word] * 60))
            continue
        form, thing = draw.randrange(3), draw.randrange(NUM_THINGS)
        answer = sentences(language, form, thing, STOPS, draw)
        yield Exchange(language.code, question(language, form, thing), answer)


def document(draw: random.Random, languages: tuple[Language, ...], num_things: int) -> str:
    """A passage to stand before a question: other walks, a paragraph each."""
    parts = []
    while num_things > 0:
        language, num = draw.choice(languages), min(num_things, draw.randrange(2, 6))
        parts.append(sentences(language, draw.randrange(3), draw.randrange(NUM_THINGS), num, draw))
        num_things -= num
    return "\n".join(parts)
