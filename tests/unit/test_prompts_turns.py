"""`--turns all`: which assistant turns of a conversation become prompts, under which names; what is said of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driftscope.plan import make_plan
from driftscope.plan_files import read_job
from driftscope.prompts import PromptFile, read_prompts
from driftscope.prompts.assistant_turns import NOTHING_TO_REPLAY, OPEN_TURN_NOTE, SKIPPED_NOTES, UNASKED_TURN_NOTE
from driftscope.prompts.conversation import (
    EMPTY_ANSWER_NOTE,
    LEADING_ANSWER_NOTE,
    REASONING_ANSWER_NOTE,
    SAME_ROLE_NOTE,
    TOOL_ANSWER_NOTE,
)
from driftscope.prompts.logs import ANSWERED_ANEW_NOTE
from probes.errors import InputError

FILES = Path(__file__).parents[1] / "fixtures" / "prompts"

SYSTEM = {"role": "system", "content": "Be brief."}
TOOL_CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def turns_of(path: Path, *lines: dict[str, Any]) -> PromptFile:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_prompts(path, every_turn=True)


def said(file: PromptFile) -> dict[str, tuple[list[object], str | None]]:
    """Prompt id -> (contents before the response, the response)."""
    return {p.prompt_id: ([m.get("content") for m in p.messages], p.response) for p in file.prompts}


def test_every_assistant_turn_is_a_prompt_with_the_messages_before_it(tmp_path: Path) -> None:
    messages = [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d"), user("e"), assistant("f")]
    line = {"id": "x", "category": "k", "lang": "de", "tools": [{"name": "t"}], "chat_template_kwargs": {"o": 1}}
    file = turns_of(tmp_path / "a.jsonl", {**line, "messages": messages})
    assert said(file) == {
        "x/turn1": (["Be brief.", "a"], "b"),
        "x/turn2": (["Be brief.", "a", "b", "c"], "d"),
        "x/turn3": (["Be brief.", "a", "b", "c", "d", "e"], "f"),
    }
    for prompt in file.prompts:
        assert (prompt.category, prompt.language, prompt.tools) == ("k", "de", ({"name": "t"},))
        assert prompt.chat_template_kwargs == {"o": 1}
    assert file.report() == ["a.jsonl: 3 prompts read as openai-chat, 3 with an answer that is replayed"]
    [last] = read_prompts(tmp_path / "a.jsonl").prompts
    assert (last.prompt_id, last.messages, last.response) == ("x", file.prompts[2].messages, "f")


def test_turns_that_cannot_be_replayed_keep_their_number_and_are_noted(tmp_path: Path) -> None:
    file = turns_of(
        tmp_path / "a.jsonl",
        {"id": "tool", "messages": [user("a"), TOOL_CALL, {"role": "tool", "content": "7"}, assistant("it is 7")]},
        {"id": "empty", "messages": [user("a"), assistant(""), user("b"), assistant("c")]},
        {"id": "thought", "messages": [user("a"), assistant("b"), user("c"), assistant("d", reasoning_content="hm")]},
        {"id": "twice", "messages": [user("a"), assistant("b"), assistant("c"), user("d"), assistant("e")]},
        {"id": "greeting", "messages": [assistant("hello"), user("a"), assistant("b")]},
    )
    assert said(file) == {
        "tool/turn2": (["a", None, "7"], "it is 7"),
        "empty/turn2": (["a", "", "b"], "c"),
        "thought/turn1": (["a"], "b"),
        "twice/turn1": (["a"], "b"),
        "twice/turn3": (["a", "b", "c", "d"], "e"),
        "greeting/turn1": (["a"], "b"),
    }
    assert file.notes == {
        SKIPPED_NOTES[TOOL_ANSWER_NOTE]: 1,
        SKIPPED_NOTES[EMPTY_ANSWER_NOTE]: 1,
        SKIPPED_NOTES[REASONING_ANSWER_NOTE]: 1,
        UNASKED_TURN_NOTE: 1,
        SAME_ROLE_NOTE: 1,
        LEADING_ANSWER_NOTE: 1,
    }


def test_an_open_last_turn_is_not_answered_and_a_conversation_without_answers_left_out(tmp_path: Path) -> None:
    file = turns_of(
        tmp_path / "a.jsonl",
        {"id": "open", "messages": [user("a"), assistant("b"), user("c")]},
        {"id": "question", "messages": [user("a")]},
        {"id": "call", "messages": [user("a"), TOOL_CALL]},
    )
    assert said(file) == {"open/turn1": (["a"], "b")}
    assert file.notes == {OPEN_TURN_NOTE: 1}
    assert file.left_out == {NOTHING_TO_REPLAY: 2}


def test_logs_and_rendered_prompts() -> None:
    """An answer that a log holds is the last turn; a rendered prompt's response stays under the prompt's own name."""
    for name in ("langfuse.jsonl", "litellm.jsonl", "preformatted.jsonl", "token_ids.jsonl"):
        last, every = read_prompts(FILES / name), read_prompts(FILES / name, every_turn=True)
        answered = {p.prompt_id: p for p in last.prompts if p.is_forced}
        assert answered
        found = {p.prompt_id: p for p in every.prompts}
        for prompt_id, prompt in answered.items():
            number = 1 + sum(m["role"] == "assistant" for m in prompt.messages)
            same = found.pop(prompt_id if prompt.is_rendered else f"{prompt_id}/turn{number}")
            assert (same.messages, same.response, same.response_token_ids, same.text, same.token_ids) == (
                prompt.messages, prompt.response, prompt.response_token_ids, prompt.text, prompt.token_ids,
            )  # fmt: skip
        assert all(p.is_forced for p in found.values())
        assert not {TOOL_ANSWER_NOTE, REASONING_ANSWER_NOTE, EMPTY_ANSWER_NOTE, ANSWERED_ANEW_NOTE} & set(every.notes)


@pytest.mark.parametrize("name", ["mt_bench.jsonl", "question.txt"])
def test_a_file_without_answers_has_nothing_to_replay(name: str) -> None:
    with pytest.raises(InputError, match="no assistant turn that can be replayed") as caught:
        read_prompts(FILES / name, every_turn=True)
    assert (caught.value.code, caught.value.where) == ("no_prompts", str(FILES / name))


def test_the_plan_asks_for_last_or_all(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "x", "messages": [user("a"), assistant("b"), user("c"), assistant("d")]}))

    def ids(**options: Any) -> list[str]:
        plan = make_plan({"target": "t", "drafter": {"d": "d"}, "prompts": str(path), **options}, where="test")
        return [p.prompt_id for p in read_job(plan)[0].prompts]

    assert ids() == ids(turns="last") == ["x"]
    assert ids(turns="all") == ["x/turn1", "x/turn2"]
    assert ids(turns="all", num_prompts=1) == ["x/turn1"]
    with pytest.raises(InputError, match="turns"):
        ids(turns="first")
