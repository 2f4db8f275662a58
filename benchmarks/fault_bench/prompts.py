"""Three disjoint sets of prompts, A, B and C, for the demo pair and for the tiny one, written as prompt files.

Of everything in a list, a set takes every third. Knows no fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from driftscope.builtin import sample_prompts
from driftscope.prompts import read_prompts
from training.tiny_corpus import ENGLISH, GERMAN, GREEK, NUM_THINGS, RUSSIAN, Language, document, question

SETS = ("A", "B", "C")
KNOWN = (ENGLISH, GERMAN, RUSSIAN)
"""Languages that the tiny drafter was trained on."""
PASSAGE_WORDS = 70
LOOPS = """
yes no red one hello moon stop cat left up tea row ding go sun bee hop run tick blue ha win fox more na la hey oh rain
key pop zig dog ten bell sea ho pen ice owl jam egg cup map hat sky tap hum nut bay fig rat oak ink toe web yak zoo"""


def demo_turns(chosen: str, num: int) -> list[str]:
    """Questions of the sample prompts; every third keeps the categories balanced."""
    file = read_prompts(sample_prompts() / "user_turns.jsonl")
    return [str(p.messages[-1]["content"]) for p in _third(file.prompts, chosen)][:num]


def demo_passages(chosen: str, num: int) -> list[str]:
    """Beginnings of a document's paragraphs, broken off in the middle of a sentence: text to be gone on with."""
    path = sorted((sample_prompts() / "documents").glob("*.txt"))[SETS.index(chosen)]
    paragraphs = [p.split() for p in path.read_text(encoding="utf-8").split("\n\n")]
    return [" ".join(words[:PASSAGE_WORDS]) for words in paragraphs if len(words) > PASSAGE_WORDS + 20][:num]


def demo_loops(chosen: str, num: int) -> list[str]:
    return _third(LOOPS.split(), chosen)[:num]


def tiny_turns(chosen: str, num: int, languages: Sequence[Language] = KNOWN) -> list[str]:
    """Questions about a third of the things."""
    every = [
        question(language, form, thing)
        for language in languages
        for form in range(len(language.asks))
        for thing in _third(range(NUM_THINGS), chosen)
    ]
    random.Random(0).shuffle(every)
    return every[:num]


def tiny_greek(chosen: str, num: int) -> list[str]:
    return tiny_turns(chosen, num, (GREEK,))


def tiny_plain(chosen: str, num: int) -> list[str]:
    """The same questions with an empty line behind them: where no template ends the turn, the target answers then."""
    return [f"{turn}\n\n" for turn in tiny_turns(chosen, num)]


def tiny_loops(chosen: str, num: int) -> list[str]:
    """Words, to stand both in the request and, again and again, in an answer that was logged."""
    every = [thing for language in KNOWN for thing in _third(language.things, chosen)]
    random.Random(0).shuffle(every)
    return every[:num]


def tiny_document(chosen: str) -> str:
    return document(random.Random(SETS.index(chosen)), KNOWN, 60)


def write_turns(path: Path, turns: Sequence[str]) -> str:
    """A prompt file of single questions."""
    lines = [{"question_id": i, "category": "bench", "turns": [turn]} for i, turn in enumerate(turns)]
    return _write_lines(path, lines)


def write_loops(path: Path, words: Sequence[str]) -> str:
    """A prompt file with the answers that were given."""
    return _write_lines(
        path,
        [
            {
                "messages": [
                    {"role": "user", "content": f"{word}!"},
                    {"role": "assistant", "content": " ".join([word] * 40)},
                ]
            }
            for word in words
        ],
    )


def _write_lines(path: Path, lines: Sequence[object]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def _third(items: Sequence[object], chosen: str) -> list:  # type: ignore[type-arg]
    return list(items[SETS.index(chosen) :: len(SETS)])
