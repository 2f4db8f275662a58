"""Every format that people hold, read from files of our own: which prompts come out, what is said of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.prompts import FORMATS, PromptFile, read_prompts
from driftscope.prompts.benchmarks import TEMPLATED_NOTE
from driftscope.prompts.conversation import (
    LEADING_ANSWER_NOTE,
    NO_USER_TURN,
    NOT_TEXT,
    REASONING_ANSWER_NOTE,
    SAME_ROLE_NOTE,
    TOOL_ANSWER_NOTE,
)
from driftscope.prompts.conversations import EMPTY_CONVERSATION, WHOLE_TEXT_NOTE
from driftscope.prompts.logs import (
    ANSWERED_ANEW_NOTE,
    CUT_TEXT,
    FAILED_CALL,
    NO_INPUT,
    NO_MESSAGES,
    OTHER_CALL,
    OTHER_INPUT,
    OTHER_OBSERVATION,
    REDACTED_TEXT,
)
from driftscope.prompts.openai_requests import EARLIER_RESPONSE, FORMAT_NOTE, OTHER_ENDPOINT, SETTINGS_NOTE
from driftscope.prompts.table import table
from driftscope.prompts.turns import LATER_TURNS_NOTE, NOT_PREPARED
from probes.conditions import PromptInput
from probes.errors import InputError

FILES = Path(__file__).parents[1] / "fixtures" / "prompts"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a file must give: each prompt's (id, messages or text or token ids, answer), and the counted sentences."""

    file: str
    format: str
    prompts: list[tuple[str, Any, Any]]
    notes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "elm"}'}}

CASES = [
    Case(
        file="openai_chat.jsonl",
        format="openai-chat",
        prompts=[
            ("sum", [system("Be brief."), user("Sum 2 and 3")], None),
            ("empty-system", [system(""), user("Name a lake")], None),
            (
                "parts",
                [
                    {"role": "developer", "content": "Answer in French."},
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "Name a"}, {"type": "text", "text": "colour"}],
                    },
                ],
                None,
            ),
            ("answered", [user("Say hello")], "Hello there."),
            ("tool", [user("Weather in Lund?")], None),
            ("called", [user("Weather in Oslo?")], None),
            ("two-users", [user("One thing"), user("and another")], None),
            ("thought", [user("Pick a number")], None),
        ],
        notes={TOOL_ANSWER_NOTE: 1, SAME_ROLE_NOTE: 1, REASONING_ANSWER_NOTE: 1},
        left_out={NOT_TEXT: 1, NO_USER_TURN: 1},
    ),
    Case(
        file="openai_batch.jsonl",
        format="openai-batch",
        prompts=[
            ("r1", [user("hi")], None),
            ("r2", [system("Be kind."), user("Name a tree")], None),
            (
                "r3",
                [
                    {"role": "user", "content": [{"type": "input_text", "text": "Look it up"}]},
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "content": "a tree", "tool_call_id": "c1"},
                ],
                None,
            ),
            ("r5", [user("as JSON please")], None),
        ],
        notes={SETTINGS_NOTE: 1, FORMAT_NOTE: 1},
        left_out={OTHER_ENDPOINT: 1, EARLIER_RESPONSE: 1},
    ),
    Case(
        file="openai_completions.jsonl",
        format="openai-batch",
        prompts=[
            ("c1", "Once upon a time", None),
            ("c2#0", "First", None),
            ("c2#1", "Second", None),
            ("c3", (11, 12, 13), None),
        ],
    ),
    Case(
        file="sharegpt.json",
        format="conversations",
        prompts=[
            ("a_0", [user("hi")], "hello"),
            ("a_1", [system("Be short."), user("one"), answer("1"), user("two")], None),
            ("a_2", [user("go on")], "well"),
        ],
        notes={LEADING_ANSWER_NOTE: 1},
        left_out={EMPTY_CONVERSATION: 1},
    ),
    Case(
        file="training.jsonl",
        format="conversations",
        prompts=[("t0", [user("hi")], "hello"), ("t1", [user("why?")], None)],
        notes={REASONING_ANSWER_NOTE: 1},
    ),
    Case(
        file="preformatted.jsonl",
        format="preformatted",
        prompts=[
            ("p0", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "hello<|im_end|>"),
            (
                "p1",
                "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
                "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
                None,
            ),
            ("p2", "<|im_start|>user\nno answer here", None),
        ],
        notes={WHOLE_TEXT_NOTE: 1},
    ),
    Case(
        file="bench_custom.jsonl",
        format="bench-custom",
        prompts=[
            ("line1", [user("Name a river")], None),
            ("line2", [user("Name a hill")], "Calvary Hill."),
            ("line3", [user("<|im_start|>user\nName a sea<|im_end|>\n")], None),
        ],
        notes={TEMPLATED_NOTE: 1},
        left_out={NOT_TEXT: 1},
    ),
    Case(
        file="mt_bench.jsonl",
        format="turns",
        prompts=[("81", [user("Write a line")], None), ("82", [user("What is 6 x 7?")], None)],
        notes={LATER_TURNS_NOTE: 1},
    ),
    Case(
        file="aiperf_single_turn.jsonl",
        format="aiperf-single-turn",
        prompts=[("line1", [user("Name a bird")], None), ("line2", [user("Name a fish")], None)],
        left_out={NOT_TEXT: 1},
    ),
    Case(
        file="aiperf_multi_turn.jsonl",
        format="aiperf-multi-turn",
        prompts=[("s1", [system("Be calm."), user("first")], None), ("s2", [user("only")], None)],
        notes={LATER_TURNS_NOTE: 1},
    ),
    Case(
        file="litellm.jsonl",
        format="litellm",
        prompts=[
            ("l1", [system("v1"), user("hi")], "hello"),
            ("l5", [user("as text")], '{"a": 1}'),
            ("l8", [user("continue this")], " story"),
            ("l9", [user("no answer")], None),
        ],
        notes={ANSWERED_ANEW_NOTE: 1},
        left_out={FAILED_CALL: 1, OTHER_CALL: 1, NO_MESSAGES: 1, REDACTED_TEXT: 1, CUT_TEXT: 1},
    ),
    Case(
        file="langfuse.jsonl",
        format="langfuse",
        prompts=[
            ("o1", [system("v7"), user("hi")], "hello"),
            ("o2", [system("v8"), user("hi")], "hello again"),
            ("o4", [user("plain question")], '{"city": "Rome"}'),
            ("o7", [user("call it")], None),
        ],
        notes={TOOL_ANSWER_NOTE: 1},
        left_out={OTHER_OBSERVATION: 1, NO_INPUT: 1, OTHER_INPUT: 1},
    ),
    Case(
        file="langfuse.csv",
        format="langfuse",
        prompts=[("o1", [system("v7"), user("hi")], "hello,\nand welcome"), ("o3", [user("bye")], None)],
        notes={ANSWERED_ANEW_NOTE: 1},
        left_out={OTHER_OBSERVATION: 1},
    ),
    Case(
        file="token_ids.jsonl",
        format="token-ids",
        prompts=[("q1", (1, 2, 3), (4, 5)), ("q2", (1, 2), None)],
    ),
    Case(file="question.txt", format="text", prompts=[("question", [user("Tell me about\nharbours.")], None)]),
]


def seen(prompt: PromptInput) -> tuple[str, Any, Any]:
    """A prompt as the cases write it; where it is rendered there are no messages beside."""
    rendered = prompt.text if prompt.text is not None else prompt.token_ids
    assert (rendered is not None) == prompt.is_rendered == (not prompt.messages)
    assert (prompt.response is not None or prompt.response_token_ids is not None) == prompt.is_forced
    content = list(prompt.messages) if rendered is None else rendered
    return prompt.prompt_id, content, prompt.response if prompt.response is not None else prompt.response_token_ids


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_format(case: Case) -> None:
    file = read_prompts(FILES / case.file)
    assert file.format == case.format
    assert [seen(p) for p in file.prompts] == case.prompts
    assert file.notes == case.notes
    assert file.left_out == case.left_out
    if case.format != "text":  # named instead of found: the same
        assert read_prompts(FILES / case.file, format=case.format) == file


def test_every_format_has_a_file() -> None:
    covered = {case.format for case in CASES} | {"trace", "openai-responses", "openai-completions", "text"}
    assert covered == {*FORMATS, "text"}


def test_the_table_of_docs_is_printed_from_the_formats() -> None:
    assert f"\n{table()}\n" in (Path(__file__).parents[2] / "docs" / "prompt_files.md").read_text()


def test_details_that_travel_with_a_prompt() -> None:
    by_id = {p.prompt_id: p for p in read_prompts(FILES / "openai_chat.jsonl").prompts}
    assert by_id["sum"].category == "math"
    assert by_id["parts"].chat_template_kwargs == {"enable_thinking": False}
    assert [tool["function"]["name"] for tool in by_id["tool"].tools] == ["weather"]
    by_id = {p.prompt_id: p for p in read_prompts(FILES / "openai_batch.jsonl").prompts}
    [tool] = by_id["r3"].tools  # the responses API writes it flat
    assert tool == {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    releases = {p.prompt_id: p.system_prompt_name for p in read_prompts(FILES / "langfuse.jsonl").prompts}
    assert releases == {"o1": "support@7", "o2": "support@8", "o4": None, "o7": "draft@?"}


def test_single_requests_without_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"model": "m", "input": "Name a tree", "instructions": "Be kind."}\n')
    file = read_prompts(path)
    assert (file.format, list(file.prompts[0].messages)) == (
        "openai-responses",
        [system("Be kind."), user("Name a tree")],
    )
    path.write_text('{"model": "m", "prompt": "Once", "max_tokens": 4}\n')
    file = read_prompts(path)
    assert (file.format, file.prompts[0].text, file.notes) == ("openai-completions", "Once", {SETTINGS_NOTE: 1})


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> PromptFile:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return read_prompts(path)


def test_speed_bench_parquet(tmp_path: Path) -> None:
    row = {"category": "coding", "sub_category": "x", "source": "s", "src_id": "1", "difficulty": "easy"}
    placeholder = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    file = write_parquet(
        tmp_path / "qualitative.parquet",
        [
            {**row, "question_id": "a", "turns": ["Write a loop", "Shorter"], "multiturn": True},
            {**row, "question_id": "b", "turns": [placeholder], "multiturn": False},
        ],
    )
    assert file.format == "turns"
    assert [seen(p) for p in file.prompts] == [("a", [user("Write a loop")], None)]
    assert file.prompts[0].category == "coding"
    assert file.left_out == {NOT_PREPARED: 1}


def test_parquet_with_messages_drops_its_null_fields(tmp_path: Path) -> None:
    """A column of structs gives every message every field, null where it has none."""
    file = write_parquet(
        tmp_path / "chat.parquet",
        [
            {"messages": [{"role": "user", "content": "hi", "tool_calls": None, "name": None}]},
            {"messages": [{"role": "system", "content": "x", "name": "n"}, {"role": "user", "content": "hey"}]},
        ],
    )
    assert [seen(p) for p in file.prompts] == [
        ("row1", [user("hi")], None),
        ("row2", [{**system("x"), "name": "n"}, user("hey")], None),
    ]


def test_parquet_of_langfuse_with_versions_that_became_floats(tmp_path: Path) -> None:
    row = {"type": "GENERATION", "output": "hello"}
    table = pa.table(
        {
            "id": ["a", "b"],
            "type": [row["type"]] * 2,
            "prompt_name": ["support", None],
            "prompt_version": pa.array([7.0, None], pa.float64()),
            "input": ["hi", "ho"],
            "output": ["hello"] * 2,
        }
    )
    pq.write_table(table, tmp_path / "o.parquet")
    prompts = read_prompts(tmp_path / "o.parquet").prompts
    assert [p.system_prompt_name for p in prompts] == ["support@7", None]


def test_messages_as_json_text_in_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "chat.csv"
    path.write_text('id,messages\n7,"[{""role"": ""user"", ""content"": ""a,\\nb""}]"\n')
    assert [seen(p) for p in read_prompts(path).prompts] == [("7", [user("a,\nb")], None)]


def test_report_says_what_was_read_and_why_lines_were_left_out() -> None:
    report = read_prompts(FILES / "sharegpt.json").report()
    assert report == [
        "sharegpt.json: 3 prompts read as conversations, 2 with an answer that is replayed",
        f"sharegpt.json: left out: {EMPTY_CONVERSATION} (1 lines)",
        f"sharegpt.json: {LEADING_ANSWER_NOTE} (1 lines)",
    ]


def test_traces_without_text_are_refused() -> None:
    with pytest.raises(InputError, match="it has no text") as caught:
        read_prompts(FILES / "mooncake.jsonl")
    assert caught.value.where == f"{FILES / 'mooncake.jsonl'}:1"


def test_a_trace_that_carries_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "text_input": "Name a cape", "output_length": 5, "hash_ids": [1]}\n')
    assert [seen(p) for p in read_prompts(path).prompts] == [("line1", [user("Name a cape")], None)]


def test_the_output_of_a_batch_is_no_prompt_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"custom_id": "r1", "response": {"status_code": 200, "body": {"choices": []}}}\n')
    with pytest.raises(InputError, match="answers without their prompts"):
        read_prompts(path)
