"""Logs of gateways and tracing tools: LiteLLM payloads and spend logs, Langfuse observations (JSON Lines, CSV, Parquet).

Rows that are not a finished text generation are left out by reason; the answer that was given is replayed. Langfuse's
prompt_name and prompt_version name the prompt's own system prompt, "name@version": the condition it is compared by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import Answer, answer_from, prompt_from
from driftscope.prompts.line import Line, Reading, json_inside, label, left_out

TEXT_CALLS = ("completion", "acompletion", "text_completion", "atext_completion", "responses", "aresponses")
TRUNCATED = "litellm_truncated"
REDACTED = "redacted-by-litellm"
UNKNOWN_VERSION = "?"

NO_MESSAGES = "no messages stored (LiteLLM: store_prompts_in_spend_logs is off)"
CUT_TEXT = "text that LiteLLM cut when storing it"
REDACTED_TEXT = "text that LiteLLM took out"
FAILED_CALL = "a call that failed"
OTHER_CALL = "a call that generates no text"
OTHER_OBSERVATION = "an observation that is not a generation"
NO_INPUT = "a generation without stored input"
OTHER_INPUT = "an input that holds no messages"
ANSWERED_ANEW_NOTE = "no answer text stored: the target answers"
TOOLS_NOTE = "tool definitions in an unknown form: not rendered"


def matches_litellm(item: Mapping[str, Any]) -> bool:
    keys = ("call_type", "model_parameters", "request_id", "spend", "startTime", "trace_id")
    return "messages" in item and "response" in item and any(key in item for key in keys)


def read_litellm(line: Line) -> Reading:
    """One StandardLoggingPayload, or one row of LiteLLM_SpendLogs."""
    item = line.item
    call, messages = item.get("call_type"), item.get("messages")
    if item.get("status") == "failure":
        return left_out(FAILED_CALL)
    if isinstance(call, str) and call and call not in TEXT_CALLS:
        return left_out(OTHER_CALL)
    messages = json_inside(messages)
    if isinstance(messages, dict):
        messages = messages.get("messages") or None
    if not messages:
        return left_out(NO_MESSAGES)
    stored = json.dumps([messages, item.get("response")], ensure_ascii=False, default=str)
    if TRUNCATED in stored:
        return left_out(CUT_TEXT)
    if REDACTED in stored:
        return left_out(REDACTED_TEXT)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    settings = json_inside(item.get("model_parameters"))
    answer = answer_from(item.get("response"))
    return prompt_from(
        line,
        messages,
        ids=("id", "request_id", "trace_id"),
        answer=answer,
        tools=(settings.get("tools") or None) if isinstance(settings, dict) else None,
        notes=() if answer.text or answer.note else (ANSWERED_ANEW_NOTE,),
    )


def matches_langfuse(item: Mapping[str, Any]) -> bool:
    keys = ("prompt_name", "promptName", "trace_id", "traceId", "output", "provided_model_name")
    return isinstance(item.get("type"), str) and any(key in item for key in keys)


def read_langfuse(line: Line) -> Reading:
    """One observation of `observations_v2/` (snake_case) or of an export from the web pages (camelCase)."""
    item = line.item
    if item.get("type") != "GENERATION":
        return left_out(OTHER_OBSERVATION)
    given = json_inside(item.get("input"))
    if given is None or given in ("", [], {}):
        return left_out(NO_INPUT)
    tools = json_inside(item.get("tool_definitions", item.get("toolDefinitions")))
    if isinstance(given, dict) and "role" not in given:
        tools = given.get("tools") or tools
        given = given.get("messages") or given.get("prompt")
        if not given:
            return left_out(OTHER_INPUT)
    if isinstance(given, list) and not all(isinstance(turn, dict) and ("role" in turn) for turn in given):
        return left_out(OTHER_INPUT)
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list | dict):
        return left_out(OTHER_INPUT)
    has_known_tools = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    answer = answer_from(item.get("output")) if item.get("output") not in (None, "") else Answer()
    notes = [] if answer.text or answer.note else [ANSWERED_ANEW_NOTE]
    if tools and not has_known_tools:
        notes.append(TOOLS_NOTE)
    return prompt_from(
        line,
        given,
        ids=("id",),
        answer=answer,
        tools=tools if has_known_tools and tools else None,
        system_prompt_name=_prompt_release(item),
        notes=notes,
    )


def _prompt_release(item: Mapping[str, Any]) -> str | None:
    """ "name@version" of the prompt that was used; None where none was."""
    name = item.get("prompt_name", item.get("promptName"))
    if not isinstance(name, str) or not name.strip():
        return None
    version = item.get("prompt_version", item.get("promptVersion"))
    if isinstance(version, float) and version.is_integer():  # Parquet's form of a column with nulls
        version = int(version)
    return label(f"{name}@{UNKNOWN_VERSION if version in (None, '') else version}")
