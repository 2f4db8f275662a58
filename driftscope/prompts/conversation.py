"""A list of chat messages from a file -> one prompt, checked: shared by all formats with messages.

A last assistant turn, or an answer that stands beside the messages, is replayed as the response. What cannot be measured
(images, no user turn) is left out with its reason; what is malformed is an InputError naming the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from driftscope.prompts.line import Line, Reading, json_inside, left_out
from probes.conditions import PromptInput
from probes.errors import InputError
from probes.prompt.messages import read_messages, require_unicode

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OTHER_NAMES_OF_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "observation": "tool",
}
"""As ShareGPT files and tracing libraries call them."""

NO_USER_TURN = "no user turn"
NOT_TEXT = "images, audio or files among the messages"
EMPTY_ANSWER_NOTE = "the last assistant turn is empty: cut off"
TOOL_ANSWER_NOTE = (
    "the answer calls tools, which a template writes in its own way: not replayed, the target answers anew"
)
REASONING_ANSWER_NOTE = (
    "the answer has reasoning apart, which a template writes in its own way: not replayed, the target answers anew"
)
LEADING_ANSWER_NOTE = "assistant turns before the first user turn: cut off"
SAME_ROLE_NOTE = "consecutive turns of one role: kept, merged where the template rejects them"
OPEN_ANSWER = "ends with an assistant turn that is to be continued"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer: the text to replay, or the note why there is none to replay."""

    text: str | None = None
    note: str | None = None


def prompt_from(
    line: Line,
    messages: object,
    *,
    ids: Sequence[str] = ("id", "prompt_id", "custom_id"),
    answer: Answer | None = None,
    tools: object = None,
    options: object = None,
    category: str | None = None,
    system_prompt_name: str | None = None,
    notes: Sequence[str] = (),
) -> Reading:
    """One conversation as a prompt. `answer` stands beside the messages (None: a last assistant turn is the answer).

    `options` are chat_template_kwargs.
    """
    turns = _checked(line, json_inside(messages))
    said = list(notes)
    if answer is None:
        turns, answer = _cut_answer(line, turns)
    elif turns[-1]["role"] == "assistant":
        return left_out(OPEN_ANSWER)
    if answer.note:
        said.append(answer.note)
    if not any(turn["role"] == "user" for turn in turns):
        return left_out(NO_USER_TURN)
    first = next(index for index, turn in enumerate(turns) if turn["role"] not in ("system", "developer"))
    num_leading = next(index for index, turn in enumerate(turns[first:]) if turn["role"] == "user")
    if num_leading and all(turn["role"] == "assistant" for turn in turns[first : first + num_leading]):
        turns = [*turns[:first], *turns[first + num_leading :]]
        said.append(LEADING_ANSWER_NOTE)
    if any(a["role"] == b["role"] != "tool" for a, b in pairwise(turns)):
        said.append(SAME_ROLE_NOTE)
    try:
        read_messages(turns)
    except InputError as error:
        if error.code == "not_text":
            return left_out(NOT_TEXT)
        raise line.bad(f"cannot be used: {error.where}: {error.message}", remedy=error.remedy) from error
    prompt = PromptInput(
        prompt_id=line.id_of(*ids),
        messages=tuple(turns),
        category=category,
        tools=tuple(_objects(line, tools, "tools")),
        response=answer.text or None,
        chat_template_kwargs=_options(line, options),
        system_prompt_name=system_prompt_name,
    )
    return finished(line, prompt, said)


def finished(line: Line, prompt: PromptInput, notes: Sequence[str] = ()) -> Reading:
    """The prompt, once every text of it is known to be Unicode. Raises InputError naming the line."""
    try:
        require_unicode(
            [prompt.response, prompt.text, prompt.tools, prompt.chat_template_kwargs, prompt.messages], "text"
        )
    except InputError as error:
        raise line.bad(error.message, remedy=error.remedy) from error
    return Reading(prompts=(prompt,), notes=tuple(dict.fromkeys(notes)))


def answer_from(value: object) -> Answer:
    """An answer as logs hold it: text, a message, a list that ends with one, or a whole response body.

    A JSON text is taken apart only where it is a message; any other JSON is what the target wrote.
    """
    inner = json_inside(value)
    if isinstance(inner, list):
        inner = inner[-1] if inner else None
    if not isinstance(value, str) or (
        isinstance(inner, dict) and ("choices" in inner or {"role", "content"} <= set(inner))
    ):
        value = inner
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        choice = value["choices"][0] if value["choices"] else None
        choice = choice if isinstance(choice, dict) else {}
        value = choice.get("message") or choice.get("text")
    if isinstance(value, str):
        return Answer(text=value or None)
    if isinstance(value, dict) and "content" in value:
        return answer_of(value)
    return Answer()


def answer_of(message: Mapping[str, Any]) -> Answer:
    """The text of an assistant's message, to be replayed, or the note why it is not."""
    if message.get("tool_calls") or message.get("function_call"):
        return Answer(note=TOOL_ANSWER_NOTE)
    if message.get("reasoning_content") or message.get("reasoning"):
        return Answer(note=REASONING_ANSWER_NOTE)
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return Answer(text=content) if isinstance(content, str) and content else Answer(note=EMPTY_ANSWER_NOTE)


def _cut_answer(line: Line, turns: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Answer]:
    if turns[-1]["role"] != "assistant":
        return turns, Answer()
    if len(turns) == 1:
        raise line.bad("is a conversation of one assistant turn: there is nothing to answer")
    return turns[:-1], answer_of(turns[-1])


def _checked(line: Line, messages: object) -> list[dict[str, Any]]:
    """Messages with known roles and contents, `from` and `value` as role and content. Raises InputError."""
    if isinstance(messages, dict):
        messages = [messages]
    if not isinstance(messages, list) or not messages:
        raise line.bad("has no list of messages")
    turns = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise line.bad(f"has a message {index} that is not an object")
        turn = {key: value for key, value in message.items() if key not in ("from", "value") and value is not None}
        role = message.get("role", message.get("from"))
        role = OTHER_NAMES_OF_ROLES.get(role.lower(), role) if isinstance(role, str) else role
        if role not in ROLES:
            raise line.bad(f"has a message {index} without one of the roles {', '.join(ROLES)}")
        content = message.get("content", message.get("value"))
        if not isinstance(content, str | list) and not (role == "assistant" and (content is None)):
            raise line.bad(f"has a message {index} whose content is neither text nor a list of parts")
        turns.append({**turn, "role": role} | ({} if content is None else {"content": content}))
    return turns


def _objects(line: Line, value: object, name: str) -> list[dict[str, Any]]:
    value = json_inside(value)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise line.bad(f"has {name} that are not a list of objects")
    return value


def _options(line: Line, value: object) -> Mapping[str, object]:
    value = json_inside(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise line.bad("has chat_template_kwargs that are not an object")
    return {key: item for key, item in value.items() if item is not None}
