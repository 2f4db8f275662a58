"""OpenAI batch files and single request bodies: chat, responses and completions.

A batch line is {"custom_id", "method"?, "url"?, "body"}; the body is a request: `messages`, or `input` with
`instructions` (responses), or `prompt` (completions: text or token ids that no template touches).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import NOT_TEXT, finished, prompt_from
from driftscope.prompts.line import Line, Reading, left_out
from probes.conditions import PromptInput

SETTINGS = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_output_tokens", "stop", "n")
FORMAT_SETTINGS = ("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs")
ENDPOINTS = ("/chat/completions", "/responses", "/completions")
IDS = ("custom_id", "id", "request_id")

SETTINGS_NOTE = "sampling settings and token limits of the request are not used: the run's own apply"
FORMAT_NOTE = "the request asks for an output format (JSON, grammar): drafts and answers here are unconstrained"
OTHER_ENDPOINT = "a request to another endpoint than chat completions, responses and completions"
EARLIER_RESPONSE = "continues a response that is not in the file"
REASONING_ITEM_NOTE = "reasoning items of earlier turns: not rendered"
OTHER_ITEM = "an item that is neither message nor tool call"


def matches_batch(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("body"), dict) or ("custom_id" in item and "response" in item)


def matches_responses(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("input"), str | list) and ("model" in item or "instructions" in item)


def matches_completions(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("prompt"), str | list) and "model" in item


def read_batch(line: Line) -> Reading:
    body, url = line.item.get("body"), line.item.get("url")
    if not isinstance(body, dict):
        if "response" in line.item:
            raise line.bad(
                "is the output of a batch: it holds answers without their prompts",
                remedy="Give the batch's input file; `driftscope import` reads acceptance from answers.",
            )
        raise line.bad("has no request under `body`")
    if isinstance(url, str) and not url.endswith(ENDPOINTS):
        return left_out(OTHER_ENDPOINT)
    return read_request(
        Line(path=line.path, number=line.number, item={**body, "custom_id": line.id_of("custom_id")}, kind=line.kind)
    )


def read_request(line: Line) -> Reading:
    """One request body; its keys say which kind it is."""
    if "messages" in line.item:
        return _chat(line)
    if "input" in line.item:
        return _responses(line)
    if "prompt" in line.item:
        return _completions(line)
    return left_out(OTHER_ENDPOINT)


def _chat(line: Line) -> Reading:
    tools = line.item.get("tools")
    functions = line.item.get("functions")
    if not tools and isinstance(functions, list):  # the form before `tools`
        tools = [{"type": "function", "function": function} for function in functions]
    return prompt_from(
        line,
        line.item["messages"],
        ids=IDS,
        tools=tools or None,
        options=line.item.get("chat_template_kwargs"),
        notes=_notes(line),
    )


def _responses(line: Line) -> Reading:
    given = line.item["input"]
    if line.item.get("previous_response_id") or line.item.get("conversation"):
        return left_out(EARLIER_RESPONSE)
    messages: list[dict[str, Any]] = []
    notes = _notes(line)
    if isinstance(instructions := line.item.get("instructions"), str):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for item in given:
            if not isinstance(item, dict):
                raise line.bad("has an item of `input` that is not an object")
            kind = item.get("type", "message")
            if kind == "message":
                messages.append({key: value for key, value in item.items() if key in ("role", "content")})
            elif kind == "function_call":
                messages.append({"role": "assistant", "tool_calls": [_tool_call(item)]})
            elif kind == "function_call_output" and isinstance(item.get("output"), str):
                messages.append(
                    {"role": "tool", "content": item["output"], "tool_call_id": str(item.get("call_id", ""))}
                )
            elif kind == "reasoning":
                notes.append(REASONING_ITEM_NOTE)
            else:
                return left_out(NOT_TEXT if "image" in str(kind) else OTHER_ITEM)
    else:
        raise line.bad("has an `input` that is neither text nor a list of items")
    tools = line.item.get("tools")
    return prompt_from(
        line,
        messages,
        ids=IDS,
        tools=[_nested_tool(tool) for tool in tools] if isinstance(tools, list) and tools else None,
        options=line.item.get("chat_template_kwargs"),
        notes=notes,
    )


def _completions(line: Line) -> Reading:
    prompt = line.item["prompt"]
    several = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]
    name = line.id_of(*IDS)
    prompts: list[PromptInput] = []
    for index, one in enumerate(several):
        prompt_id = f"{name}#{index}" if len(several) > 1 else name
        if isinstance(one, str) and one:
            made = PromptInput(prompt_id=prompt_id, messages=(), text=one)
        elif isinstance(one, list) and one and all(is_token_id(token) for token in one):
            made = PromptInput(prompt_id=prompt_id, messages=(), token_ids=tuple(one))
        else:
            raise line.bad("has a `prompt` that is neither text nor a list of token ids")
        prompts += finished(line, made).prompts
    return Reading(prompts=tuple(prompts), notes=tuple(_notes(line)))


def is_token_id(value: object) -> bool:
    """A whole number that fits a stored token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": str(item.get("name", "")), "arguments": item.get("arguments", "{}")}
    return {"id": str(item.get("call_id", "")), "type": "function", "function": function}


def _nested_tool(tool: object) -> object:
    """The responses API has a function's fields beside its type, templates want them under `function`."""
    if isinstance(tool, dict) and tool.get("type") == "function" and "function" not in tool:
        return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
    return tool


def _notes(line: Line) -> list[str]:
    notes = []
    if any(line.item.get(key) is not None for key in SETTINGS):
        notes.append(SETTINGS_NOTE)
    if any(line.item.get(key) is not None for key in FORMAT_SETTINGS):
        notes.append(FORMAT_NOTE)
    return notes
