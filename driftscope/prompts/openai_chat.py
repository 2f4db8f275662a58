"""OpenAI chat JSON Lines, the same with a category (Nemo-Skills), and Parquet with a column of messages.

{"messages": [{"role", "content"}, ...], "tools"?, "chat_template_kwargs"?, "category"?, "id"?}; `prompt` in place of
`messages` where it is such a list. A last assistant turn is a response that somebody has written: it is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import prompt_from
from driftscope.prompts.line import Line, Reading


def matches(item: Mapping[str, Any]) -> bool:
    messages = _messages(item)
    return isinstance(messages, list) or (isinstance(messages, str) and messages.lstrip().startswith("["))


def read(line: Line) -> Reading:
    return prompt_from(
        line,
        _messages(line.item),
        tools=line.item.get("tools") or None,
        options=line.item.get("chat_template_kwargs"),
        category=line.label_of("category"),
    )


def _messages(item: Mapping[str, Any]) -> object:
    if "messages" in item:
        return item["messages"]
    prompt = item.get("prompt")
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict) else None
