"""Redaction: what is taken out, what stays, how it is counted, and that no text makes it slow or break."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.prompts import redact_prompts, redact_text
from probes.conditions import PromptInput
from probes.errors import InputError

TAKEN_OUT = [
    ("write to ann.lee+x@mail.example.org today", "write to [EMAIL] today", {"email": 1}),
    ("<ann@example.co.uk>,bob@example.com", "<[EMAIL]>,[EMAIL]", {"email": 2}),
    ("call +49 (0)30 1234567 or +1-202-555-0143", "call [PHONE] or [PHONE]", {"phone": 2}),
    ("(030) 1234567, 202-555-0143, 030 1234567", "[PHONE], [PHONE], [PHONE]", {"phone": 3}),
    ("host 10.0.0.12 and 2001:db8::8a2e:370:7334", "host [IP] and [IP]", {"ip": 2}),
    ("http://192.168.1.4:8080/x", "http://[IP]:8080/x", {"ip": 1}),
    ("card 4111 1111 1111 1111, 5500-0000-0000-0004", "card [CARD], [CARD]", {"card": 2}),
    ("sk-proj-abcdEFGH1234abcdEFGH1234", "[KEY]", {"key": 1}),
    ("ghp_" + "a1B2" * 9, "[KEY]", {"key": 1}),
    ("AKIAIOSFODNN7EXAMPLE", "[KEY]", {"key": 1}),
    ("hf_" + "a" * 34, "[KEY]", {"key": 1}),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_123", "[KEY]", {"key": 1}),
    ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer [KEY]", {"key": 1}),
    ('{"api_key": "abcd1234efgh"}', '{"api_key": "[KEY]"}', {"key": 1}),
    ("password=hunter22!", "password=[KEY]", {"key": 1}),
    ("postgres://joe:s3cret@db.example.org/x", "postgres://[KEY]@db.example.org/x", {"key": 1}),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----\nthat",
        "[KEY]\nthat",
        {"key": 1},
    ),
]


@pytest.mark.parametrize(("text", "redacted", "counts"), TAKEN_OUT, ids=[text[:24] for text, _, _ in TAKEN_OUT])
def test_taken_out(text: str, redacted: str, counts: dict[str, int]) -> None:
    assert redact_text(text) == (redacted, counts)
    assert redact_text(redacted) == (redacted, {})  # nothing more to find


@pytest.mark.parametrize(
    "text",
    [
        "on 2024-01-15 at 12:30:45 we counted 1,234,567 items",
        "version 3.11.4.2026 of the tool, section 1.2.3",
        "pi is 3.14159265358979",
        "4111 1111 1111 1112 has no valid check digit",
        "999.999.999.999 is no address",
        "def f(x: int) -> int: return x @ y",
        "a::b in C++ and std::vector<int>",
        '{"max_tokens": 128000, "temperature": 0.7}',
        "日本語のテキスト、絵文字 🎉 and ü",
        "",
    ],
)
def test_left_in(text: str) -> None:
    assert redact_text(text) == (text, {})


def test_every_text_of_a_prompt_is_redacted() -> None:
    mail, place = "a@b.example", "[EMAIL]"
    call = {"function": {"name": "f", "arguments": '{"to": "a@b.example"}'}}
    prompt = PromptInput(
        prompt_id="for a@b.example",
        messages=(
            {"role": "system", "content": mail},
            {"role": "user", "content": [{"type": "text", "text": mail}]},
            {"role": "assistant", "tool_calls": [call]},
        ),
        category=mail,
        tools=({"function": {"description": mail}},),
        response=mail,
        chat_template_kwargs={"extra": mail},
        system_prompt_name=mail,
    )
    plain = PromptInput(prompt_id="b", messages=({"role": "user", "content": "nothing here"},))
    (redacted, unchanged), counts, num_changed = redact_prompts([prompt, plain])
    assert mail not in repr(redacted)
    assert repr(redacted).count(place) == repr(prompt).count(mail) == 9
    assert counts == {"email": 9}
    assert num_changed == 1
    assert unchanged == plain


def test_ids_that_come_to_the_same_stay_apart() -> None:
    prompts = [PromptInput(prompt_id=f"{name}@b.example", messages=()) for name in "xy"]
    redacted, _, _ = redact_prompts(prompts)
    assert [p.prompt_id for p in redacted] == ["[EMAIL]#1", "[EMAIL]#2"]


def test_token_ids_cannot_be_redacted() -> None:
    for ids in ({"token_ids": (1, 2)}, {"response_token_ids": (1, 2)}):
        with pytest.raises(InputError) as caught:
            redact_prompts([PromptInput(prompt_id="q7", messages=(), **ids)])
        assert caught.value.code == "cannot_redact"
        assert "q7" in caught.value.where


@pytest.mark.parametrize(
    "piece",
    ["a", "1", "1 ", "1.", "a.", "a@", "@", "-", "a-", "sk-", "eyJ", "eyJ-", "eyJaaaaaaaa.", "+1", "0-", "f:", ":", "://",
     "a:b", "token:", "token", "password=", "-----BEGIN PRIVATE KEY-----", "(030", "\u202e", "é", "\x00", " ", "\n"],
)  # fmt: skip
def test_a_long_text_of_anything_is_done_quickly_enough_to_finish(piece: str) -> None:
    """A pattern that backtracks over the text would not come back within the suite's life on 300,000 characters."""
    text = piece * (300_000 // len(piece))
    redacted, counts = redact_text(text)
    assert sum(counts.values()) == sum(redacted.count(f"[{kind.upper()}]") for kind in counts)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(string.printable + "é🎉\u202e") | st.characters(), max_size=120))
def test_counts_are_those_of_the_placeholders(text: str) -> None:
    redacted, counts = redact_text(text)
    for kind in ("email", "phone", "key", "ip", "card"):
        placeholder = f"[{kind.upper()}]"
        assert redacted.count(placeholder) >= counts[kind] - text.count(placeholder)
    if not counts:
        assert redacted == text
