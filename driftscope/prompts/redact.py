"""Takes e-mail addresses, phone numbers, keys, IP addresses and card numbers out of prompts, before anything sees them.

Finds what has a form (`forms`): names, postal addresses and what people tell of themselves stay. It errs on the side of
taking out too much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from driftscope.prompts.forms import DIGITS, FORMS, PHONES, SECRET_NAME, Form, card_spans
from probes.conditions import PromptInput
from probes.errors import InputError

_SECRET_KEY = re.compile(SECRET_NAME, re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(?!bearer|basic|string|object|number|required|\[)(?!\d+\Z)\S{6,}", re.IGNORECASE)


def redact_text(text: str) -> tuple[str, Counter[str]]:
    """The text with placeholders ([EMAIL], [PHONE], [KEY], [IP], [CARD]), and how many of each kind were put in."""
    found: Counter[str] = Counter()
    for form in FORMS:
        text = _take_out(text, form, found)
    text = _take_out_cards(text, found)
    for form in PHONES:
        text = _take_out(text, form, found)
    return text, found


def _take_out(text: str, form: Form, found: Counter[str]) -> str:
    pieces, last = [], 0
    for match in form.pattern.finditer(text):
        if form.is_one(match.group(form.group)):
            start, stop = match.span(form.group)
            pieces += [text[last:start], f"[{form.kind.upper()}]"]
            last = stop
            for kind in found:  # placeholders that are now part of this one
                found[kind] -= min(found[kind], text.count(f"[{kind.upper()}]", start, stop))
            found[form.kind] += 1
    return "".join([*pieces, text[last:]]) if pieces else text


def _take_out_cards(text: str, found: Counter[str]) -> str:
    pieces, last = [], 0
    for match in DIGITS.finditer(text):
        for start, stop in card_spans(match.group()):
            pieces += [text[last : match.start() + start], "[CARD]"]
            last = match.start() + stop
            found["card"] += 1
    return "".join([*pieces, text[last:]]) if pieces else text


def redact_prompts(prompts: Sequence[PromptInput]) -> tuple[tuple[PromptInput, ...], Counter[str], int]:
    """All prompts redacted: messages, tools, answers, ids and labels -> (prompts, how many of each kind, in how many).

    Raises InputError for prompts that come as token ids, which cannot be read here.
    """
    total: Counter[str] = Counter()
    num_changed = 0
    redacted: list[PromptInput] = []
    names: Counter[str] = Counter()
    for prompt in prompts:
        if prompt.token_ids is not None or prompt.response_token_ids is not None:
            raise InputError(
                "prompts that come as token ids cannot be redacted",
                code="cannot_redact",
                where=f"prompt {redact_text(prompt.prompt_id)[0]}",
                remedy="Give them as text, or store hashes only with --no-text.",
            )
        found: Counter[str] = Counter()
        changed = replace(
            prompt,
            **{
                name: _redact_value(getattr(prompt, name), found)
                for name in (
                    "prompt_id", "messages", "category", "tools", "response", "text", "chat_template_kwargs",
                    "system_prompt_name",
                )
            },
        )  # fmt: skip
        if changed.prompt_id != prompt.prompt_id:  # several may have come to the same
            names[changed.prompt_id] += 1
            changed = replace(changed, prompt_id=f"{changed.prompt_id}#{names[changed.prompt_id]}")
        redacted.append(changed)
        total += found
        num_changed += bool(found)
    return tuple(redacted), total, num_changed


def _redact_value(value: Any, found: Counter[str]) -> Any:
    """Every string inside, keys of objects too; what a key calls a secret is one in whole."""
    if isinstance(value, str):
        text, count = redact_text(value)
        found += count
        return text
    if isinstance(value, Mapping):
        result: dict[Any, Any] = {}
        for key, item in value.items():
            name = _redact_value(key, found)
            if name != key and name in result:  # several may have come to the same
                name = f"{name}#{len(result)}"
            if isinstance(item, str) and _SECRET_KEY.search(str(key)) and _SECRET_VALUE.fullmatch(item):
                found["key"] += 1
                result[name] = "[KEY]"
            else:
                result[name] = _redact_value(item, found)
        return result
    if isinstance(value, tuple):
        return tuple(_redact_value(item, found) for item in value)
    if isinstance(value, list):
        return [_redact_value(item, found) for item in value]
    return value
