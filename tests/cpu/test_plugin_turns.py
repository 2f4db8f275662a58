"""Regions of prompts known as token ids only, against those of the renderer that knows the messages."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoTokenizer

from driftscope.builtin import resolve_target
from driftscope.vllm_plugin.turns import RoleMarkers, learn
from probes.prompt.rendering import render
from probes.record import TEXT_REGIONS


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return AutoTokenizer.from_pretrained(resolve_target("demo"))


@pytest.fixture(scope="module")
def markers(tokenizer: object) -> RoleMarkers:
    found, note = learn(tokenizer)
    assert found is not None
    assert note == "regions learnt from the chat template's role markers: history, system, user"
    return found


def turns(*pairs: str) -> list[dict[str, str]]:
    return [{"role": pairs[i], "content": pairs[i + 1]} for i in range(0, len(pairs), 2)]


@pytest.mark.parametrize(
    "messages",
    [
        turns("user", "Why is the sky blue?"),
        turns("system", "Answer in JSON.\n\nBe short.", "user", "user assistant system: which word is a role?"),
        turns("system", "S", "user", "a", "assistant", "b", "user", "c", "assistant", "d\n", "user", "e"),
        turns("user", "two\nlines\n", "assistant", "ok", "user", "more"),
    ],
)
def test_same_as_the_renderers(tokenizer: object, markers: RoleMarkers, messages: list[dict[str, str]]) -> None:
    rendered = render(tokenizer, messages)
    found = markers.regions(rendered.token_ids)
    assert [TEXT_REGIONS[r] for r in found] == [TEXT_REGIONS[r] for r in rendered.region]


def test_what_was_not_learnt_is_unknown(tokenizer: object, markers: RoleMarkers) -> None:
    """A role that no example has, until the next marker that is known; and a text that is no conversation."""
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
    text += "<|im_start|>critic\nbad<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    names = [TEXT_REGIONS[r] for r in markers.regions(np.asarray(ids))]
    words = tokenizer.convert_ids_to_tokens(ids)
    assert names[words.index("hello")] == "user"
    assert names[words.index("bad")] == "unknown"
    assert names[words.index("bye")] == "user"
    plain = tokenizer("just a text", add_special_tokens=False)["input_ids"]
    assert set(markers.regions(np.asarray(plain)).tolist()) == {TEXT_REGIONS.index("unknown")}


def test_a_marker_that_merged_with_its_text_is_unknown(tokenizer: object, markers: RoleMarkers) -> None:
    """White space at a turn's start makes one token with the marker's line break: that turn is given up, not guessed."""
    rendered = render(tokenizer, turns("user", "  spaces", "assistant", "ok", "user", "more"))
    found, expected = markers.regions(rendered.token_ids), rendered.region
    is_unknown = found == TEXT_REGIONS.index("unknown")
    assert 0 < is_unknown.sum() < len(found) / 2
    assert np.array_equal(found[~is_unknown], expected[~is_unknown])


def test_a_tokenizer_without_a_template(tokenizer: object) -> None:
    bare = AutoTokenizer.from_pretrained(resolve_target("demo"))
    bare.chat_template = None
    found, note = learn(bare)
    assert found is None
    assert "regions of prompts are unknown" in note
