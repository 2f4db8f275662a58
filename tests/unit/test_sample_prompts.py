"""The sample prompts are what sample_prompts/README.md says: complete, varied, clean text that driftscope reads."""

from __future__ import annotations

import json
import re
import unicodedata
from itertools import combinations
from pathlib import Path

import pytest

from driftscope.prompts import read_prompts

SAMPLES = Path(__file__).parents[2] / "sample_prompts"
SYSTEM = sorted((SAMPLES / "system").glob("*.txt"))
DOCUMENTS = sorted((SAMPLES / "documents").glob("*.txt"))
TEXTS = [*SYSTEM, *DOCUMENTS, *sorted(SAMPLES.glob("*.jsonl"))]

CATEGORIES = (
    "writing",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "question_answering",
    "summarization",
    "everyday",
)
PLACEHOLDER = re.compile(
    r"\{\{\s*\w|<[A-Z][A-Z_ ]+>|\[(?i:your|insert|name|date|company)\b|\b(?:TODO|TBD|FIXME|XXX)\b|(?i:lorem ipsum)"
)
CHAT_MARKER = re.compile(r"<\|\w+\|>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>")

# A degenerate document would make attention over the context, and the text that follows it, degenerate too.
MIN_DOCUMENT_WORDS = 6_300  # 1.19 to 1.26 tokens a word under SmolLM2's tokenizer; each has more than 8,192
MAX_REPEATED_8GRAM_SHARE = 0.002
MAX_PARAGRAPH_OVERLAP = 0.1  # Jaccard index of word trigrams, of any two paragraphs
MIN_DISTINCT_WORDS = 1_400


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    w = words(text)
    return [tuple(w[i : i + n]) for i in range(len(w) - n + 1)]


def overlap(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> float:
    return len(left & right) / max(1, len(left | right))


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_text_is_clean_utf8(path: Path) -> None:
    text = path.read_bytes().decode("utf-8")
    bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn") and c != "\n"}
    assert bad == set()  # no tabs, carriage returns, byte order marks, zero-width characters
    assert unicodedata.is_normalized("NFC", text)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert [n for n, line in enumerate(text.splitlines(), 1) if line != line.rstrip()] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_nothing_is_left_to_fill_in_and_nothing_is_templated(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [m.group() for m in PLACEHOLDER.finditer(text)] == []
    assert [m.group() for m in CHAT_MARKER.finditer(text)] == []


def test_placeholder_pattern_finds_what_it_should() -> None:
    for text in (
        "Dear {{ name }},",
        "Hello <CUSTOMER NAME>",
        "sincerely, [Your name]",
        "TODO: more",
        "Lorem ipsum dolor",
    ):
        assert PLACEHOLDER.search(text), text
    assert not PLACEHOLDER.search('<tool_call>{"a": {"b": {}}}</tool_call> see [1]')


def test_readme_and_licence_stand_beside_the_texts() -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert "CC0-1.0" in readme
    assert "CC0 1.0 Universal" in (SAMPLES / "LICENSE").read_text(encoding="utf-8")
    assert [p.name for p in TEXTS if f"`{p.name}`" not in readme] == []


def test_system_prompts_are_many_and_different() -> None:
    names = {path.stem for path in SYSTEM}
    assert names >= {"short", "persona", "policy", "json_only", "tools", "german"}
    assert len(names) >= 8
    assert names.isdisjoint({"none", "default", "prompt", "raw"})  # built in: a file of that name would be ambiguous
    grams = {path.stem: set(ngrams(path.read_text(encoding="utf-8"), 3)) for path in SYSTEM}
    assert max(overlap(grams[a], grams[b]) for a, b in combinations(grams, 2)) < 0.05


def test_system_prompts_have_their_lengths() -> None:
    size = {path.stem: len(words(path.read_text(encoding="utf-8"))) for path in SYSTEM}
    assert size["short"] <= 20
    assert 450 <= size["policy"] <= 620  # 500 to 700 tokens under SmolLM2's tokenizer
    assert size["policy"] == max(size.values())


def test_tools_prompt_holds_usable_schemas() -> None:
    text = (SAMPLES / "system" / "tools.txt").read_text(encoding="utf-8")
    block = re.search(r"^<tools>\n(.*)\n</tools>$", text, re.DOTALL | re.MULTILINE)
    call = re.search(r"<tool_call>\n(.*)\n</tool_call>", text)
    assert block
    assert call
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in json.loads(block.group(1))}
    assert len(functions) >= 2
    for parameters in functions.values():
        assert parameters["type"] == "object"
        assert set(parameters["required"]) <= set(parameters["properties"])
    example = json.loads(call.group(1))
    parameters = functions[example["name"]]
    assert set(parameters["required"]) <= set(example["arguments"]) <= set(parameters["properties"])


def test_german_prompt_is_german() -> None:
    w = words((SAMPLES / "system" / "german.txt").read_text(encoding="utf-8"))
    assert sum(
        word in {"du", "die", "und", "auf", "wenn", "nicht", "eine", "immer", "sie", "es"} for word in w
    ) > 0.15 * len(w)


def test_user_turns_are_balanced_and_interleaved() -> None:
    questions = lines("user_turns.jsonl")
    assert all(set(q) == {"question_id", "category", "turns"} for q in questions)
    assert [q["question_id"] for q in questions] == list(range(1, len(questions) + 1))
    assert len(questions) >= 48
    assert len(questions) % len(CATEGORIES) == 0
    for first in range(0, len(questions), len(CATEGORIES)):  # any leading multiple of 8 is balanced
        assert [q["category"] for q in questions[first : first + len(CATEGORIES)]] == list(CATEGORIES)


def test_user_turns_are_short_and_different() -> None:
    turns = [q["turns"] for q in lines("user_turns.jsonl")]
    assert {len(t) for t in turns} == {1}
    assert [t[0] for t in turns if not 5 <= len(t[0].split()) <= 60] == []
    grams = [set(ngrams(t[0], 2)) for t in turns]
    assert max(overlap(a, b) for a, b in combinations(grams, 2)) < 0.4


def test_conversations_alternate_and_end_with_the_user() -> None:
    conversations = lines("multi_turn.jsonl")
    assert len(conversations) >= 10
    assert len({c["id"] for c in conversations}) == len(conversations)
    num_with_system = 0
    for conversation in conversations:
        messages = conversation["messages"]
        assert all(set(m) == {"role", "content"} and m["content"].strip() == m["content"] != "" for m in messages)
        roles = [m["role"] for m in messages]
        if roles[0] == "system":
            num_with_system += 1
            roles = roles[1:]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert roles[-1] == "user"
        assert 2 <= roles.count("user") <= 4
    assert 0 < num_with_system < len(conversations)  # with and without a system turn of their own


def test_one_conversation_calls_a_tool_and_one_is_german() -> None:
    texts = {c["id"]: [m["content"] for m in c["messages"]] for c in lines("multi_turn.jsonl")}
    joined = "\n".join(texts["library_tool"][1:])  # without the instruction
    call = json.loads(re.search(r"<tool_call>(.*?)</tool_call>", joined).group(1))
    response = json.loads(re.search(r"<tool_response>(.*?)</tool_response>", joined).group(1))
    assert set(call) == {"name", "arguments"}
    assert len(response) == call["arguments"]["limit"]
    german = set(words(" ".join(texts["german_garden"])))
    assert german >= {"und", "die", "sie", "womit", "blätter"}


@pytest.mark.parametrize("name", ["user_turns.jsonl", "multi_turn.jsonl"])
def test_driftscope_reads_every_line(name: str) -> None:
    file = read_prompts(SAMPLES / name)
    assert len(file.prompts) == len(lines(name))
    assert not file.notes  # nothing left out, nothing changed
    assert all(p.messages[-1]["role"] == "user" and p.response is None for p in file.prompts)
    assert len({p.prompt_id for p in file.prompts}) == len(file.prompts)


def test_there_are_three_documents() -> None:
    assert len(DOCUMENTS) >= 3


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_document_is_long_and_does_not_repeat_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.split()) >= MIN_DOCUMENT_WORDS
    assert len(set(words(text))) >= MIN_DISTINCT_WORDS
    grams = ngrams(text, 8)
    assert 1 - len(set(grams)) / len(grams) < MAX_REPEATED_8GRAM_SHARE
    paragraphs = [p for p in text.split("\n\n") if len(words(p)) >= 20]
    assert len(paragraphs) >= 50
    trigrams = [set(ngrams(p, 3)) for p in paragraphs]
    assert max(overlap(a, b) for a, b in combinations(trigrams, 2)) < MAX_PARAGRAPH_OVERLAP


def test_documents_share_no_passages() -> None:
    grams = {path.name: set(ngrams(path.read_text(encoding="utf-8"), 8)) for path in DOCUMENTS}
    assert {(a, b): grams[a] & grams[b] for a, b in combinations(grams, 2) if grams[a] & grams[b]} == {}
