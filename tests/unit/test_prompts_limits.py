"""Prompt files that are no files, or hold far more than they are long: one message, and little time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.import_export import read_acceptance
from driftscope.plan import make_plan
from driftscope.prompts import read_prompts
from driftscope.prompts.read import PromptFile
from driftscope.prompts.rows import read_text
from probes.errors import MAX_MESSAGE, InputError, quotes_hidden
from probes.nested_json import MAX_DEPTH, read_json

MEGABYTE = "x" * 1_000_000


def same_value(value: str, num_rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, np.int32)), pa.array([value]))


def messages(value: str, num_rows: int) -> pa.Array:
    turn = pa.StructArray.from_arrays([same_value("user", num_rows), same_value(value, num_rows)], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array(np.arange(num_rows + 1, dtype=np.int32)), turn)


BOMBS = {
    "one value": (lambda: {"prompt": same_value(MEGABYTE, 3000)}, "1,024 MiB of text"),
    "one value in messages": (lambda: {"messages": messages(MEGABYTE, 3000)}, "1,024 MiB of text"),
    "nulls": (lambda: {"prompt": pa.nulls(1_000_001, pa.string())}, "1,000,000 values"),
    "equal token ids": (
        lambda: {
            "prompt_token_ids": pa.ListArray.from_arrays(
                pa.array([0, 1_000_001], pa.int32()), pa.array(np.zeros(1_000_001, np.int8))
            )
        },
        "1,000,000 values",
    ),
}


def in_little_memory(path: Path, call: str) -> str:
    """The error's text, from a process with 400 MiB more than what it imports, 60 s of CPU time, and fewer values."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "import pyarrow.parquet\n"
        "from driftscope.prompts import parquet_rows, read_prompts\n"
        "from probes.errors import InputError\n"
        "taken = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + (400 << 20),) * 2)\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "parquet_rows.MAX_VALUES = 1_000_000\n"
        f"try: {call}\n"
        "except InputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory")
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_parquet_file_that_stands_for_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    columns, words = BOMBS[name]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns()), path)
    assert path.stat().st_size < 400_000
    said = in_little_memory(path, "read_prompts(Path(sys.argv[1]))")
    assert str(path) in said
    assert words in said


def test_values_that_rows_share_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"messages": messages("é" * 1000, 2500), "id": pa.array([f"p{i}" for i in range(2500)])}
    pq.write_table(pa.table({**columns, "category": same_value("x", 2500)}), path)
    prompts = read_prompts(path).prompts
    assert [p.prompt_id for p in prompts] == [f"p{i}" for i in range(2500)]
    assert {p.messages[0]["content"] for p in prompts} == {"é" * 1000}
    assert {p.category for p in prompts} == {"x"}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    for read in (read_prompts, read_acceptance, lambda p: read_text(p, "document")):
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(path) in caught.value.where
        assert caught.value.code in ("not_a_file", "file_not_readable")
    fine = tmp_path / "b.prom"
    fine.write_text("# a scrape\n")
    with pytest.raises(InputError, match="file"):
        read_acceptance(fine, since=path)


def test_json_nests_only_so_deep(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for depth, is_read in ((MAX_DEPTH - 4, True), (MAX_DEPTH + 1, False), (700, False), (960, False), (50_000, False)):
        deep = "[" * depth + "]" * depth
        path.write_text('{"messages": [{"role": "user", "content": "hi", "x": ' + deep + "}]}\n")
        if is_read:
            assert len(read_prompts(path).prompts) == 1
        else:
            with pytest.raises(InputError, match="nested more than 100 deep") as caught:
                read_prompts(path)
            assert f"{path}:1" in caught.value.where


def test_depth_counts_what_is_inside_each_other() -> None:
    wide = json.dumps([[]] * 1000 + [{"a": [{}]}] * 1000)
    assert read_json(wide) == json.loads(wide)
    for depth, is_read in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):
        text = '{"a":' * depth + "1" + "}" * depth
        if is_read:
            assert read_json(text) == json.loads(text)
        else:
            with pytest.raises(ValueError, match="100 deep"):
                read_json(text)


def test_a_key_of_ten_megabytes_is_cut_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"k" * 10_000_000: 1, "second": 2}) + "\n")
    for read in (read_prompts, read_acceptance):
        with pytest.raises(InputError, match="line 1 has keys that no known") as caught:
            read(path)
        assert len(caught.value.message) < 500 < MAX_MESSAGE
        assert "'second'" in caught.value.message  # the key itself is cut, not what follows it
        assert "kkk" in caught.value.message


def read_privately(path: Path) -> PromptFile:
    with quotes_hidden(True):
        return read_prompts(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"Where is the purple key?": 1}\n'),
        ("a.csv", "Where is the purple key?,b\n1,2\n"),
        ("a.jsonl", '{"id": "purple", "turns": ["a"]}\n{"id": "purple", "turns": ["b"]}\n'),
        ("a.jsonl", '{"id": "a", "turns": ["Where is the purple key?}\n'),
        ("a.jsonl", '{"messages": [{"role": "purple", "content": "x"}]}\n'),
        ("a.jsonl", '{"messages": [{"role": "user", "content": [{"type": "purple"}]}]}\n'),
        ("a.jsonl", '"Where is the purple key?"\n'),
        ("a.csv", '"Where is the purple key?\n'),
    ],
)
def test_no_message_quotes_a_prompt_where_that_is_asked_for(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_privately(path)
    assert "purple" not in str(caught.value)
    assert str(path) in caught.value.where


def test_quotes_are_hidden_for_plans_without_text_and_for_redacted_ones() -> None:
    options = {"target": "t", "drafter": {"d": "d"}}
    for more, is_private in (({}, False), ({"text": False}, True), ({"redact": True}, True)):
        assert make_plan({**options, **more}, where="test").keeps_texts_private is is_private
