"""One object of a file, the error that names its place, and what a reader made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.conditions import PromptInput
from probes.errors import InputError, printable
from probes.nested_json import read_json

MAX_LABEL_CHARACTERS = 120


@dataclass(frozen=True, kw_only=True)
class Line:
    path: Path
    number: int  # from 1
    item: Mapping[str, Any]
    kind: str = "line"  # "line" of JSON Lines or CSV, "item" of a JSON array, "row" of a Parquet file

    def bad(self, what: str, *, remedy: str = "Correct or remove it.", quote: str = "") -> InputError:
        """`quote`: the text found there, if that helps; see DriftscopeError."""
        return bad_line(self.path, self.number, what, kind=self.kind, remedy=remedy, quote=quote)

    def keys(self) -> str:
        """The first keys of the item, each as a label: as a quote, for they may be anything."""
        return ", ".join(repr(label(str(key))) for key in list(self.item)[:8])

    def id_of(self, *keys: str) -> str:
        """The first of these keys as a label, else the line's number."""
        for key in keys:
            value = self.item.get(key)
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
                return label(str(value))
        return f"{self.kind}{self.number}"

    def label_of(self, key: str) -> str | None:
        """A text of the item as a label; None where there is none."""
        return text_label(self.item.get(key))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Result of one line: prompts, or the reason why there is none. `notes`: what was changed or not used."""

    prompts: tuple[PromptInput, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: str | None = None


def left_out(reason: str) -> Reading:
    """A line that is sound but cannot be measured; counted by reason."""
    return Reading(left_out=reason)


def bad_line(
    path: Path, number: int, what: str, *, kind: str = "line", remedy: str = "Correct or remove it.", quote: str = ""
) -> InputError:
    where = f"{path}:{number}"
    return InputError(f"{kind} {number} {what}", code="bad_prompt_line", where=where, remedy=remedy, quote=quote)


def label(text: str) -> str:
    """Text from a file as a name that is safe to print: one line, nothing invisible, bounded.

    Control characters and marks that turn the writing direction become U+FFFD; what is cut off is replaced by a hash.
    """
    text = text.strip()
    shown = printable(text[:MAX_LABEL_CHARACTERS])
    if len(text) <= MAX_LABEL_CHARACTERS:
        return shown
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{shown[: MAX_LABEL_CHARACTERS - 9]}…{digest}"


def text_label(value: object) -> str | None:
    """A text as a label; None for blanks, and for what is no text."""
    return label(value) if isinstance(value, str) and value.strip() else None


def json_inside(value: object) -> object:
    """JSON that stands as text in a field (logs and CSV hold it so); anything else, other text too, as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value
