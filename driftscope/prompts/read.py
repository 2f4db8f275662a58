"""Finds out which format a prompt file has and reads it; every line left out is counted with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.prompts import openai_chat, plain_text, turns
from driftscope.prompts.line import Line, bad_line
from probes.conditions import PromptInput
from probes.errors import InputError

MAX_FILE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Format:
    """`matches` looks at one parsed object; `read` turns it into a prompt, or raises InputError naming the line."""

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Line], tuple[PromptInput, tuple[str, ...]]]


FORMATS = {
    f.name: f
    for f in (
        Format(name="openai-chat", matches=openai_chat.matches, read=openai_chat.read),
        Format(name="turns", matches=turns.matches, read=turns.read),
    )
}
"""Line formats by name, tried in this order; plain text is told by the file's name."""


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """`notes`: sentences on what was left out, with the number of prompts that each concerns."""

    path: Path
    format: str
    prompts: tuple[PromptInput, ...]
    notes: Mapping[str, int] = field(default_factory=dict)


def read_prompts(path: Path, *, format: str | None = None) -> PromptFile:
    """Every prompt of a file. `format` overrides the detection.

    Raises InputError naming file and line for anything that cannot be read: nothing is skipped in silence.
    """
    if not path.is_file():
        raise InputError(
            "there is no such prompt file", code="prompts_not_found", where=str(path), remedy="check --prompts"
        )
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(
            f"the file has more than {MAX_FILE_BYTES >> 20} MiB",
            code="prompts_too_large",
            where=str(path),
            remedy="take a sample of it",
        )
    if format is None and path.suffix.lower() in (".txt", ".md"):
        return PromptFile(path=path, format="text", prompts=(plain_text.read(path, _text(path)),))
    lines = list(_lines(path))
    if not lines:
        raise InputError("the file holds no prompt", code="no_prompts", where=str(path), remedy="see docs on formats")
    chosen = _format(lines[0], format)
    prompts: list[PromptInput] = []
    notes: dict[str, int] = {}
    for line in lines:
        prompt, said = chosen.read(line)
        prompts.append(prompt)
        for note in said:
            notes[note] = notes.get(note, 0) + 1
    _check_ids(path, prompts)
    return PromptFile(path=path, format=chosen.name, prompts=tuple(prompts), notes=notes)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the file is not UTF-8 (byte {error.start})",
            code="prompts_not_utf8",
            where=str(path),
            remedy="convert it to UTF-8",
        ) from error


def _lines(path: Path) -> Iterator[Line]:
    """JSON Lines, or one JSON array."""
    text = _text(path)
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the JSON array cannot be read: {error}", code="bad_prompt_file", where=str(path), remedy="mend it"
            ) from error
        for number, item in enumerate(items, start=1):
            yield _line(path, number, item, "item")
        return
    for number, raw in enumerate(text.split("\n"), start=1):
        if raw.strip():
            try:
                item = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise bad_line(path, number, f"is no JSON: {error}") from error
            yield _line(path, number, item, "line")


def _line(path: Path, number: int, item: object, kind: str) -> Line:
    if not isinstance(item, dict):
        raise bad_line(path, number, f"is a {type(item).__name__}, not an object", kind=kind)
    return Line(path=path, number=number, item=item, kind=kind)


def _format(first: Line, name: str | None) -> Format:
    if name is not None:
        if name not in FORMATS:
            raise InputError(
                f"there is no prompt format {name!r}",
                code="unknown_prompt_format",
                where=str(first.path),
                remedy=f"one of {', '.join(FORMATS)}, or leave it out to have it detected",
            )
        return FORMATS[name]
    for candidate in FORMATS.values():
        if candidate.matches(first.item):
            return candidate
    raise bad_line(
        first.path,
        first.number,
        f"has the keys {sorted(first.item)[:8]}, which no known format has",
        remedy=f"known: {', '.join(FORMATS)} (JSON Lines or a JSON array), and text files",
    )


def _check_ids(path: Path, prompts: list[PromptInput]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.prompt_id in seen:
            raise InputError(
                f"the prompt id {prompt.prompt_id!r} occurs twice",
                code="duplicate_prompt_id",
                where=str(path),
                remedy="give every prompt its own id",
            )
        seen.add(prompt.prompt_id)
