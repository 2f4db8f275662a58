"""Plan files: damaged TOML, and options of any type; the files that a plan names may be devices and pipes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, damaged_bytes, make_pipe, toml_text
from tests.fuzz.test_checkpoint_files import ANY_SPEED

PLANS: list[dict[str, Any]] = [
    {
        "target": "some/target",
        "drafter": {"a": "x", "b": "y/z@main"},
        "prompts": "prompts.jsonl",
        "max_new_tokens": 16,
        "last_tokens": 8,
    },
    {
        "target": "target",
        "reference_target": "other",
        "drafter": {"d": "drafter"},
        "prompts": "prompts.jsonl",
        "prompt_format": "openai-chat",
        "turns": "all",
        "num_prompts": 1,
        "system_prompt": {"none": "none", "short": "text.txt"},
        "template": {"default": "default", "mine": "text.txt"},
        "context_tokens": [0, 64],
        "documents": ["text.txt"],
        "engine": "live",
        "depth": 5,
        "temperature": 0.5,
        "draft_sample_method": "greedy",
        "seed": 1,
        "sink_slots": 2,
        "target_attention": True,
        "interventions": ["reference_target"],
        "batch_size": 2,
        "dtype": "bfloat16",
        "device": "cpu",
        "text": False,
        "redact": True,
        "trust_remote_code": False,
    },
]


def write_files(folder: Path) -> None:
    turns = [{"role": "user", "content": "name a tree"}, {"role": "assistant", "content": "oak"}]
    (folder / "prompts.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (folder / "text.txt").write_text("Be brief. Write to a@b.example.")
    make_pipe(folder)


@ANY_SPEED
@given(plan=damaged(PLANS))
def test_options_of_any_kind(reader: Reader, plan: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        (Path(name) / "plan.toml").write_text(toml_text(plan), encoding="utf-8", errors="surrogatepass")
        reader("plan", Path(name) / "plan.toml")


@ANY_SPEED
@given(data=damaged_bytes([toml_text(plan).encode() for plan in PLANS]))
def test_damaged_toml(reader: Reader, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        (Path(name) / "plan.toml").write_bytes(data)
        reader("plan", Path(name) / "plan.toml")


@pytest.mark.parametrize("place", ["/dev/zero", "pipe", ".", "n" * 5_000])
@pytest.mark.parametrize("option", ["prompts", "documents", "system_prompt", "template"])
def test_files_without_an_end_are_refused(reader: Reader, option: str, place: str) -> None:
    value = {"documents": [place], "system_prompt": {"mine": place}, "template": {"mine": place}}.get(option, place)
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        (Path(name) / "plan.toml").write_text(toml_text(PLANS[1] | {option: value}))
        assert reader("plan", Path(name) / "plan.toml") == "refused"


def test_the_valid_ones_are_read(reader: Reader) -> None:
    for plan in PLANS:
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name))
            (Path(name) / "plan.toml").write_text(toml_text(plan))
            assert reader("plan", Path(name) / "plan.toml") == "read"
