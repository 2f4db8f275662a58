"""Engines' metrics with damaged values, imported as a run; texts with anything that looks like a secret, redacted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from driftscope.import_export import SOURCES
from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, damaged_bytes, json_text
from tests.fuzz.test_checkpoint_files import ANY_SPEED

FILES = Path(__file__).parents[1] / "fixtures" / "exchange"
LINES: list[Any] = [
    json.loads(line) for path in sorted(FILES.glob("*.jsonl")) for line in path.read_text().splitlines()[:4] if line
]
SCRAPES = [path.read_bytes() for path in sorted(FILES.iterdir()) if path.suffix not in (".jsonl", ".json", ".md")]
NUMBERS = st.sampled_from(
    [
        "9" * 400,
        "1" * 5000,
        "-1",
        "NaN",
        "+Inf",
        "1e400",
        "9007199254740993",
        "3e9",
        "1.5",
        "",
        "5 " + "9" * 400,
        "0x1",
        "3",
    ]
)


def imported(reader: Reader, content: bytes, suffix: str, **options: Any) -> str:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"metrics{suffix}"
        path.write_bytes(content)
        return reader("acceptance", path, **options)


@ANY_SPEED
@given(
    lines=st.lists(damaged(LINES), min_size=1, max_size=2),
    source=st.none() | st.sampled_from(SOURCES),
    depth=st.none() | st.integers(-1, 70),
)
def test_requests(reader: Reader, lines: list[Any], source: str | None, depth: int | None) -> None:
    text = "".join(json_text(line) + "\n" for line in lines)
    imported(reader, text.encode("utf-8", "surrogatepass"), ".jsonl", source=source, depth=depth)


@ANY_SPEED
@given(
    scrape=st.sampled_from(SCRAPES), number=NUMBERS, place=st.integers(0, 200), is_damaged=st.booleans(), data=st.data()
)
def test_counters(
    reader: Reader, scrape: bytes, number: str, place: int, is_damaged: bool, data: st.DataObject
) -> None:
    lines = scrape.decode().splitlines()
    samples = [i for i, line in enumerate(lines) if line.startswith("vllm:")]
    at = samples[place % len(samples)]
    lines[at] = f"{lines[at].rpartition(' ')[0]} {number}"
    content = "\n".join(lines).encode()
    if is_damaged:
        content = data.draw(damaged_bytes([content]))
    imported(reader, content, ".txt", source="prometheus", depth=None)


def test_the_undamaged_ones_are_read(reader: Reader) -> None:
    for scrape in SCRAPES:
        assert imported(reader, scrape, ".txt", source="prometheus", depth=None) in ("read", "refused")
    outcomes = [
        imported(reader, (json_text(line) + "\n").encode(), ".jsonl", source=None, depth=None) for line in LINES
    ]
    assert outcomes.count("read") >= len(LINES) // 3


PIECES = st.sampled_from(
    [
        *(
            "4111",
            "1111",
            "4",
            "1",
            "-",
            ".",
            " ",
            "/",
            "_",
            "\u00a0",
            "\u2013",
            "0301234567",
            "+49",
            "(030)",
            "1-800-555-1234",
        ),
        *(
            "@",
            "%40",
            "example.com",
            "bob",
            "[at]",
            "://",
            "https://hooks.slack.com/services/",
            "a:b@",
            "Password=",
            "token",
        ),
        *(
            ": ",
            "=",
            '"',
            "sk-",
            "ghp_",
            "eyJ",
            "a" * 40,
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "10.0.0.1",
            "::1",
        ),
        *(
            "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----",
            "[KEY]",
            "[EMAIL]",
            "\n",
            "tel ",
            "?sig=",
            "\ud800",
        ),
    ]
)


@ANY_SPEED
@given(pieces=st.lists(PIECES | st.text(max_size=3), max_size=30), times=st.sampled_from([1, 1, 1, 500]))
def test_redaction(reader: Reader, pieces: list[str], times: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "text"
        path.write_bytes(("".join(pieces) * times).encode("utf-8", "surrogatepass"))
        assert reader("redact", path) == "read"
