"""ShareGPT files and draft-training JSON Lines: {"conversations": [{"from"|"role", "value"|"content"}, ...]}.

The whole conversation is read, its last assistant turn replayed (vLLM's benchmark takes the first two values only, and
applies no template to them). Training files may also hold text to which a template was applied already:
`preformatted` reads {"text"} (or {"prompt"}) with role markers and never templates it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import finished, prompt_from
from driftscope.prompts.line import Line, Reading, left_out
from probes.conditions import PromptInput

ROLE_MARKER = re.compile(
    r"<\|im_start\|>|<\|start_header_id\|>|<\|start\|>|<start_of_turn>|<\|turn>|\[INST\]|<\|user\|>|<\|assistant\|>"
    r"|<\uff5cUser\uff5c>|<\uff5cAssistant\uff5c>"
)
"""Marks with which templates open a turn: text that holds one is templated already."""

_ANSWER_HEADER = re.compile(
    r"<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>\n\n|<start_of_turn>model\n"
    r"|<\|turn>model\n|<\|start\|>assistant(?:<\|channel\|>\w+)?<\|message\|>|\[/INST\]|<\|assistant\|>\n?|<\uff5cAssistant\uff5c>"
)
_END_OF_ANSWER = re.compile(
    r"(?:<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<turn\|>|<\|end\|>|<\|return\|>|</s>|<\|endoftext\|>"
    r"|<\uff5cend\u2581of\u2581sentence\uff5c>)\s+\Z"
)

EMPTY_CONVERSATION = "an empty conversation"
WHOLE_TEXT_NOTE = "no answer was found in the templated text: all of it is the prompt"


def matches(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("conversations"), list | str)


def read(line: Line) -> Reading:
    conversations = line.item.get("conversations")
    if conversations == []:
        return left_out(EMPTY_CONVERSATION)
    return prompt_from(line, conversations, tools=line.item.get("tools") or None, category=line.label_of("category"))


def matches_preformatted(item: Mapping[str, Any]) -> bool:
    text = item.get("text")
    return isinstance(text, str) and ROLE_MARKER.search(text) is not None


def read_preformatted(line: Line) -> Reading:
    text = line.item.get("text", line.item.get("prompt"))
    if not isinstance(text, str) or not text:
        raise line.bad("has no templated text under `text`")
    headers = list(_ANSWER_HEADER.finditer(text))
    end = headers[-1].end() if headers else len(text)
    answer = text[end:]
    if closed := _END_OF_ANSWER.search(answer):
        answer = answer[: closed.end()].rstrip()  # the line break after the stop token is the template's
    if not answer.strip():
        end, answer = len(text), ""
    prompt = PromptInput(
        prompt_id=line.id_of("id", "prompt_id"),
        messages=(),
        category=line.label_of("category"),
        text=text[:end],
        response=answer or None,
    )
    return finished(line, prompt, () if headers else (WHOLE_TEXT_NOTE,))
