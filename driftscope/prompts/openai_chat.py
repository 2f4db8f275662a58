"""OpenAI chat JSON Lines: {"messages": [{"role", "content"}, ...], "tools"?, "chat_template_kwargs"?, "category"?, "id"?}.

A last assistant turn is a response that somebody has written: it is replayed as forced text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.line import Line
from probes.conditions import PromptInput

ROLES = ("system", "developer", "user", "assistant", "tool")


def matches(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("messages"), list)


def read(line: Line) -> tuple[PromptInput, tuple[str, ...]]:
    messages = line.item.get("messages")
    if not isinstance(messages, list) or not messages:
        raise line.bad("has no list of messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise line.bad(f"has a message {index} without one of the roles {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise line.bad(f"has a message {index} whose content is neither text nor a list of parts")
    response = None
    if messages[-1]["role"] == "assistant":
        response = messages[-1].get("content")
        messages = messages[:-1]
        if not isinstance(response, str) or not response:
            raise line.bad("ends with an assistant turn without text")
    if not any(m["role"] == "user" for m in messages):
        raise line.bad("has no user turn")
    tools, options = line.item.get("tools") or [], line.item.get("chat_template_kwargs") or {}
    if not isinstance(tools, list) or not all(isinstance(t, dict) for t in tools):
        raise line.bad("has tools that are no list of objects")
    if not isinstance(options, dict):
        raise line.bad("has chat_template_kwargs that are no object")
    category = line.item.get("category")
    return (
        PromptInput(
            prompt_id=line.id_of("id", "prompt_id", "custom_id"),
            messages=tuple(messages),
            category=category if isinstance(category, str) else None,
            tools=tuple(tools),
            response=response,
            chat_template_kwargs=options,
        ),
        (),
    )
