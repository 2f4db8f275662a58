"""Chat messages as people have them, made into turns whose text knows its region.

What this module does not know: tokenizers and templates. Nothing is guessed or dropped here: what was changed is said
in a note, what cannot be used is an InputError naming the message.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from probes.errors import InputError
from probes.nested_json import read_json
from probes.prompt.regions import Conversation, Field, Part

JOINER = "\n\n"
"""Between texts put together in one turn; belongs to the text before it."""

ROLE_REGION = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "history",
    "tool": "tools",  # a tool's answer
    "function": "tools",
    "ipython": "tools",
}
"""Region of a turn's text by role; another role's is `unknown`."""

_TEXT_PART_TYPES = ("text", "input_text", "output_text")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # transformers reads them in this order


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message. `parts` is None where it has no content (an assistant turn that only calls tools)."""

    index: int  # in the messages as given
    role: str
    parts: tuple[Part, ...] | None
    extra: Mapping[str, Any] = field(default_factory=dict)  # tool_calls, reasoning_content, name ...

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts or ())

    @property
    def where(self) -> str:
        return f"messages[{self.index}] ({self.role})"


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Turn], list[str]]:
    """Messages in OpenAI's form to turns, with notes. A missing system message and an empty one stay different."""
    turns: list[Turn] = []
    notes: list[str] = []
    if not messages:
        raise InputError("there are no messages", code="no_messages", remedy="Give at least one user message")
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not role:
            raise InputError(
                "the message has no role",
                code="bad_message",
                where=f"messages[{index}]",
                remedy='Give {"role": ..., "content": ...}',
            )
        where = f"messages[{index}] ({role})"
        content, said = _content_text(message.get("content"), where)
        extra = {
            key: copy.deepcopy(value)
            for key, value in message.items()
            if key not in ("role", "content") and value is not None
        }
        if role == "assistant" and "tool_calls" in extra:
            said += _parse_arguments(extra["tool_calls"], where)
        require_unicode([content, extra], where)
        region = ROLE_REGION.get(role, "unknown")
        parts = None if content is None else (Part(region=region, text=content),)
        if content == "" and role in ("system", "developer"):
            said.append(f"{where} is empty: an empty turn, not the same as none")
        turns.append(Turn(index=index, role=role, parts=parts, extra=extra))
        notes += said
    if turns[-1].role == "assistant":
        raise InputError(
            "the last turn is the assistant's: there is nothing to answer",
            code="last_turn_assistant",
            where=turns[-1].where,
            remedy="Cut that turn, or use it as the forced response text",
        )
    return turns, notes


def _content_text(content: object, where: str) -> tuple[str | None, list[str]]:
    """A string as it is; a list of text parts joined by line breaks, as vLLM does for templates that want a string."""
    if content is None or isinstance(content, str):
        return content, []
    texts = []
    for part in content if isinstance(content, Sequence) else [content]:
        if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PART_TYPES:
            part = part.get("text")
        if not isinstance(part, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InputError(
                "content of another type is not text",
                quote=repr(kind),
                code="not_text",
                where=where,
                remedy="Only text can be measured: remove images, audio and files",
            )
        texts.append(part)
    notes = [f"{where} has {len(texts)} text parts, joined by line breaks"] if len(texts) > 1 else []
    return "\n".join(texts), notes


def _parse_arguments(tool_calls: object, where: str) -> list[str]:
    """OpenAI gives a call's arguments as JSON text, templates want the object (as vLLM hands it to them)."""
    notes = []
    for call in tool_calls if isinstance(tool_calls, list) else []:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            continue
        try:
            function["arguments"] = read_json(function["arguments"] or "{}")
        except ValueError:
            notes.append(f"{where} calls a tool with arguments that are not JSON: left as text")
    return notes


def require_unicode(value: object, where: str) -> None:
    """Raises InputError where a string inside holds a lone surrogate: JSON can carry one, no tokenizer takes it."""
    for _, text in _strings(value):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                "the text holds half of a surrogate pair, which is no character",
                code="not_unicode",
                where=where,
                remedy="Repair the export: its text was cut in the middle of a character",
            ) from error


def _strings(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """All strings inside, with their path; keys are not strings of the conversation."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _strings(item, (*path, index))


def put_context(turns: Sequence[Turn], context: str) -> list[Turn]:
    """The document at the start of the first user turn, so that system prompt and document are a shared prefix."""
    require_unicode(context, "context")
    position = _first_user(turns, "to put the document into")
    user = turns[position]
    parts = _join((Part(region="context", text=context),), user.parts)
    return [*turns[:position], replace(user, parts=parts), *turns[position + 1 :]]


def fold_system(turns: Sequence[Turn]) -> list[Turn]:
    """The leading system turns' text before the first user text, for templates without a system role."""
    num_leading = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
    rest = list(turns[num_leading:])
    position = _first_user(rest, "to put the system text into")
    parts: tuple[Part, ...] = ()
    for turn in (*turns[:num_leading], rest[position]):
        parts = _join(parts, turn.parts)
    return [*rest[:position], replace(rest[position], parts=parts), *rest[position + 1 :]]


def _first_user(turns: Sequence[Turn], purpose: str) -> int:
    for position, turn in enumerate(turns):
        if turn.role == "user":
            return position
    raise InputError(f"there is no user turn {purpose}", code="no_user_turn", remedy="Add a user message")


def merge_same_roles(turns: Sequence[Turn]) -> list[Turn]:
    """Consecutive turns of one role as one; those that call tools, or answer a call, stay as they are."""
    merged = [turns[0]]
    for turn in turns[1:]:
        last = merged[-1]
        if turn.role == last.role != "tool" and "tool_calls" not in turn.extra and "tool_calls" not in last.extra:
            merged[-1] = replace(last, parts=_join(last.parts, turn.parts), extra={**last.extra, **turn.extra})
        else:
            merged.append(turn)
    return merged


def _join(left: tuple[Part, ...] | None, right: tuple[Part, ...] | None) -> tuple[Part, ...]:
    """Both texts with a blank line between them; where one is empty, the other."""
    left, right = (tuple(part for part in parts or () if part.text) for parts in (left, right))
    if not left or not right:
        return left or right
    return (*left[:-1], replace(left[-1], text=left[-1].text + JOINER), *right)


def join_turns(turns: Sequence[Turn]) -> tuple[Part, ...]:
    """All texts in order, with blank lines between them: a prompt without a template."""
    parts: tuple[Part, ...] = ()
    for turn in turns:
        parts = _join(parts, turn.parts)
    return parts


def fill_empty(turns: Sequence[Turn]) -> list[Turn]:
    """Turns without content (they only call tools) with an empty one."""
    return [replace(turn, parts=turn.parts or ()) for turn in turns]


def has_same_roles(turns: Sequence[Turn]) -> bool:
    """Whether two turns of one role follow each other (tool answers apart)."""
    return any(left.role == right.role != "tool" for left, right in pairwise(turns))


def messages_of(turns: Sequence[Turn]) -> Conversation:
    """What a chat template is given."""
    return [
        {"role": turn.role, **copy.deepcopy(dict(turn.extra))} | ({} if turn.parts is None else {"content": turn.text})
        for turn in turns
    ]


def fields_of(turns: Sequence[Turn]) -> list[Field]:
    """The strings of `messages_of(turns)` whose region is known: contents, reasoning, and what tool calls say."""
    fields: list[Field] = []
    for index, turn in enumerate(turns):
        reasoning = next((key for key in _REASONING_KEYS if isinstance(turn.extra.get(key), str)), None)
        if reasoning:
            fields.append(_history(index, (reasoning,), turn.extra[reasoning]))
        if turn.parts is not None:
            fields.append(Field(path=(index, "content"), parts=turn.parts))
        if turn.role == "assistant":
            for path, text in _strings(turn.extra.get("tool_calls", [])):
                if path[-1] == "name" or "arguments" in path:
                    fields.append(_history(index, ("tool_calls", *path), text))
    return fields


def _history(index: int, path: tuple[str | int, ...], text: str) -> Field:
    return Field(path=(index, *path), parts=(Part(region="history", text=text),))
