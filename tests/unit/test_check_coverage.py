"""Coverage counted by hand: a tokenizer whose tokens are whole words, a map that reaches some of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from driftscope.check import CheckReport, check_pair
from driftscope.check.check_report import Coverage
from driftscope.check.rules import prompts as rules
from driftscope.check.scripts import script_of
from probes.errors import CheckpointError, InputError
from tests.check_pairs import TINY, Settings, ids, write_drafter, write_target
from tests.checkpoint_writers import Arrays

WORDS = ["the", "cat", "sat", "дом", "кот", "猫", "は", "ок", "42", "!", "मेज़", "π", "no"]  # the rest of 40 ids unused
REACHED = ("the", "cat", "sat", "дом", "!", "42")


def _map(_settings: Settings, arrays: Arrays) -> None:
    """d2t reaches REACHED and ids that no word has."""
    chosen = sorted({WORDS.index(word) for word in REACHED} | set(range(34, 40)))
    assert len(chosen) == TINY.draft_vocab
    arrays["d2t"] = np.array(chosen) - np.arange(TINY.draft_vocab)
    arrays["t2d"] = np.isin(np.arange(TINY.vocab), chosen)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "eagle3", fault=_map)
    vocabulary = {word: i for i, word in enumerate([*WORDS, *(f"unused{i}" for i in range(len(WORDS), TINY.vocab))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="unused39"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(target / "tokenizer.json"))
    return str(target), str(drafter)


def _report(pair: tuple[str, str], folder: Path, *items: dict[str, Any]) -> CheckReport:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return check_pair(*pair, prompt_file=path)


def _chat(*turns: str, **keys: object) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)], **keys}


def _counts(coverage: Coverage | None, by: str) -> dict[tuple[str, str], tuple[int, int]]:
    assert coverage is not None
    return {(g.part, g.name): (g.num_covered, g.num_tokens) for g in coverage.groups if g.by == by}


def test_counts(pair: tuple[str, str], tmp_path: Path) -> None:
    report = _report(
        pair,
        tmp_path,
        _chat("the cat sat кот", "the cat 42 !", category="english", language="en"),
        _chat("дом кот 猫", "дом кот кот ок", category="russian", language="ru"),
        _chat("the cat", "猫 は", "sat", "кот !", category="mixed"),  # an earlier answer is text of the target too
    )
    coverage = report.coverage
    assert coverage is not None
    assert (coverage.num_prompts, coverage.num_responses) == (3, 4)
    assert (coverage.draft_vocab_size, coverage.vocab_size) == (12, 40)
    assert _counts(coverage, "all") == {("prompt", "all"): (7, 10), ("response", "all"): (6, 12)}
    assert _counts(coverage, "category") == {
        ("prompt", "english"): (3, 4),
        ("prompt", "russian"): (1, 3),
        ("prompt", "mixed"): (3, 3),
        ("response", "english"): (4, 4),
        ("response", "russian"): (1, 4),
        ("response", "mixed"): (1, 4),
    }
    assert _counts(coverage, "language") == {
        ("prompt", "en"): (3, 4),
        ("prompt", "ru"): (1, 3),
        ("response", "en"): (4, 4),
        ("response", "ru"): (1, 4),
    }
    assert _counts(coverage, "script") == {
        ("prompt", "Latin"): (6, 6),
        ("prompt", "Cyrillic"): (1, 3),
        ("prompt", "Han"): (0, 1),
        ("response", "Latin"): (2, 2),
        ("response", "Cyrillic"): (1, 5),
        ("response", "Han"): (0, 1),
        ("response", "Hiragana"): (0, 1),
        ("response", "digits"): (1, 1),
        ("response", "symbols"): (2, 2),
    }
    assert [(t.text, t.num_prompt, t.num_response) for t in coverage.uncovered] == [
        ("кот", 2, 3),
        ("猫", 1, 1),
        ("は", 0, 1),
        ("ок", 0, 1),
    ]
    assert sum(g.num_tokens for g in coverage.groups if g.by == "script") == 22


def test_low_coverage_is_found(pair: tuple[str, str], tmp_path: Path) -> None:
    good, bad = " ".join(["the"] * 900), " ".join(["кот"] * 98)
    assert ids(_report(pair, tmp_path, _chat("the", good), _chat("the", bad + " дом", id="b"))) == set()
    report = _report(pair, tmp_path, _chat("the", good), _chat("the", bad + " кот кот кот", id="b"))
    assert ids(report, "warning") == {"DS701", "DS702"}
    assert [f.evidence for f in report.findings if f.id == "DS702"] == [
        "script Cyrillic: 0 of 101 response tokens (0.0%)"
    ]
    assert not report.is_clean


@pytest.mark.parametrize(("covered", "severity"), [(80, None), (79, "info"), (50, "info"), (49, "warning")])
def test_prompts_stand_in_for_responses(
    pair: tuple[str, str], tmp_path: Path, covered: int, severity: str | None
) -> None:
    words = ["the"] * covered + ["no"] * (rules.MIN_GROUP_TOKENS - covered)
    report = _report(pair, tmp_path, _chat(" ".join(words)))
    found = [f.severity.value for f in report.findings if f.id == "DS702"]
    assert found == ([severity] if severity else [])
    assert report.coverage is not None
    assert any("no responses" in note for note in report.coverage.notes)


def test_few_tokens_tell_nothing(pair: tuple[str, str], tmp_path: Path) -> None:
    assert ids(_report(pair, tmp_path, _chat("кот " * (rules.MIN_GROUP_TOKENS - 1)))) == set()


def test_a_text_beyond_the_drafters_positions(pair: tuple[str, str], tmp_path: Path) -> None:
    """The prompt and its response together; the pair has 2048 positions."""
    assert "DS703" not in ids(_report(pair, tmp_path, _chat("the " * 1024, "the " * 1024)))
    report = _report(pair, tmp_path, _chat("the " * 1024, "the " * 1025))
    assert [f.evidence for f in report.findings] == ["2,049 tokens, the drafter has 2,048 positions"]


def test_token_ids_and_parts_of_content(pair: tuple[str, str], tmp_path: Path) -> None:
    report = _report(pair, tmp_path, {"prompt_token_ids": [WORDS.index("cat"), WORDS.index("кот"), WORDS.index("42")]})
    assert _counts(report.coverage, "script") == {
        ("prompt", "Latin"): (1, 1),
        ("prompt", "Cyrillic"): (0, 1),
        ("prompt", "digits"): (1, 1),
    }
    parts = [{"type": "text", "text": "the cat"}, {"type": "text", "text": "猫"}]
    report = _report(pair, tmp_path, {"messages": [{"role": "user", "content": parts}]})
    assert _counts(report.coverage, "all") == {("prompt", "all"): (2, 3)}


def test_without_a_map_the_first_ids_are_drafted(pair: tuple[str, str], tmp_path: Path) -> None:
    """As engines do: 12 draft ids."""

    def no_map(_settings: Settings, arrays: Arrays) -> None:
        del arrays["d2t"], arrays["t2d"]

    drafter = write_drafter(tmp_path / "no-map-eagle3", fault=no_map)
    report = _report((pair[0], str(drafter)), tmp_path, _chat("π no"))  # ids 11 and 12
    assert report.coverage is not None
    assert report.coverage.draft_vocab_size == 12
    assert _counts(report.coverage, "all") == {("prompt", "all"): (1, 2)}


def test_what_was_left_out_is_said(pair: tuple[str, str], tmp_path: Path) -> None:
    report = _report(pair, tmp_path, {"turns": ["the cat", "sat"], "question_id": 1})
    assert report.coverage is not None
    assert any("first of several turns" in note and "1 lines" in note for note in report.coverage.notes)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("", "whitespace"),
        (" \n\t", "whitespace"),
        (" cat", "Latin"),
        ("é", "Latin"),
        ("1cat", "Latin"),
        ("2.5", "digits"),
        ("٣", "digits"),
        (".", "symbols"),
        ("😀", "symbols"),
        ("\u0301", "symbols"),
        ("кот", "Cyrillic"),
        ("漢", "Han"),
        ("カ", "Katakana"),
        ("한", "Hangul"),
        ("हिन", "Devanagari"),
        ("שלום", "Hebrew"),
        ("ⴰ", "Tifinagh"),
        ("ﬁ", "Latin"),
        ("\ud7ff", "whitespace"),
    ],
)
def test_scripts(text: str, script: str) -> None:
    assert script_of(text) == script


def test_what_cannot_be_read(pair: tuple[str, str], tmp_path: Path) -> None:
    target, drafter = pair
    with pytest.raises(InputError) as missing:
        check_pair(target, drafter, prompt_file=tmp_path / "none.jsonl")
    assert missing.value.exit_code == 2
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "the"}]}\n')
    path = Path(target) / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError) as broken:
        check_pair(target, drafter, prompt_file=tmp_path / "p.jsonl")
    assert (broken.value.code, broken.value.where) == ("tokenizer_unreadable", str(path))
    path.unlink()
    with pytest.raises(CheckpointError) as absent:
        check_pair(target, drafter, prompt_file=tmp_path / "p.jsonl")
    assert absent.value.code == "tokenizer_missing"
