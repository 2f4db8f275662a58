"""Prompt files of every format: damaged objects, damaged bytes, under every name and asked-for format."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from driftscope.prompts import FORMATS
from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, damaged_bytes, json_text
from tests.fuzz.test_checkpoint_files import ANY_SPEED

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a tree."}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
OBJECTS: list[dict[str, Any]] = [
    {"id": "a", "messages": CHAT, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}, "category": "x"},
    {
        "messages": [
            *CHAT,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "yo"},
        ]
    },
    {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": CHAT}},
    {"input": [{"role": "user", "content": "hi"}], "instructions": "Be brief.", "model": "m"},
    {"id": "c", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
    {"question_id": 1, "category": "math", "turns": ["2 + 2?", "and 3?"]},
    {"text": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
    {"session_id": "s", "turns": [{"text": "hi"}, {"text": "more"}]},
    {"text_input": "hi", "output_length": 16},
    {"prompt_token_ids": [1, 2, 3], "output_token_ids": [4, 5]},
    {"prompt": "Once upon a time", "max_tokens": 16, "model": "m"},
    {"prompt": "hi", "output_tokens": 8},
    {"timestamp": 0, "input_length": 40, "output_length": 8, "hash_ids": [1, 2]},
    {"type": "GENERATION", "id": "g", "input": {"messages": CHAT}, "output": {"role": "assistant", "content": "oak"}},
    {
        "call_type": "acompletion",
        "id": "l",
        "messages": CHAT,
        "response": {"choices": [{"message": {"content": "oak"}}]},
    },
]
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".md", "")


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


FILES = [
    *(json_text(item).encode() + b"\n" for item in OBJECTS),
    json_text(OBJECTS[:3]).encode(),
    b'id,prompt\n1,"name a\ntree"\n2,name a bird\n',
    b"id\tprompt\n1\tname a tree\n",
    parquet_bytes([{"id": "a", "messages": CHAT}, {"id": "b", "messages": CHAT}]),
    parquet_bytes([{"prompt": "name a tree", "category": "x"}]),
    "Name a tree. \U0001f333\n".encode(),
]


@ANY_SPEED
@given(items=st.lists(damaged(OBJECTS), min_size=1, max_size=3), format=st.sampled_from([None, None, None, *FORMATS]))
def test_objects(reader: Reader, items: list[Any], format: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "prompts.jsonl"
        path.write_text("".join(json_text(item) + "\n" for item in items))
        reader("prompts", path, format=format)


@ANY_SPEED
@given(data=damaged_bytes(FILES), suffix=st.sampled_from(SUFFIXES), format=st.sampled_from([None, None, *FORMATS]))
def test_damaged_files(reader: Reader, data: bytes, suffix: str, format: str | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"prompts{suffix}"
        path.write_bytes(data)
        reader("prompts", path, format=format)


def test_most_of_the_valid_ones_are_read(reader: Reader) -> None:
    outcomes = []
    for item in OBJECTS:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "prompts.jsonl"
            path.write_text(json_text(item) + "\n")
            outcomes.append(reader("prompts", path, format=None))
    assert outcomes.count("read") >= len(OBJECTS) - 3
