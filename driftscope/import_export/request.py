"""One request's acceptance as a source reports it, whichever engine it was: what readers give and `store` takes.

Numbers are checked where they are read (`counts_of` and its like raise BadCountsError); null is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driftscope.import_export.rounds import BadCountsError, Rounds

MAX_TOKENS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Request:
    request_id: str
    model: str | None
    rounds: Rounds
    num_prompt_tokens: int | None
    num_response_tokens: int | None
    finish_reason: str | None = None
    notes: tuple[str, ...] = ()  # of this request


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What became of one line: requests, or the reason why there is none."""

    requests: tuple[Request, ...] = ()
    left_out: str | None = None


def count(source: Mapping[str, object], key: str) -> int:
    """A whole number that must be there. Raises BadCountsError."""
    value = optional_count(source, key)
    if value is None:
        raise BadCountsError(f"no {key}")
    return value


def optional_count(source: Mapping[str, object], *keys: str) -> int | None:
    """The first of these keys as a whole number >= 0; None where all are missing or null. Raises BadCountsError."""
    for key in keys:
        value = source.get(key)
        if value is not None:
            if not _is_count(value):
                raise BadCountsError(f"{key} is no whole number from 0 up")
            return int(value)  # type: ignore[call-overload, no-any-return]
    return None


def optional_tokens(source: Mapping[str, object], *keys: str) -> int | None:
    """As `optional_count`, the tokens of one request: a run stores them as int32. Raises BadCountsError."""
    value = optional_count(source, *keys)
    if value is not None and value > MAX_TOKENS:
        raise BadCountsError(f"{keys[0]} is more than the {MAX_TOKENS:,} tokens that a request can have")
    return value


def counts(source: Mapping[str, object], key: str) -> list[int] | None:
    """A list of whole numbers >= 0; None where it is missing or null. Raises BadCountsError."""
    value = source.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(_is_count(item) for item in value):
        raise BadCountsError(f"{key} is no list of whole numbers from 0 up")
    return [int(item) for item in value]


def histogram(value: object, key: str) -> dict[int, int]:
    """A list (index j) or an object (key j) of how many rounds accepted j drafts. Raises BadCountsError."""
    if isinstance(value, list):
        pairs: list[tuple[object, object]] = list(enumerate(value))
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        raise BadCountsError(f"{key} is neither a list nor an object of counts")
    result: dict[int, int] = {}
    for j, n in pairs:
        if isinstance(j, str) and j.isascii() and j.isdigit() and len(j) < 6:
            j = int(j)
        if not _is_count(j) or not _is_count(n):
            raise BadCountsError(f"{key} holds something else than counts by accepted drafts")
        result[int(j)] = int(n)  # type: ignore[call-overload]
    return result


def _is_count(value: object) -> bool:
    """Whole and not negative, also where JSON writes 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 1 << 53 and value == int(value)
