"""What load generators send, as prompts: vLLM bench custom ({"prompt"}), AIPerf ({"text"} or {"session_id", "turns"}).

Both send their text as one user turn through the chat template. Traces of lengths and hashes without text are refused:
a made-up text has no acceptance worth measuring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import NOT_TEXT, Answer, finished, prompt_from
from driftscope.prompts.conversations import ROLE_MARKER
from driftscope.prompts.line import Line, Reading, left_out
from driftscope.prompts.openai_requests import is_token_id
from driftscope.prompts.turns import LATER_TURNS_NOTE
from probes.conditions import PromptInput

NOT_TEXT_KEYS = ("image_files", "image", "images", "audio", "audios", "video", "videos", "multi_modal_data")
TEMPLATED_NOTE = "role markers in a text that is sent as a user turn: if it is templated, use the format preformatted"


def matches_custom(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("prompt"), str)


def read_custom(line: Line) -> Reading:
    """vLLM bench custom; an answer beside the prompt (`response`, `completion`) is replayed."""
    if any(line.item.get(key) for key in NOT_TEXT_KEYS):
        return left_out(NOT_TEXT)
    answer = next((line.item[key] for key in ("response", "completion") if line.item.get(key)), None)
    return _user_turn(line, line.item.get("prompt"), "prompt", answer)


def matches_single_turn(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("text"), str) or isinstance(item.get("text_input"), str)


def read_single_turn(line: Line) -> Reading:
    """AIPerf single turn, and its traces where they carry text."""
    if any(line.item.get(key) for key in NOT_TEXT_KEYS):
        return left_out(NOT_TEXT)
    key = "text" if "text" in line.item else "text_input"
    return _user_turn(line, line.item.get(key), key, None)


def matches_multi_turn(item: Mapping[str, Any]) -> bool:
    turns = item.get("turns")
    return isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict)


def read_multi_turn(line: Line) -> Reading:
    """The turns up to the first user turn that the server has to answer."""
    turns = line.item.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise line.bad("has no list of objects under `turns`")
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if any(turn.get(key) for key in NOT_TEXT_KEYS):
            return left_out(NOT_TEXT)
        if not isinstance(turn.get("text"), str):
            raise line.bad("has a turn without text")
        role = turn.get("role") or "user"
        if messages and messages[-1]["role"] == "user" and role == "user":
            break
        messages.append({"role": role, "content": turn["text"]})
    notes = (LATER_TURNS_NOTE,) if len(messages) < len(turns) else ()
    return prompt_from(line, messages, ids=("session_id", "id"), category=line.label_of("category"), notes=notes)


def matches_token_ids(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("prompt_token_ids"), list)


def read_token_ids(line: Line) -> Reading:
    """Prompts, and answers beside them, as token ids out of an engine's log."""
    ids = _token_ids(line, "prompt_token_ids")
    if not ids:
        raise line.bad("has no token ids under `prompt_token_ids`")
    answer = _token_ids(line, "output_token_ids") or _token_ids(line, "token_ids")
    prompt = PromptInput(
        prompt_id=line.id_of("request_id", "id", "custom_id"),
        messages=(),
        category=line.label_of("category"),
        token_ids=ids,
        response_token_ids=answer or None,
    )
    return finished(line, prompt)


def matches_trace(item: Mapping[str, Any]) -> bool:
    return "hash_ids" in item or ("input_length" in item and "output_length" in item)


def read_trace(line: Line) -> Reading:
    raise line.bad(
        "is from a trace of lengths and hashes (Mooncake): it has no text",
        remedy="Give the prompts themselves: acceptance depends on their text.",
    )


def _user_turn(line: Line, text: object, key: str, answer: object) -> Reading:
    if not isinstance(text, str) or not text:
        raise line.bad(f"has no text under `{key}`")
    if answer is not None and not isinstance(answer, str):
        raise line.bad("has an answer that is not text")
    return prompt_from(
        line,
        [{"role": "user", "content": text}],
        ids=("id", "prompt_id", "request_id", "session_id"),
        answer=Answer(text=answer),
        category=line.label_of("category"),
        notes=(TEMPLATED_NOTE,) if ROLE_MARKER.search(text) else (),
    )


def _token_ids(line: Line, key: str) -> tuple[int, ...]:
    value = line.item.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(is_token_id(token) for token in value):
        raise line.bad(f"has `{key}` that is not a list of token ids")
    return tuple(value)
