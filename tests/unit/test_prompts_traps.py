"""What goes wrong with prompt files in practice, one test for each trap; hostile text and random files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.prompts import FORMATS, PromptFile, read_prompts
from driftscope.prompts.conversation import EMPTY_ANSWER_NOTE, OPEN_ANSWER
from driftscope.prompts.line import MAX_LABEL_CHARACTERS
from probes.errors import InputError

HI = {"role": "user", "content": "hi"}


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return path


def test_an_array_is_the_same_as_lines(tmp_path: Path) -> None:
    items = [{"id": str(i), "messages": [{**HI, "content": f"hi {i}"}]} for i in range(3)]
    lines = read_prompts(write(tmp_path / "a.jsonl", *items))
    (tmp_path / "b.json").write_text(json.dumps(items, indent=2))
    assert read_prompts(tmp_path / "b.json").prompts == lines.prompts
    (tmp_path / "c.json").write_text(json.dumps(items[0], indent=2))  # one object over several lines
    assert read_prompts(tmp_path / "c.json").prompts == lines.prompts[:1]


def test_blank_lines_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"messages": [HI]})
    path.write_bytes(b"\xef\xbb\xbf\r\n" + f"{line}\r\n\r\n{line}\r\n".encode())
    assert [p.prompt_id for p in read_prompts(path).prompts] == ["line2", "line4"]


def test_system_missing_and_system_empty_stay_different(tmp_path: Path) -> None:
    empty = {"role": "system", "content": ""}
    file = read_prompts(write(tmp_path / "a.jsonl", {"messages": [HI]}, {"messages": [empty, HI]}))
    assert [list(p.messages) for p in file.prompts] == [[HI], [empty, HI]]


def test_an_empty_last_answer_is_cut_and_an_unfinished_one_beside_an_answer_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"messages": [HI, {"role": "assistant", "content": ""}]})
    file = read_prompts(path)
    assert list(file.prompts[0].messages) == [HI]
    assert file.prompts[0].response is None
    assert file.notes == {EMPTY_ANSWER_NOTE: 1}
    log = {"id": "x", "call_type": "completion", "response": "there"}
    prefill = {**log, "id": "y", "messages": [HI, {"role": "assistant", "content": "Well,"}]}
    file = read_prompts(write(tmp_path / "b.jsonl", {**log, "messages": [HI]}, prefill))
    assert [p.prompt_id for p in file.prompts] == ["x"]
    assert file.left_out == {OPEN_ANSWER: 1}


def test_templated_text_is_not_templated_twice(tmp_path: Path) -> None:
    """The same text under `text`: with role markers it is taken as it is, without it becomes a user turn."""
    marked = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    file = read_prompts(write(tmp_path / "a.jsonl", {"id": "a", "text": marked}))
    assert (file.format, file.prompts[0].text, file.prompts[0].messages) == ("preformatted", marked, ())
    file = read_prompts(write(tmp_path / "b.jsonl", {"id": "a", "text": "hi"}))
    assert (file.format, file.prompts[0].text, file.prompts[0].messages) == ("aiperf-single-turn", None, (HI,))
    file = read_prompts(write(tmp_path / "c.jsonl", {"prompt": marked}), format="preformatted")
    assert file.prompts[0].text == marked


HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)> & </textarea>",
    "control": "bell\x07 escape\x1b[2J\x1b]0;title\x07 null\x00 backspace\x08",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 é̸͎",
    "right-to-left": "\u202eevil\u202c مرحبا \u2066x\u2069",
    "long": "x" * 1_000_000,
    "template": "{{ messages }}{% raw %}<|im_start|>system",
    "line-separators": "a\u2028b\u2029c\x85d\x0be",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_comes_through_unchanged(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": text}]}, {"messages": [HI]})
    assert [p.messages[0]["content"] for p in read_prompts(path).prompts] == [text, "hi"]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_become_one_printable_line(text: str, tmp_path: Path) -> None:
    item = {"id": text, "type": "GENERATION", "trace_id": "t", "prompt_name": text, "prompt_version": 1, "input": "hi"}
    [prompt] = read_prompts(write(tmp_path / "a.jsonl", item)).prompts
    for name in (prompt.prompt_id, prompt.system_prompt_name):
        assert name is not None
        assert name.isprintable()
        assert 0 < len(name) <= MAX_LABEL_CHARACTERS


def test_long_names_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    items = [{"id": "n" * 500 + str(i), "messages": [HI]} for i in range(2)]
    assert len({p.prompt_id for p in read_prompts(write(tmp_path / "a.jsonl", *items)).prompts}) == 2


GOOD = json.dumps({"messages": [HI]})

BROKEN = {
    "no JSON": ("a.jsonl", GOOD + '\n{"messages": [', 2),
    "cut first line": ("a.jsonl", '{"messages": [\n' + GOOD, 1),
    "not an object": ("a.jsonl", GOOD + "\n[1, 2]", 2),
    "an array of numbers": ("a.json", "[1, 2]", 1),
    "array cut off": ("a.json", "[\n" + GOOD + ",\n", 3),
    "too deep": ("a.jsonl", GOOD + "\n" + "[" * 200_000, 2),
    "half a character": ("a.jsonl", GOOD + '\n{"messages": [{"role": "user", "content": "\\ud83d"}]}', 2),
    "half a character in an answer": ("a.jsonl", GOOD + '\n{"messages": [' + json.dumps(HI)
        + ', {"role": "assistant", "content": "\\ud83d"}]}', 2),
    "no messages": ("a.jsonl", GOOD + '\n{"text": "hi"}', 2),
    "message is text": ("a.jsonl", GOOD + '\n{"messages": ["hi"]}', 2),
    "unknown role": ("a.jsonl", GOOD + '\n{"messages": [{"role": "wizard", "content": "hi"}]}', 2),
    "content is a number": ("a.jsonl", GOOD + '\n{"messages": [{"role": "user", "content": 7}]}', 2),
    "tools are text": ("a.jsonl", GOOD + '\n{"messages": [' + json.dumps(HI) + '], "tools": "x"}', 2),
    "kwargs are a list": ("a.jsonl", GOOD + '\n{"messages": [' + json.dumps(HI) + '], "chat_template_kwargs": [1]}', 2),
    "batch without body": ("a.jsonl", '{"custom_id": "a", "body": ' + GOOD + '}\n{"custom_id": "b"}', 2),
    "responses input is a number": ("a.jsonl", '{"body": {"input": "hi"}}\n{"body": {"input": 3}}', 2),
    "completions prompt is mixed": ("a.jsonl", '{"body": {"prompt": "x"}}\n{"body": {"prompt": [1, "x"]}}', 2),
    "conversation of nothing known": ("a.jsonl", '{"conversations": [{"from": "x", "value": "y"}]}', 1),
    "turns are numbers": ("a.jsonl", '{"turns": ["a"]}\n{"turns": [1]}', 2),
    "no turns": ("a.jsonl", '{"turns": ["a"]}\n{"turns": []}', 2),
    "multi turn without text": ("a.jsonl", '{"turns": [{"text": "a"}]}\n{"turns": [{"delay": 1}]}', 2),
    "bench without prompt": ("a.jsonl", '{"prompt": "a"}\n{"output_tokens": 3}', 2),
    "answer is a number": ("a.jsonl", '{"prompt": "a"}\n{"prompt": "b", "response": 3}', 2),
    "single turn without text": ("a.jsonl", '{"text": "a"}\n{"output_length": 3}', 2),
    "preformatted without text": ("a.jsonl", '{"text": "<|im_start|>"}\n{"text": 3}', 2),
    "negative token id": ("a.jsonl", '{"prompt_token_ids": [1]}\n{"prompt_token_ids": [-1]}', 2),
    "no token ids": ("a.jsonl", '{"prompt_token_ids": [1]}\n{"prompt_token_ids": []}', 2),
    "litellm messages of another kind": (
        "a.jsonl", '{"messages": "a", "response": 1, "spend": 0}\n{"messages": [3], "response": 1}', 2
    ),
    "langfuse input of another kind": (
        "a.jsonl",
        '{"type": "GENERATION", "input": "a", "output": "b"}\n'
        '{"type": "GENERATION", "input": [{"role": "wizard", "content": "x"}]}',
        2,
    ),
    "csv row too long": ("a.csv", "id,messages\n1,x,y,z\n", 2),
    "csv quote left open": ("a.csv", 'id,messages\n1,"x\n', 2),
    "csv header twice": ("a.csv", "id,id\n1,2\n", 1),
    "parquet cut off": ("a.parquet", "PAR1 and then nothing", 1),
    "not UTF-8": ("a.jsonl", GOOD.encode() + b"\n\xff\xfe", 2),
    "keys of nobody": ("a.jsonl", '{"foo": 1}', 1),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "line"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_its_line(name: str, content: str | bytes, line: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.remedy
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.jsonl", b"", "no_prompts"),
        ("a.json", b"[]", "no_prompts"),
        ("a.txt", b" \n", "no_prompts"),
        ("a.csv", b"id,messages\n", "no_prompts"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "compressed_file"),
        ("a.jsonl", b'{"messages": [{"role": "system", "content": "x"}]}', "no_prompts"),
        ("a.jsonl", (GOOD[:-1] + ', "id": 1}\n' + GOOD[:-1] + ', "id": "1"}').encode(), "duplicate_prompt_id"),
    ],
)
def test_files_without_a_usable_prompt(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert caught.value.code == code
    assert str(path) in caught.value.where


def test_an_unknown_format_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_prompts(write(tmp_path / "a.jsonl", {"messages": [HI]}), format="nonsense")
    assert caught.value.code == "unknown_prompt_format"
    with pytest.raises(InputError) as caught:
        read_prompts(tmp_path / "nowhere.jsonl")
    assert caught.value.code == "file_not_found"


KEYS = (
    "messages", "body", "custom_id", "url", "response", "input", "instructions", "model", "prompt", "conversations",
    "turns", "text", "text_input", "prompt_token_ids", "output_token_ids", "type", "output", "trace_id", "call_type",
    "role", "content", "from", "value", "tools", "chat_template_kwargs", "prompt_name", "prompt_version", "hash_ids",
    "input_length", "output_length", "id", "category", "tool_calls", "choices", "message", "status", "session_id",
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(
        [
            "user",
            "assistant",
            "system",
            "GENERATION",
            "/v1/responses",
            "[",
            "{",
            "<|im_start|>assistant\n",
            "\ud800",
            "",
        ]
    )
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
ITEMS = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), VALUES, max_size=6)


def outcome(path: Path, *, format: str | None = None) -> PromptFile | InputError:
    """What reading gives; any other exception is a bug and fails the test."""
    try:
        return read_prompts(path, format=format)
    except InputError as error:
        return error


@settings(max_examples=400, deadline=None)
@given(items=st.lists(ITEMS, min_size=1, max_size=3), format=st.sampled_from([None, *FORMATS]))
def test_random_objects_give_prompts_or_one_error(
    items: list[dict[str, Any]], format: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    file = outcome(path, format=format)
    if isinstance(file, InputError):
        assert str(path) in file.where
        return
    assert len({p.prompt_id for p in file.prompts}) == len(file.prompts) >= 1
    for prompt in file.prompts:
        assert prompt.messages or prompt.text or prompt.token_ids
        json.dumps([prompt.messages, prompt.text, prompt.response, prompt.prompt_id], ensure_ascii=False).encode()


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt"]))
def test_random_bytes_give_prompts_or_one_error(
    content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"a{suffix}"
    path.write_bytes(content)
    file = outcome(path)
    assert str(path) in file.where if isinstance(file, InputError) else file.prompts
