"""Takes e-mail addresses, phone numbers, keys, IP addresses and card numbers out of prompts, before anything sees them.

Finds what has a form: names, postal addresses and what people tell of themselves stay. It errs on the side of taking
out too much. No pattern can take more than linear time in the length of the text.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probes.conditions import PromptInput
from probes.errors import InputError

_SECRET_NAME = r"(?:api[_-]?key|access[_-]?key|secret|token|passwd|password|pwd|authorization|credential)"

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
_KEYS = re.compile(
    r"""(?x)
    (?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*            # JSON web token
    | (?<![\w-])(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,40}[-_]){0,6}[A-Za-z0-9]{16,}   # OpenAI, Anthropic, Stripe ...
    | \bgh[oprsu]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{16,}
    | \bxox[abeoprs]-[\w-]{10,} | \bhf_[A-Za-z0-9]{20,} | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w-]{30,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b | \bAIza[\w-]{30,}
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)([\w.~+/=-]{12,})")
_NAMED_SECRET = re.compile(
    rf"""(?i)(\b[\w-]{{0,40}}{_SECRET_NAME}[\w-]{{0,20}}["']?\s{{0,5}}[:=]\s{{0,5}}["']?)((?!\d+\b|bearer\b|basic\b)[^\s"',;}}]{{6,}})"""
)
_URL_LOGIN = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,20}://)([^\s/:@]{1,200}:[^\s/@]{1,200})(?=@)")
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,4}(?![\w:])")
_CARD = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")
_PHONE = re.compile(
    r"""(?x)
    (?<![\w+])\+\d{1,3}[ ().\-/]{0,3}\d(?:[ ().\-/]{0,2}\d){5,13}(?!\w)     # +49 (0)30 123 456
    | (?<!\w)\(\d{2,5}\)[ .\-/]?\d(?:[ .\-/]?\d){4,9}(?!\w)                 # (030) 123456
    | (?<![\w.-])\d{3}[ .-]\d{3}[ .-]\d{4}(?![\w.-])                       # 555-123-4567
    | (?<![\w.-])0\d{1,4}[ /\-]\d(?:[ \-]?\d){4,9}(?![\w.-])               # 030 1234567
    """
)


def redact_text(text: str) -> tuple[str, Counter[str]]:
    """The text with placeholders ([EMAIL], [PHONE], [KEY], [IP], [CARD]), and how many of each kind were put in."""
    found: Counter[str] = Counter()

    def place(kind: str, keep: Callable[[re.Match[str]], bool] = lambda match: False) -> Callable[[re.Match[str]], str]:
        def of(match: re.Match[str]) -> str:
            if keep(match):
                return match.group()
            found[kind] += 1
            return f"[{kind.upper()}]"

        return of

    def named(match: re.Match[str]) -> str:
        if match.group(2).startswith("["):
            return match.group()
        found["key"] += 1
        return f"{match.group(1)}[KEY]"

    def bearer(match: re.Match[str]) -> str:
        found["key"] += 1
        return f"{match.group(1)}{match.group(2)}[KEY]"

    text = _PRIVATE_KEY.sub(place("key"), text)
    text = _KEYS.sub(place("key"), text)
    text = _BEARER.sub(bearer, text)
    text = _NAMED_SECRET.sub(named, text)
    text = _URL_LOGIN.sub(named, text)
    text = _EMAIL.sub(place("email"), text)
    text = _IPV4.sub(place("ip", lambda m: not _is_ip(m.group())), text)
    text = _IPV6.sub(place("ip", lambda m: not _has_form_of_ipv6(m.group()) or not _is_ip(m.group())), text)
    text = _CARD.sub(place("card", lambda m: not _is_card(m.group())), text)
    text = _PHONE.sub(place("phone"), text)
    return text, found


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
                where=f"prompt {prompt.prompt_id}",
                remedy="give them as text, or store hashes only with --no-text",
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
    """Every string inside, keys of objects apart."""
    if isinstance(value, str):
        text, count = redact_text(value)
        found += count
        return text
    if isinstance(value, Mapping):
        return {key: _redact_value(item, found) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_redact_value(item, found) for item in value)
    if isinstance(value, list):
        return [_redact_value(item, found) for item in value]
    return value


def _has_form_of_ipv6(text: str) -> bool:
    """`a::b` is an address too, but then every qualified name of C++ would be."""
    return text.count(":") >= 2 and any(character.isdigit() for character in text)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_card(text: str) -> bool:
    """Whether the digits carry the check digit of a card number (Luhn)."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [d if index % 2 == 0 else sum(divmod(2 * d, 10)) for index, d in enumerate(reversed(digits))]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0
