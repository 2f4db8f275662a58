"""The harness itself: a crash, a hang and a memory hog are all found."""

from __future__ import annotations

import pytest

from tests.fuzz.conftest import Reader


@pytest.mark.parametrize(
    ("how", "said"), [("crash", "ZeroDivisionError"), ("hang", "no answer"), ("hog", "MemoryError")]
)
def test_what_must_not_happen_is_found(how: str, said: str) -> None:
    reader = Reader()
    try:
        reader.ask({"kind": "misbehave", "path": "crash"})  # it is started: its start may take longer than an answer
        reader.answer_seconds = 2 if how == "hang" else reader.answer_seconds
        with pytest.raises(AssertionError, match=said):
            reader("misbehave", how)
    finally:
        reader.stop()
