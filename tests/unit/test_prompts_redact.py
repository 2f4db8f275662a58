"""Redaction: what is taken out, what stays, how it is counted, and that no text makes it slow or break."""

from __future__ import annotations

import string
import subprocess
import sys

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
    ("0301234567, 0171/1234567, 06.12.34.56.78", "[PHONE], [PHONE], [PHONE]", {"phone": 3}),
    ("1-800-555-1234 or 1 (800) 555-1234", "[PHONE] or 1 [PHONE]", {"phone": 2}),
    ("call 202-555-0143. Or 020 7946 0958.", "call [PHONE]. Or [PHONE].", {"phone": 2}),
    ("0049 30 1234567; 138 0013 8000; 98765 43210", "[PHONE]; [PHONE]; [PHONE]", {"phone": 3}),
    ("tel: 912345678, phone 8005551234", "tel: [PHONE], phone [PHONE]", {"phone": 2}),
    ("%2B4930123456 and +49\u00a030\u2011123456", "[PHONE] and [PHONE]", {"phone": 2}),
    ("4111.1111.1111.1111 4111/1111/1111/1111 4111_1111_1111_1111", "[CARD] [CARD] [CARD]", {"card": 3}),
    ("4111\u00a01111\u00a01111\u00a01111, 4111\u20131111\u20131111\u20131111.", "[CARD], [CARD].", {"card": 2}),
    ("4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "[CARD]", {"card": 1}),
    ("4111 1111 1111 1111 123, 4111 1111 1111 1111 12/27", "[CARD] 123, [CARD] 12/27", {"card": 2}),
    ("no. 12 3782 822463 10005, 378282246310005", "no. 12 [CARD], [CARD]", {"card": 2}),
    ("?mail=bob%40example.com&x=1", "?mail=[EMAIL]&x=1", {"email": 1}),
    ("bob [at] example [dot] com, bob&#64;example.com", "[EMAIL], [EMAIL]", {"email": 2}),
    (
        "AccountName=a;AccountKey=abcd+/1234567890==;EndpointSuffix=x",
        "AccountName=a;AccountKey=[KEY];EndpointSuffix=x",
        {"key": 1},
    ),
    ("Server=db;User Id=sa;Password=Sup3r!x;", "Server=db;User Id=sa;Password=[KEY];", {"key": 1}),
    (
        "SharedAccessKeyName=Root;SharedAccessKey=abcdEFGH123=",
        "SharedAccessKeyName=Root;SharedAccessKey=[KEY]",
        {"key": 1},
    ),
    ("redis://:p4ssword@host:6379", "redis://[KEY]@host:6379", {"key": 1}),
    ("https://0123456789abcdef0123@o1.ingest.sentry.io/2", "https://[KEY]@o1.ingest.sentry.io/2", {"key": 1}),
    (
        "https://b.example/c?sv=2022&sig=abc%2Fdefghijklmnop%3D&se=1",
        "https://b.example/c?sv=2022&sig=[KEY]&se=1",
        {"key": 1},
    ),
    ("whsec_abcdefghijklmnop1234", "[KEY]", {"key": 1}),
    ("SG." + "a1" * 11 + "." + "b2" * 21 + ", shpat_" + "0a" * 16, "[KEY], [KEY]", {"key": 2}),
    (
        "xapp-1-A0-12-abcdef, glrt-abcdefghijklmnopqrst, sk-ant-api03-aBc-dEf_gHi0123456789abcdef-XAA",
        "[KEY], [KEY], [KEY]",
        {"key": 3},
    ),
    (
        "https://hooks.slack.com/services/T00000000/B00000000/" + "X" * 24,
        "https://hooks.slack.com/services/[KEY]",
        {"key": 1},
    ),
    (
        "https://discord.com/api/webhooks/123456789012345678/abcDEF_ghi-jkl.",
        "https://discord.com/api/webhooks/[KEY]",
        {"key": 1},
    ),
    (
        "https://a.webhook.office.com/webhookb2/aaaa-bbbb@cc/IncomingWebhook/x/1",
        "https://a.webhook.office.com/webhookb2/[KEY]",
        {"key": 1},
    ),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "[KEY]", {"key": 1}),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,12\n\nMIIE-ow\n-----END RSA PRIVATE KEY-----\nthat - this",
        "[KEY]\nthat - this",
        {"key": 1},
    ),
    (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: x-y\n\nlQ\n-----END PGP PRIVATE KEY BLOCK----- z",
        "[KEY] z",
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
        "01.02.2024 10:15:30 and 01/02/2024 12:30, 2024-01-15T12:30:45.123456789Z",
        "version 3.11.4.2026, v0.12.3, 10.15.7, 0.123456789012, 1e-10",
        "commit 9e226d2a0b1c2d3e4f5061728394a5b6c7d8e9f0, md5 d41d8cd98f00b204e9800998ecf8427e",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
        "550e8400-e29b-41d4-a716-446655440000",
        "num_tokens=1_000_000, tokens: 3.5k, max_tokens: 128000, tokens per second: 1234567",
        "1700000000 1700000000123 1700000000123456789 18446744073709551615 4294967295",
        "12 345 678 people, 1 234 567 890, 100 200 3000, 192.168.1000",
        "'0123456789', 0123456789abcdef, 0101010101, 00000123456",
        "10 20 30 40 50 60 70 80; 05 06 07 08 09 10 11; 0800 to 1700",
        "password = getpass.getpass(); secret = os.environ['X']; token: string",
        "getElementsByClassName2AndAttributeValue4 src/main/java/com/Example/App2/Version3b",
        "ISBN 0-306-40615-2, 978-3-16-148410-0; 4.669201609102990",
        "lat 52.520008, lon 13.404954; react@18.2.0 user@localhost 100%40 off",
        "https://example.com/docs/webhooks/getting-started https://en.wikipedia.org/wiki/Webhook",
        "The secret to success: persistence. What is -----BEGIN CERTIFICATE-----?",
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


def test_keys_of_objects_are_redacted_and_name_secrets() -> None:
    call = {
        "function": {"name": "f", "arguments": {"a@b.example": 1, "c@d.example": 2, "password": "hunter22!", "n": "x"}}
    }
    tool = {
        "function": {"parameters": {"properties": {"token": {"type": "string"}}, "password": "The user's password"}}
    }
    prompt = PromptInput(prompt_id="a", messages=({"role": "assistant", "tool_calls": [call]},), tools=(tool,))
    [redacted], counts, _ = redact_prompts([prompt])
    arguments = redacted.messages[0]["tool_calls"][0]["function"]["arguments"]  # type: ignore[index]
    assert arguments == {"[EMAIL]": 1, "[EMAIL]#1": 2, "password": "[KEY]", "n": "x"}
    assert counts == {"email": 2, "key": 1}
    assert redacted.tools == (tool,)


def test_five_megabytes_of_digits_take_seconds() -> None:
    """Ended by the kernel after a minute: a form that took the square of the length would need days."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from driftscope.prompts import redact_text\n"
        "for piece in ('1-', '4-5-', 'sk-a', '%40', '0'):\n"
        "    assert len(redact_text(piece * (1_000_000 // len(piece)))[0]) > 10\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    with pytest.raises(InputError) as caught:
        redact_prompts([PromptInput(prompt_id="a@b.example", messages=(), token_ids=(1,))])
    assert "b.example" not in str(caught.value)


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
