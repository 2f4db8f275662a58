"""Strategies: a valid JSON or TOML document with random things done to it, and damaged bytes.

Knows no format of ours: what is valid comes from the tests.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = "@deep@"  # in place of arrays nested so deep that json.dumps itself would not write them
DEEP_TEXT = "[" * 100_000 + "]" * 100_000
LONG = "@long@"  # in place of a long array, whose items would be most of the places that changes pick from
LONG_TEXT = "[" + "0, " * 10_000 + "0]"

hostile_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 10**30, -(10**30), 10**400]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        [
            *("", " ", "\0", "\ud800", "\n", "a" * 10_000, "1", "-1", "1e999", "NaN", "true", "null", DEEP, LONG),
            *("..", ".", "/", "/dev/zero", "/dev/null", "/proc/self/mem", "../model.safetensors", "pipe", "~", "C:\\x"),
            *("llama", "qwen3", "eagle3", "default", "yarn", "dynamic", "longrope", "full_attention", "silu", "raw"),
        ]
    ),
    st.lists(st.integers(-2, 9) | st.none() | st.text(max_size=2), max_size=5),
    st.sampled_from([[], {}, [[]], [{}], {"": None}, [2**62, 2**62], {"a": {"a": {"a": []}}}]),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 9) | st.text(max_size=3), max_size=3),
)


def _places(document: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every value inside a document."""
    children = document.items() if isinstance(document, dict) else enumerate(document)
    found: list[tuple[str | int, ...]] = []
    for key, value in children:
        found.append((*at, key))
        if isinstance(value, dict | list):
            found += _places(value, (*at, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, valid: Sequence[Any]) -> Any:
    """One of the valid documents with one to four changes at random places; its outermost type stays."""
    document = copy.deepcopy(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        places = _places(document)
        if not places:
            break
        *path, key = draw(st.sampled_from(places))
        holder = document
        for step in path:
            holder = holder[step]
        change = draw(st.sampled_from(["replace", "replace", "replace", "delete", "wrap", "copy", "rename", "add"]))
        if change == "replace":
            holder[key] = copy.deepcopy(draw(hostile_values))
        elif change == "delete":
            del holder[key]
        elif change == "wrap":
            holder[key] = [holder[key]]
        elif change == "copy":
            *other_path, other = draw(st.sampled_from(places))
            source = document
            for step in other_path:
                source = source[step]
            holder[key] = copy.deepcopy(source[other])
        elif isinstance(holder, dict):
            new_key = draw(st.text(max_size=5) | st.sampled_from([k for k in map(str, [p[-1] for p in places])]))
            holder[new_key] = holder.pop(key) if change == "rename" else copy.deepcopy(draw(hostile_values))
        else:
            holder.insert(0, copy.deepcopy(draw(hostile_values)))
    return document


def json_text(document: Any) -> str:
    """With NaN and Infinity as Python writes them."""
    return json.dumps(document).replace(json.dumps(DEEP), DEEP_TEXT).replace(json.dumps(LONG), LONG_TEXT)


def toml_text(document: dict[str, Any]) -> str:
    """A TOML document of this table. null becomes an empty string: TOML has none."""
    return "".join(f"{_quoted(str(key))} = {_toml_value(value)}\n" for key, value in document.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, str) and value in (DEEP, LONG):
        return DEEP_TEXT if value == DEEP else LONG_TEXT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return (
            "nan"
            if math.isnan(value)
            else "inf"
            if value == math.inf
            else "-inf"
            if value == -math.inf
            else repr(value)
        )
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(str(k))} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return _quoted("" if value is None else str(value))


def _quoted(text: str) -> str:
    return json.dumps(text)


@st.composite
def damaged_bytes(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """One of the valid files with stretches overwritten, repeated or cut away."""
    data = bytearray(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["overwrite", "insert", "cut", "drop"]))
        if change == "overwrite":
            patch = draw(st.binary(min_size=1, max_size=16) | st.just(b"\xff" * 8) | st.just(b"\0" * 8))
            data[at : at + len(patch)] = patch
        elif change == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=16) | st.just(b"{" * 5000) | st.just(b"[" * 5000))
        elif change == "cut":
            del data[at:]
        else:
            del data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


def make_pipe(folder: Path) -> None:
    """A FIFO that nobody writes to, under the name "pipe": opening it would wait for ever."""
    os.mkfifo(folder / "pipe")
